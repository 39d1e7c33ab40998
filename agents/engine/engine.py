"""The rollout engine: rows of token ids in, sampled token ids out, any number of rows at a time.

Knows nothing of text, tools or environments.  Each row is an episode: `start` it, `submit` prompt or observation ids,
`step` until its turn is finished, and so on.  Keys and values stay in the pool across turns, so a turn feeds the new
ids only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.base import Completion, Finished, SamplingParams
from toolstep.agents.engine.cached import suited
from toolstep.agents.engine.contexts import Contexts
from toolstep.agents.engine.drawing import draw, logits_of
from toolstep.agents.engine.interface import EngineStats, Ids, Partial, Ticket
from toolstep.agents.engine.rows import Allow, Row, TokenBuffer, Turn, Until
from toolstep.agents.engine.scheduler import Batch, Scheduler
from toolstep.agents.engine.spans import SpanTree


class Engine:
    """Continuous batching for a transformers causal LM; a `TokenEngine`.

    model: any causal LM of transformers: packed where its attention goes through AttentionInterface, else on caches of
    its own, row by row (the log says so); UnsupportedModel where neither gives the model's own logits.
    max_context: longest context in tokens (default: the model's max_position_embeddings).
    chunk: most tokens of prompts and observations in one forward; bounds the memory of activations.
    share_min: a common beginning of fewer tokens than this is computed again rather than shared.
    kv_tokens: budget of keys and values, in tokens; None: what is needed.  A turn waits where there is no room, and the
    youngest gives up its memory where there is still too little; a context longer than the budget does not exist
    (`max_context` says so).
    max_running: most turns that run at a time; None: no limit.
    block: cells of a block.  verify: compare a few logits with the model's own forward at construction.
    pack: keep the weights of linear layers in the layout of the CPU's matrix kernels as well (faster; a second copy of
    them); None: where the device is a CPU that has such kernels.

    A row's seed alone decides what is sampled in its episode.  Logits of a row can differ in the last bits with the
    number of rows (the matrix kernels differ), which changes a sample only where a uniform number falls between the two
    roundings, about once in a million tokens in fp32.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_context: int | None = None,
        chunk: int | None = None,
        share_min: int = 32,
        kv_tokens: int | None = None,
        max_running: int | None = None,
        block: int = 32,
        pack: bool | None = None,
        verify: bool = True,
    ) -> None:
        for name, value in (("kv_tokens", kv_tokens), ("max_running", max_running), ("block", block), ("chunk", chunk)):
            if value is not None and value < 1:
                raise ValueError(f"Engine: {name} must be a positive number, got {value}")
        self.packed = suited(model, max_context, pack, verify)
        limit = None if kv_tokens is None else kv_tokens // block
        if limit is not None and limit < 2:
            raise ValueError(f"Engine: kv_tokens must hold two blocks of {block} tokens at least, got {kv_tokens}")
        self.pool = self.packed.pool(block, limit)
        # One block to spare: a context in two spans may fill neither one's last block.
        self._max_context = (
            self.packed.max_context if limit is None else min(self.packed.max_context, (limit - 1) * block)
        )
        tokens = chunk or (512 if self.packed.device.type == "cpu" else 4096)
        self.scheduler = Scheduler(SpanTree(self.pool), self.packed.quota(tokens), share_min, max_running)
        self.contexts = Contexts(self.scheduler, self.packed.vocabulary)
        self.weight_version = 0
        self._stats = EngineStats()
        self._tickets: dict[Ticket, Turn] = {}
        self._next = 0
        self._done: list[Finished] = []

    @property
    def max_context(self) -> int:
        """Longest context of a row, in tokens."""
        return self._max_context

    @property
    def stats(self) -> EngineStats:
        """Counters, brought up to date."""
        self._stats.shared, self._stats.preemptions = self.scheduler.shared, self.scheduler.preemptions
        return self._stats

    @property
    def busy(self) -> bool:
        """Whether a turn is waiting, running, or finished and not collected by `step` yet."""
        return bool(self._tickets or self._done)

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row` with an empty context."""
        state = self.scheduler.rows.get(row)
        if state is None:
            self.scheduler.rows[row] = Row(seed)
            return
        self.new_segment(row)
        state.reseed(seed)

    def release(self, row: int) -> None:
        """Forget `row` and free its memory.  Unknown rows are fine."""
        state = self.scheduler.rows.get(row)
        if state is not None:
            self._stop(state)
            self.scheduler.forget(state)
            del self.scheduler.rows[row]

    def started(self, row: int) -> bool:
        """Whether `row` is in an episode."""
        return row in self.scheduler.rows

    def context(self, row: int) -> NDArray[np.int32]:
        """The ids of the row's context, i32[T] (a copy)."""
        return self.contexts.row(row).ids.view().copy()

    def extend(self, row: int, ids: Ids) -> None:
        """Append ids that were not sampled (a prompt, an observation); they are computed with the row's next turn."""
        self.contexts.extend(row, ids)

    def new_segment(self, row: int) -> None:
        """Empty the row's context within its episode: the random numbers and the penalised ids go on."""
        state = self.contexts.row(row)
        self._stop(state)
        if state.leaf is not None:
            self.scheduler.forget_stale(state)
            state.stale, state.leaf = state.leaf, None
        state.ids = TokenBuffer()

    def rewind(self, row: int, length: int) -> None:
        """Take back all ids behind the first `length` of the row's context (of an `extend` that came to nothing)."""
        self.contexts.rewind(row, length)

    def fork(self, row: int, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of `rows` with the context of `row`: shared, not copied, not computed again.

        The penalties count what `row` has sampled in the context; random numbers come from each one's own seed.
        """
        if row not in rows:
            for other in rows:
                self.release(other)
        self.contexts.fork(row, rows, seeds)

    def submit(
        self,
        row: int,
        new_ids: Ids,
        sampling: SamplingParams,
        stop_ids: Collection[int] = (),
        *,
        allow: Allow | None = None,
        until: Until | None = None,
    ) -> Ticket:
        """Append ids to the row's context and queue one turn.

        stop_ids: the turn ends after one of these; the id is part of the turn.
        allow: called with the turn's ids so far; bool[V] of the ids that may come next, None: any (constrained
        decoding).  until: called with the turn's ids after each; True ends the turn with "stop" (stop strings: the
        caller decodes).

        finish_reason: "stop"; "length" where `max_new_tokens` or the context is used up (0 tokens are legal: the
        context may be longer than `max_context` already); "abort" with no tokens where the context is empty.
        """
        state = self.contexts.row(row)
        before = len(state.ids), len(state.sampled)
        self.extend(row, new_ids)
        length = len(state.ids)
        limit = 0 if not length else max(0, min(sampling.max_new_tokens, self.max_context - length))
        turn = Turn(self._next, row, state, sampling, limit, frozenset(stop_ids), before, allow, until)
        self._next += 1
        if limit:
            self.contexts.need_logits(state)
            self._tickets[turn.ticket] = state.turn = turn
            self.scheduler.add(turn)
        else:
            turn.finish = "length" if length else "abort"
            self._done.append(Finished(turn.ticket, row, turn.completion(self.weight_version)))
        return turn.ticket

    def cancel(self, ticket: Ticket) -> None:
        """Stop a turn: context, random numbers and penalised ids are those of before `submit`.

        A ticket that is finished, cancelled or unknown is fine.
        """
        turn = self._tickets.pop(ticket, None)
        if turn is not None:
            self.scheduler.remove(turn)
            turn.state.turn = None
            self.rewind(turn.row, turn.before[0])
            del turn.state.sampled[turn.before[1] :]

    def partial(self, ticket: Ticket, first: int = 0) -> Partial:
        """What a turn under way has sampled so far, from its id number `first` on; nothing for any other ticket."""
        turn = self._tickets.get(ticket)
        if turn is None:
            return Partial([], [], [])
        return Partial(turn.tokens[first:], turn.logprobs[first:], turn.top[first:])

    def step(self) -> list[Finished]:
        """Run one forward of everything that can be computed now; the turns that ended since the last call.

        Raises RowFailed where the model's logits are not finite, or where an `allow` or `until` raises or allows
        nothing: it names the row, nothing is lost, and the turns are computed anew at the next call (`release` or
        `cancel` that one before, and the others go on).
        """
        done, self._done = self._done, []
        if self._tickets:
            try:
                with self.packed.rollout_mode():
                    self._advance(self.scheduler.compose(), done)
            except BaseException:
                self._done = done
                self.drop_cache()  # it may hold NaN
                raise
        return done

    def generate(
        self,
        rows: Sequence[int],
        sampling: SamplingParams | Sequence[SamplingParams],
        stop_ids: Collection[int] = (),
        *,
        allow: Sequence[Allow | None] | None = None,
        until: Sequence[Until | None] | None = None,
    ) -> list[Completion]:
        """Sample one turn for each of `rows` and wait for all; results in their order.

        sampling: for all rows, or one for each (that is how rows get limits of their own).  allow, until: one for each
        row.  stop_ids, finish_reason: as in `submit`.  A failure (not-finite logits, an interrupt) leaves every row as
        it was before the call.
        """
        params = [sampling] * len(rows) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(params) != len(rows) or len(set(rows)) != len(rows):
            raise ValueError(
                f"generate: expected distinct rows and one SamplingParams for each, got rows {list(rows)} "
                f"and {len(params)} params"
            )
        tickets: dict[Ticket, int] = {}
        out: list[Completion | None] = [None] * len(rows)
        others: list[Finished] = []
        try:
            for i, (row, one) in enumerate(zip(rows, params, strict=True)):
                only = None if allow is None else allow[i]
                end = None if until is None else until[i]
                tickets[self.submit(row, (), one, stop_ids, allow=only, until=end)] = i
            while any(c is None for c in out):
                for finished in self.step():
                    if finished.ticket in tickets:
                        out[tickets[finished.ticket]] = finished.completion
                    else:
                        others.append(finished)
        except BaseException:
            for ticket, i in tickets.items():
                self.cancel(ticket)
                done = out[i]
                if done is not None:  # this one was finished: take it back
                    state = self.contexts.row(rows[i])
                    self.rewind(rows[i], len(state.ids) - len(done.token_ids))
                    del state.sampled[len(state.sampled) - len(done.token_ids) :]
            self._done = [f for f in self._done if f.ticket not in tickets]
            self.drop_cache()  # it may hold cells of ids that were taken back
            raise
        finally:
            self._done = others + self._done
        return [c for c in out if c is not None]

    def update_weights(self, state: Mapping[str, torch.Tensor] | None = None) -> int:
        """Take new weights (None: the model was changed in place), drop all keys and values; the new weight version.

        Contexts are computed again from their ids when they sample next; a turn that is under way goes on.
        """
        if state is not None:
            self.packed.load(state)
        self.packed.weights_changed()
        self.scheduler.drop_all(keep=True)
        self.weight_version += 1
        return self.weight_version

    def drop_cache(self) -> None:
        """Forget all keys and values; contexts stay."""
        self.scheduler.drop_all()

    @property
    def live_tokens(self) -> int:
        """Tokens whose keys and values are held; those that several contexts share count once."""
        return self.scheduler.tree.filled

    def _stop(self, state: Row) -> None:
        if state.turn is not None:
            self.cancel(state.turn.ticket)

    def _advance(self, batch: Batch, done: list[Finished]) -> None:
        """Run a forward and draw one id for each turn that can have one."""
        wanted = sorted({want.feed for want in batch.wants if want.feed >= 0} | {feed for _, feed in batch.kept})
        place = {feed: i for i, feed in enumerate(wanted)}
        logits = None
        if batch.feeds:
            replayed = self.packed.replayed
            logits = self.packed.forward(self.pool, batch.feeds, wanted)
            for span, first, count in batch.feeds:
                span.filled = max(span.filled, first + count)
            self._stats.forwards += 1
            self._stats.fed += sum(feed.length for feed in batch.feeds) + self.packed.replayed - replayed
            for span, feed in batch.kept:
                span.logits = logits[place[feed]].clone()
        if not batch.wants:
            return
        turns = [want.turn for want in batch.wants]
        draw(turns, logits_of(batch.wants, logits, place), self.weight_version)
        self._finish(turns, done)

    def _finish(self, turns: Sequence[Turn], done: list[Finished]) -> None:
        self._stats.sampled += len(turns)
        for turn in turns:
            if turn.finish is not None:
                self.scheduler.remove(turn)
                del self._tickets[turn.ticket]
                turn.state.turn = None
                done.append(Finished(turn.ticket, turn.row, turn.completion(self.weight_version)))
