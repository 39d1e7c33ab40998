"""Memory of keys and values: fixed-size blocks of cells, one cell a token, in every layer."""

from __future__ import annotations

import heapq
import itertools
import math
import mmap
from typing import Literal

import torch

_VERSIONS = itertools.count()


class BlockPool:
    """Blocks of `size` cells; block b of a layer is `keys[b]` [Hkv, D, size] and `values[b]` [Hkv, size, Dv].

    Keys are stored transposed: scores of neighbouring cells are then one vector operation, in a matrix product as in a
    hand-written kernel.  Blocks never move, so a table of block numbers stays right for as long as its span lives; the
    lowest free block is taken first, which keeps what is touched small and at the start.

    Tensors are allocated when a layer writes for the first time: only then are its head count, head size, dtype and
    device known (they may differ from layer to layer).  Memory is zeroed: a masked cell is multiplied by an exact 0,
    and `0 * garbage` could be NaN.

    limit: most blocks there may be; None: no limit.
    version: a number that no other pool has, and another one whenever tensors were allocated or given back.
    sharing: where a context may go on from another's cells: at any of them, at the end of a prompt, or nowhere.
    """

    sharing: Literal["anywhere", "ends", "nowhere"] = "anywhere"

    def __init__(self, size: int = 32, limit: int | None = None) -> None:
        self.size = size
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._free: list[int] = []
        self._made = 0  # blocks that were ever in use: numbers below it are used or in `_free`
        self._capacity = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._spare: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of before `clear(keep=True)`
        self.version = next(_VERSIONS)

    def room(self) -> int | None:
        """Blocks that can still be taken; None: any number."""
        return None if self.limit is None else self.limit - self.used

    def take(self, count: int) -> list[int]:
        """Numbers of `count` blocks.  Raises MemoryError beyond the limit: callers look at `room()` first."""
        if self.limit is not None and self.used + count > self.limit:
            raise MemoryError(f"{count} blocks asked for, {self.limit - self.used} of {self.limit} are free")
        out = []
        for _ in range(count):
            if self._free:
                out.append(heapq.heappop(self._free))
            else:
                out.append(self._made)
                self._made += 1
        self.used += count
        self.peak = max(self.peak, self.used)
        return out

    def give(self, blocks: list[int]) -> None:
        """Take blocks back."""
        self.used -= len(blocks)
        for block in blocks:
            heapq.heappush(self._free, block)

    def tensors(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [blocks, Hkv, D, size] and values [blocks, Hkv, size, Dv] of a layer, with room for all blocks in use.

        keys [Hkv, T, D], values [Hkv, T, Dv]: new ones, for shapes and dtype.
        """
        pair = self._layers.get(layer)
        if pair is None or pair[0].shape[0] < self._made:
            pair = self._layers[layer] = self._grown(layer, keys, values)
        return pair

    def _grown(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for every block made so far.  One layer at a time: the peak is the pool plus one layer.

        On the CPU untouched pages take no memory, so capacity doubles; elsewhere it grows by a quarter.
        """
        old, spare = self._layers.get(layer), self._spare.pop(layer, None)
        if old is None and spare is not None and self._fits(spare, keys, values):
            self._capacity = max(self._capacity, spare[0].shape[0])
            return spare
        self.version = next(_VERSIONS)
        if self._made > self._capacity:
            lazy = keys.device.type == "cpu"
            self._capacity = max(self._made, 2 * self._capacity if lazy else self._capacity + self._capacity // 4, 64)
            if self.limit is not None:
                self._capacity = max(min(self._capacity, self.limit), self._made)
        n, heads = self._capacity, keys.shape[0]
        new = (
            _zeros((n, heads, keys.shape[2], self.size), keys),
            _zeros((n, heads, self.size, values.shape[2]), values),
        )
        if old is not None:
            for target, source in zip(new, old, strict=True):
                target[: source.shape[0]] = source
        return new

    def _fits(self, pair: tuple[torch.Tensor, torch.Tensor], keys: torch.Tensor, values: torch.Tensor) -> bool:
        """Whether tensors of before have room for every block made so far, and are of the right kind."""
        kinds = ((keys.shape[0], keys.shape[2], self.size), (values.shape[0], self.size, values.shape[2]))
        return pair[0].shape[0] >= self._made and all(
            old.shape[1:] == kind and old.dtype == new.dtype and old.device == new.device
            for old, new, kind in zip(pair, (keys, values), kinds, strict=True)
        )

    @property
    def covers(self) -> bool:
        """Whether every layer has room for all blocks in use: a forward will allocate nothing."""
        return bool(self._layers) and all(keys.shape[0] >= self._made for keys, _ in self._layers.values())

    def clear(self, keep: bool = False) -> None:
        """Forget all blocks and give the memory back.

        keep: on a device that is not the CPU, do not give it back but begin anew in the same place, which is what
        captured graphs know.
        """
        layers = {**self._spare, **self._layers}
        self._spare = {n: p for n, p in layers.items() if p[0].device.type != "cpu"} if keep else {}
        with torch.inference_mode():
            for tensor in (t for pair in self._spare.values() for t in pair):
                tensor.zero_()
        if not self._spare:
            self.version = next(_VERSIONS)
        self.used, self._made, self._capacity, self._free = 0, 0, 0, []
        self._layers.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that were ever in use since the last `clear` (on the CPU: what is resident)."""
        return sum(t[: self._made].numel() * t.element_size() for pair in self._layers.values() for t in pair)

    @property
    def cell_bytes(self) -> int:
        """Bytes that one token takes in all layers; 0 before the first forward."""
        return sum(t[0].numel() * t.element_size() for pair in self._layers.values() for t in pair) // self.size

    @property
    def layer_bytes(self) -> int:
        """Bytes that one token takes in the widest layer; 0 before the first forward."""
        pairs = self._layers.values()
        return max((sum(t[0].numel() * t.element_size() for t in p) for p in pairs), default=0) // self.size


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    # Pages of its own: they cost nothing until they are written, and go back to the system when the tensor does (freed
    # heap memory stays resident, and what a pool outgrows would add up to its size).
    size = max(1, math.prod(shape)) * like.element_size()
    if hasattr(mmap, "MAP_PRIVATE"):  # not on Windows
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        pages = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(pages, dtype=like.dtype, count=math.prod(shape)).view(shape)
