"""Caches as transformers models make them: copied, stacked and taken apart without knowing their kind.

A cache is a tree of objects, lists, tuples and dicts whose leaves are tensors `[rows, ...]` and plain values such as
lengths (which may be tensors of no dimension).  Two caches can be stacked where they differ in nothing but what is in
the former.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig

from toolstep.agents.engine.blocks import BlockPool


class State(NamedTuple):
    """The cache of one context after its first `length` ids."""

    cache: Any
    length: int


class StatePool(BlockPool):
    """Blocks are counted as ever, but hold nothing: a span's state is one cache, kept by the span's first block.

    Such a cache is that of the whole context, and what it was before is lost.  So a context can go on from another's
    only at the end of a prompt, of which a copy is made; with a limit it can't at all, or the copies would exceed it.
    """

    def __init__(self, size: int, limit: int | None) -> None:
        super().__init__(size, limit)
        self.sharing = "ends" if limit is None else "nowhere"
        self.states: dict[int, State] = {}

    def give(self, blocks: list[int]) -> None:
        super().give(blocks)
        for block in blocks:
            self.states.pop(block, None)

    def clear(self, keep: bool = False) -> None:
        super().clear(keep)
        self.states.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of all caches."""
        return sum(t.numel() * t.element_size() for state in self.states.values() for t in tensors(state.cache))

    @property
    def cell_bytes(self) -> int:
        """Bytes of all caches by the ids that they are of: a recurrent state does not grow with them."""
        return self.nbytes // max(1, sum(state.length for state in self.states.values()))


def clone(cache: Any) -> Any:
    """A copy that shares no memory."""
    return _rebuild(torch.Tensor.clone, [cache])


def stack(caches: Sequence[Any]) -> Any:
    """One cache of all rows, in order; their `kind` must be the same."""
    return caches[0] if len(caches) == 1 else _rebuild(lambda *parts: torch.cat(parts), caches)


def unstack(cache: Any, rows: int) -> list[Any]:
    """The caches of the single rows; none holds on to the memory of the others."""
    if rows == 1:
        return [cache]
    return [_rebuild(lambda t, i=i: t[i : i + 1].clone(), [cache]) for i in range(rows)]


def kind(cache: Any) -> Hashable:
    """What two caches must have in common to be stacked."""
    return tuple(_kind(leaf) for leaf in _leaves(cache))


def tensors(cache: Any) -> list[torch.Tensor]:
    """All tensors of a cache, always in the same order."""
    return [x for x in _leaves(cache) if isinstance(x, torch.Tensor)]


def _kind(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return (tuple(leaf.shape), leaf.dtype, leaf.device) if leaf.ndim else str(leaf.item())
    plain: Any = leaf if isinstance(leaf, (bool, int, float, str)) else type(leaf)
    return str(plain)


def _parts(x: Any) -> dict[Any, Any] | None:
    """What an object is made of; None: it is a leaf."""
    if isinstance(x, (list, tuple)):
        return dict(enumerate(x))
    if isinstance(x, dict):
        return x
    if isinstance(x, (torch.Tensor, type, PreTrainedConfig, torch.nn.Module)) or callable(x):
        return None
    return getattr(x, "__dict__", None)


def _leaves(x: Any) -> Iterator[Any]:
    parts = _parts(x)
    if parts is None:
        yield x
    else:
        for part in parts.values():
            yield from _leaves(part)


def _rebuild(join: Callable[..., torch.Tensor], caches: Sequence[Any]) -> Any:
    """A cache like the first, in which each tensor is `join` of those that all caches have in its place."""
    first = caches[0]
    if isinstance(first, torch.Tensor):
        return join(*caches) if first.ndim else first.clone()
    parts = _parts(first)
    if parts is None:
        return first
    others = [_parts(cache) for cache in caches]
    new = {name: _rebuild(join, [other[name] for other in others if other is not None]) for name in parts}
    if isinstance(first, (list, tuple)):
        return type(first)(new.values())
    made = copy.copy(first)
    if isinstance(first, dict):
        made.update(new)
    else:
        made.__dict__ = new
    return made
