"""Key/value store: one slot a row, one cell a token, kept across turns and episodes."""

from __future__ import annotations

import torch

_ROUND = 64  # cells; keeps the number of reallocations small for short episodes


class KVStore:
    """Keys and values of every layer, `[slots, kv_heads, capacity, head_dim]` each.

    Cell `p` of a slot holds the token at position `p` of the row that owns the slot, so a mask is a
    comparison with a length and never a look at token values.  Tensors are allocated when a layer writes for
    the first time: only then are its head count, head size, dtype and device known (they may differ from
    layer to layer).

    Memory is zeroed: a masked cell is multiplied by an exact 0, and `0 * garbage` could be NaN.
    """

    def __init__(self) -> None:
        self.slots = 0
        self.capacity = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def reserve(self, slots: int, capacity: int, limit: int | None = None) -> None:
        """Make room for `slots` rows of `capacity` tokens; content is kept.

        Capacity grows by half of itself at least, so that a long episode costs O(log length) copies, but not
        beyond `limit` cells (the longest context there can be).
        """
        if slots <= self.slots and capacity <= self.capacity:
            return
        if capacity > self.capacity:
            capacity = max(capacity, self.capacity + self.capacity // 2)
            capacity = -(-capacity // _ROUND) * _ROUND
            if limit is not None:
                capacity = max(min(capacity, limit), self.capacity)
        slots, capacity = max(slots, self.slots), max(capacity, self.capacity)
        for layer, (keys, values) in list(self._layers.items()):
            # One layer at a time: the peak is the store plus one layer, not twice the store.
            self._layers[layer] = (_grown(keys, slots, capacity), _grown(values, slots, capacity))
            del keys, values
        self.slots, self.capacity = slots, capacity

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor, cells: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the packed new tokens of a layer and return the layer's two tensors.

        keys [kv_heads, T, D], values [kv_heads, T, Dv]; slots, cells i64[T].
        """
        pair = self._layers.get(layer)
        if pair is None:
            shape = (self.slots, keys.shape[0], self.capacity)
            pair = (keys.new_zeros(*shape, keys.shape[2]), values.new_zeros(*shape, values.shape[2]))
            self._layers[layer] = pair
        pair[0][slots, :, cells] = keys.transpose(0, 1)
        pair[1][slots, :, cells] = values.transpose(0, 1)
        return pair

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copy cells start..stop-1 of slot `source` to slot `target`, in every layer."""
        if source == target or stop <= start:
            return
        for pair in self._layers.values():
            for tensor in pair:
                tensor[target, :, start:stop] = tensor[source, :, start:stop]

    def clear(self) -> None:
        """Forget all content and give the memory back (the reserved shape is kept)."""
        self._layers.clear()

    @property
    def nbytes(self) -> int:
        """Bytes held by the store."""
        return sum(t.numel() * t.element_size() for pair in self._layers.values() for t in pair)


def _grown(old: torch.Tensor, slots: int, capacity: int) -> torch.Tensor:
    new = old.new_zeros(slots, old.shape[1], capacity, old.shape[3])
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
