"""Contexts as a tree of spans: what several contexts begin with is one span that all of them read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.rows import TokenBuffer

Ids = NDArray[np.int32]


class Table(NamedTuple):
    """Where cells are, block by block: i32 arrays of one length.  `base` is the position of a block's first cell."""

    blocks: NDArray[np.int32]
    fills: NDArray[np.int32]
    base: NDArray[np.int32]


_EMPTY = Table(*(np.zeros(0, np.int32) for _ in range(3)))


class Span:
    """Ids of positions `start`, `start + 1`, ... behind the first `start` positions of `parent`, and their blocks.

    filled: how many of the ids have their keys and values in the blocks.  A frozen span gets no further ids (a prompt);
    only such a one is computed on behalf of several contexts.  logits [V]: those of a frozen span's last id, kept for
    contexts that are equal to it.  Cells are only ever appended, so a child may hang at any filled (or, of a frozen
    span, any) position and needs nothing but the first `child.start` positions of the path.
    """

    __slots__ = ("_chain", "blocks", "children", "filled", "frozen", "holders", "ids", "logits", "parent", "start")

    def __init__(self, parent: Span | None, start: int, ids: Ids | Sequence[int], frozen: bool) -> None:
        self.parent, self.start, self.frozen = parent, start, frozen
        self.ids = TokenBuffer(max(len(ids), 64))
        self.ids.extend(ids)
        self.filled = 0
        self.blocks: list[int] = []
        self.children: set[Span] = set()
        self.holders = 0
        self.logits: torch.Tensor | None = None
        self._chain: Table | None = None
        if parent is not None:
            parent.children.add(self)

    @property
    def end(self) -> int:
        return self.start + len(self.ids)

    def table(self, count: int, size: int) -> Table:
        """Blocks of the whole path up to this span's first `count` cells, which must have their blocks."""
        if self._chain is None:
            # The parents' part is fixed from now on: blocks do not move and cells are only appended.
            parent = self.parent
            self._chain = _EMPTY if parent is None else parent.table(self.start - parent.start, size)
        if not count:
            return self._chain
        used = -(-count // size)
        fills = np.full(used, size, np.int32)
        fills[-1] = count - (used - 1) * size
        base = np.arange(self.start, self.start + used * size, size, dtype=np.int32)
        own = Table(np.array(self.blocks[:used], np.int32), fills, base)
        if not len(self._chain.blocks):
            return own
        return Table(*(np.concatenate(pair) for pair in zip(self._chain, own, strict=True)))

    def path(self) -> list[tuple[Span, int]]:
        """The spans of the whole context from the root on, each with the number of its ids that belong to it."""
        out: list[tuple[Span, int]] = [(self, len(self.ids))]
        span: Span = self
        while (parent := span.parent) is not None:
            out.append((parent, span.start - parent.start))
            span = parent
        return out[::-1]


class SpanTree:
    """All spans of an engine.  A span lives as long as a row holds it or a child hangs on it."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.roots: set[Span] = set()

    @property
    def filled(self) -> int:
        """Tokens whose keys and values are there; those that several contexts share count once."""
        total, level = 0, list(self.roots)
        while level:
            span = level.pop()
            total += span.filled
            level += span.children
        return total

    def add(self, parent: Span | None, start: int, ids: Ids | Sequence[int] = (), *, frozen: bool = False) -> Span:
        """A new span behind the first `start` positions of `parent`'s path; hold it, or it is lost."""
        while parent is not None and start <= parent.start and parent.parent is not None:
            parent = parent.parent  # nothing of `parent` is used
        if not start:
            parent = None
        span = Span(parent, start, ids, frozen)
        if parent is None:
            self.roots.add(span)
        return span

    def hold(self, span: Span) -> Span:
        span.holders += 1
        return span

    def drop(self, span: Span) -> None:
        """A holder lets go: cells that nobody else needs are freed."""
        span.holders -= 1
        self._trim(span)

    def grow(self, span: Span, count: int) -> None:
        """Blocks for the first `count` cells of `span`."""
        missing = self.missing(span, count)
        if missing > 0:
            span.blocks += self.pool.take(missing)

    def missing(self, span: Span, count: int) -> int:
        return -(-count // self.pool.size) - len(span.blocks)

    def cut(self, span: Span, length: int) -> bool:
        """Take back the ids behind the first `length` of a span; False where a child needs more of them."""
        if any(child.start - span.start > length for child in span.children):
            return False
        self._shorten(span, length)
        return True

    def clear(self, keep: bool = False) -> None:
        """Forget all spans; holders must forget them as well.  keep: as `BlockPool.clear` has it."""
        self.roots.clear()
        self.pool.clear(keep)

    def match(self, ids: Ids, least: int) -> tuple[Span | None, int]:
        """The span in which the longest known beginning of `ids` ends, and its length; (None, 0) if it is < `least`.

        Cells that are still to be computed count in frozen spans: whoever needs them first computes them.
        """
        if self.pool.sharing == "nowhere":
            return None, 0
        ends = self.pool.sharing == "ends"
        best: Span | None = None
        length = 0
        level: set[Span] | list[Span] = self.roots
        while level:
            longest, at = None, length
            for span in level:
                if span.start > length or span.start + len(span.ids) <= at:
                    continue
                known = span.ids.view() if span.frozen else span.ids.view()[: span.filled]
                reach = span.start + common_prefix(known, ids[span.start :])
                if ends and not (span.frozen and reach == span.end):
                    continue
                # Of equals the frozen one: its last logits are kept.
                if reach > at or (reach == at and longest is not None and span.frozen and not longest.frozen):
                    longest, at = span, reach
            if longest is None:
                break
            best, length = longest, at
            level = list(longest.children)
        return (best, length) if length >= max(1, least) else (None, 0)

    def _trim(self, span: Span) -> None:
        while not span.holders:
            if span.children:
                needed = max(child.start for child in span.children) - span.start
                if needed < len(span.ids):
                    self._shorten(span, needed)
                return
            self.pool.give(span.blocks)
            span.blocks = []
            parent = span.parent
            if parent is None:
                self.roots.discard(span)
                return
            parent.children.discard(span)
            span = parent

    def _shorten(self, span: Span, length: int) -> None:
        if length < len(span.ids):
            span.logits = None
        span.ids.cut(length)
        span.filled = min(span.filled, length)
        keep = -(-length // self.pool.size)
        self.pool.give(span.blocks[keep:])
        del span.blocks[keep:]


def common_prefix(a: Ids, b: Ids) -> int:
    """Number of leading ids that `a` and `b` have in common."""
    n = min(len(a), len(b))
    if not n or a[0] != b[0]:
        return 0
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
