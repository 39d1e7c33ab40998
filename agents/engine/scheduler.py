"""Which turns run, what each forward computes, and who gives up memory when there is too little."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import NamedTuple

import torch

from toolstep.agents.engine.plan import Feed
from toolstep.agents.engine.rows import Row, Turn
from toolstep.agents.engine.spans import Span, SpanTree


class Want(NamedTuple):
    """A turn that samples after this forward: from the last id of `feeds[feed]`, or from logits that are at hand."""

    turn: Turn
    feed: int
    logits: torch.Tensor | None


class Batch(NamedTuple):
    """One forward: what is computed, and who samples from it.  `kept`: (span, feed) whose last logits are kept."""

    feeds: list[Feed]
    wants: list[Want]
    kept: list[tuple[Span, int]]


class Scheduler:
    """First come, first served, by ticket; every running turn takes part in every forward that it can.

    tokens: most tokens of prompts and observations in a forward beside one for each row that decodes (a share of it is
    kept for them however many rows decode).  share_min: common beginnings of fewer tokens are computed again.
    max_running: most turns that run at a time; None: no limit.

    Memory: a turn is admitted when its new ids fit beside one more block for every running turn.  Where the pool is
    full all the same, cells are given up in this order: those of contexts that are over, of rows between two turns, of
    the youngest running turns.  What was given up is computed again from its ids when its turn comes; nothing is lost.
    """

    def __init__(self, tree: SpanTree, tokens: int, share_min: int, max_running: int | None) -> None:
        self.tree = tree
        self.tokens = tokens
        self.share_min = share_min
        self.max_running = max_running
        self.rows: dict[int, Row] = {}
        self.waiting: list[Turn] = []  # by ticket
        self.running: list[Turn] = []  # by ticket
        self.preemptions = 0
        self.shared = 0  # tokens that were found instead of computed

    def add(self, turn: Turn) -> None:
        insort(self.waiting, turn, key=lambda t: t.ticket)

    def remove(self, turn: Turn) -> None:
        """The turn is over, finished or not."""
        (self.running if turn in self.running else self.waiting).remove(turn)

    def forget(self, row: Row) -> None:
        """Give up all cells of a row."""
        if row.leaf is not None:
            self.tree.drop(row.leaf)
            row.leaf = None
        self.forget_stale(row)

    def forget_stale(self, row: Row) -> None:
        if row.stale is not None:
            self.tree.drop(row.stale)
            row.stale = None

    def drop_all(self, keep: bool = False) -> None:
        """All keys and values are void: running turns begin anew from their ids.  keep: as `BlockPool.clear` has it."""
        self.tree.clear(keep)
        for row in self.rows.values():
            row.leaf = row.stale = None
        for turn in self.running:
            self.add(turn)
        self.running = []

    def compose(self) -> Batch:
        """The next forward.  No feeds and no wants: nothing can be done now (turns wait, or none is there)."""
        self._admit()
        batch = Batch([], [], [])
        planned: dict[Span, int] = {}
        where: dict[Span, int] = {}  # the feed that computes a span's last id
        quota = max(self.tokens - len(self.running), self.tokens // 8, 1)
        for turn in list(self.running):
            leaf = turn.state.leaf
            if leaf is None:
                continue  # it was preempted for an older one
            if (count := len(leaf.ids)) == 1 + leaf.filled and (count > 1 or leaf.parent is None):
                steps = [(leaf, count)]  # the usual case: decoding; what precedes is complete
            else:
                steps = leaf.path()
            ready = True
            for span, upto in steps:
                have = planned.get(span, span.filled)
                if have >= upto:
                    continue
                decode = span is leaf and upto - have == 1
                grant = 1 if decode else min(upto - have, quota)
                grant = self._room(turn, span, have, grant, first=not batch.feeds and not batch.wants)
                if not grant:
                    ready = False
                    break
                where[span] = len(batch.feeds)
                batch.feeds.append(Feed(span, have, grant))
                planned[span] = have + grant
                if span.frozen and have + grant == len(span.ids):
                    batch.kept.append((span, where[span]))
                if not decode:
                    quota -= grant
                if have + grant < upto:
                    ready = False
                    break
            if ready and turn.state.leaf is not None:
                last = next(span for span, upto in reversed(steps) if upto)
                batch.wants.append(Want(turn, where.get(last, -1), last.logits))
        return batch

    def _room(self, turn: Turn, span: Span, have: int, count: int, *, first: bool) -> int:
        """Make room for the next `count` ids of a span; how many of them have a block.

        The first turn of a forward gets what it needs, or loses its own cells to be computed anew as one span, which
        always fits.
        """
        if count <= 0:
            return 0
        tree = self.tree
        room = tree.pool.room()
        missing = tree.missing(span, have + count)
        if room is not None and missing > room and not self._reclaim(missing, turn):
            room = tree.pool.room() or 0
            count = min(count, (len(span.blocks) + room) * tree.pool.size - have)
            if count <= 0:
                if first and turn.state.leaf is not None and len(self.running) == 1:
                    self._preempt(turn)
                return 0
        tree.grow(span, have + count)
        return count

    def _admit(self) -> None:
        while self.waiting and (self.max_running is None or len(self.running) < self.max_running):
            turn = self.waiting[0]
            row = turn.state
            if row.leaf is None:
                self._place(row)
            leaf = row.leaf
            assert leaf is not None
            # Rows that hold the same frozen span count it once each: at worst a turn waits for a step too long.
            need = 1 + sum(max(0, self.tree.missing(span, upto)) for span, upto in leaf.path())
            room = self.tree.pool.room()
            if room is not None and need + len(self.running) > room:
                self._forget_first(self._over(), need + len(self.running))
                if not self.running:
                    self._forget_first(self._idle(but=row), need)
                elif need + len(self.running) > (self.tree.pool.room() or 0):
                    return
            self.waiting.pop(0)
            insort(self.running, turn, key=lambda t: t.ticket)

    def _place(self, row: Row) -> None:
        """Find the beginning of a context in the tree; the rest becomes a span that later contexts may share."""
        ids = row.ids.view()
        span, length = self.tree.match(ids, self.share_min)
        if length == len(ids):
            ends = span is not None and span.frozen and span.end == length
            if not ends or (span is not None and span.filled == len(span.ids) and span.logits is None):
                length -= 1  # somebody has to compute the logits of the last id
        if length < len(ids):
            span = self.tree.add(span if length else None, length, ids[length:], frozen=True)
        self.shared += length
        row.leaf = self.tree.hold(self.tree.add(span, len(ids)))
        self.forget_stale(row)

    def _reclaim(self, blocks: int, turn: Turn) -> bool:
        """Free memory until there is room for `blocks`, at the cost of younger turns than `turn` at most."""
        if self._forget_first(self._over(), blocks) or self._forget_first(self._idle(), blocks):
            return True
        for victim in reversed(list(self.running)):
            if victim.ticket <= turn.ticket:
                return False
            self._preempt(victim)
            if (self.tree.pool.room() or 0) >= blocks:
                return True
        return False

    def _preempt(self, turn: Turn) -> None:
        self.forget(turn.state)
        self.running.remove(turn)
        self.add(turn)
        self.preemptions += 1

    def _over(self) -> list[Row]:
        """Rows that hold cells of a context that is over."""
        return [row for row in self.rows.values() if row.stale is not None]

    def _idle(self, but: Row | None = None) -> list[Row]:
        """Rows that hold cells and do not run (`but` is about to), the last that began first."""
        busy = {id(turn.state) for turn in self.running} | {id(but)}
        return [r for r in reversed(self.rows.values()) if r.leaf is not None and id(r) not in busy]

    def _forget_first(self, rows: Iterable[Row], blocks: int) -> bool:
        for row in rows:
            if (self.tree.pool.room() or 0) >= blocks:
                return True
            if row.stale is not None:
                self.forget_stale(row)
            else:
                self.forget(row)
        return (self.tree.pool.room() or 0) >= blocks
