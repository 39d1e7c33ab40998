"""The batched decode engine: rows of token ids in, sampled token ids out.

Knows nothing of text, tools or environments.  Each row is an episode: `start` it, `extend` it with prompt or
observation ids, `generate` a turn, and so on.  Keys and values stay in the store across turns, so a turn
feeds the new ids only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.base import Completion, SamplingParams
from toolstep.agents.engine.attention import Feed, pack_order
from toolstep.agents.engine.cache import KVStore
from toolstep.agents.engine.packed import PackedModel
from toolstep.agents.engine.prefix import common_prefix, plan_sharing
from toolstep.agents.engine.rows import Job, Row
from toolstep.agents.engine.sampling import NonFiniteLogits, choose


@dataclass
class EngineStats:
    """Counters since the engine was made: tokens fed through the model, cells copied instead, ids sampled,
    forwards.
    """

    fed: int = 0
    copied: int = 0
    sampled: int = 0
    forwards: int = 0


class Engine:
    """Batched sampling from a transformers causal LM, with a KV cache a row.

    model: any causal LM whose attention goes through transformers' AttentionInterface (else
    UnsupportedModel).
    max_context: longest context in tokens (default: the model's max_position_embeddings).
    chunk: most tokens in one prefill forward; bounds the memory of activations.
    share_min: a common prefix of fewer tokens than this is computed again rather than copied from another
    row.
    verify: compare a few logits with the model's own forward at construction.

    A row's seed alone decides what is sampled in its episode.  Logits of a row can differ in the last bits
    with the number of rows (the matrix kernels differ), which changes a sample only where a uniform number
    falls between the two roundings, about once in a million tokens in fp32.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_context: int | None = None,
        chunk: int | None = None,
        share_min: int = 32,
        verify: bool = True,
    ) -> None:
        self.packed = PackedModel(model, max_context)
        self.chunk = chunk or (1024 if self.packed.device.type == "cpu" else 4096)
        self.share_min = share_min
        self.weight_version = 0
        self.stats = EngineStats()
        self.store = KVStore()
        self._rows: dict[int, Row] = {}
        self._free: list[int] = []
        if verify:
            self.packed.verify()

    @property
    def max_context(self) -> int:
        """Longest context of a row, in tokens."""
        return self.packed.max_context

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row` with an empty context."""
        state = self._rows.get(row)
        if state is not None:
            state.restart(seed)
            return
        slot = self._free.pop(0) if self._free else len(self._rows)
        self._rows[row] = Row(slot, seed)

    def release(self, row: int) -> None:
        """Forget `row`; its slot is given to the next new one.  Unknown rows are fine."""
        state = self._rows.pop(row, None)
        if state is not None:
            self._free.append(state.slot)
            self._free.sort()

    def started(self, row: int) -> bool:
        """Whether `row` is in an episode."""
        return row in self._rows

    def context(self, row: int) -> NDArray[np.int32]:
        """The ids of the row's context, i32[T] (a copy)."""
        return self._row(row).ids.view().copy()

    def extend(self, row: int, ids: NDArray[np.integer] | Sequence[int]) -> None:
        """Append ids that were not sampled (a prompt, an observation); they are computed at the next
        `generate`.
        """
        state = self._row(row)
        array = np.asarray(ids)
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise ValueError(f"row {row}: expected a 1-D array of integer ids, got {array.dtype}{list(array.shape)}")
        if array.size and (array.min() < 0 or array.max() >= self.packed.vocabulary):
            bad = int(array[(array < 0) | (array >= self.packed.vocabulary)][0])
            raise ValueError(
                f"row {row}: id {bad} is outside the model's vocabulary of {self.packed.vocabulary}; "
                "is this the tokenizer that belongs to the model?"
            )
        state.ids.extend(array)

    def new_segment(self, row: int) -> None:
        """Empty the row's context within its episode: the random numbers and the penalised ids go on."""
        self._row(row).new_segment()

    def rewind(self, row: int, length: int) -> None:
        """Take back all ids behind the first `length` of the row's context (of an `extend` that came to nothing)."""
        state = self._row(row)
        state.ids.cut(length)
        if state.stale is None:
            state.fed = min(state.fed, length)

    def generate(
        self,
        rows: Sequence[int],
        sampling: SamplingParams | Sequence[SamplingParams],
        stop_ids: Collection[int] = (),
    ) -> list[Completion]:
        """Sample one turn for each of `rows`; results in their order.

        sampling: for all rows, or one for each (that is how rows get limits of their own).
        stop_ids: a turn ends after one of these; the id is part of the turn.

        finish_reason: "stop"; "length" where `max_new_tokens` or the context is used up (0 tokens are legal: the
        context may be longer than `max_context` already); "abort" with no tokens where the context is empty.
        A failure (not-finite logits, an interrupt) leaves every row as it was before the call.
        """
        params = [sampling] * len(rows) if isinstance(sampling, SamplingParams) else list(sampling)
        if len(params) != len(rows) or len(set(rows)) != len(rows):
            raise ValueError(
                f"generate: expected distinct rows and one SamplingParams for each, got rows {list(rows)} "
                f"and {len(params)} params"
            )
        jobs = [self._job(r, p, frozenset(stop_ids)) for r, p in zip(rows, params, strict=True)]
        before = [(j.state, len(j.state.ids), len(j.state.sampled), j.state.uniforms.bit_generator.state) for j in jobs]
        live = [j for j in jobs if j.budget > 0]
        if live:
            try:
                with self.packed.rollout_mode():
                    self._run(live)
            except BaseException:
                for state, n_ids, n_sampled, generator in before:
                    state.ids.cut(n_ids)
                    del state.sampled[n_sampled:]
                    state.uniforms.bit_generator.state = generator
                self.drop_cache()  # it may hold NaN, or cells of ids that were taken back
                raise
        return [
            Completion(
                np.array(j.tokens, np.int32),
                np.array(j.logprobs, np.float32),
                np.array(j.model_logprobs, np.float32),
                j.finish,
                self.weight_version,
            )
            for j in jobs
        ]

    def update_weights(self, state: Mapping[str, torch.Tensor] | None = None) -> int:
        """Take new weights (None: the model object was changed in place), drop all keys and values, and
        return the new weight version.  Rows in an episode are computed again from their ids when they sample
        next.
        """
        if state is not None:
            self.packed.load(state)
        self.drop_cache()
        self.weight_version += 1
        return self.weight_version

    def drop_cache(self) -> None:
        """Forget all keys and values; contexts stay."""
        self.store.clear()
        for row in self._rows.values():
            row.drop_cells()

    def _row(self, row: int) -> Row:
        state = self._rows.get(row)
        if state is None:
            raise ValueError(f"row {row} has no episode: call start({row}, seed) first")
        return state

    def _job(self, row: int, params: SamplingParams, stop: frozenset[int]) -> Job:
        state = self._row(row)
        lost = not len(state.ids)
        budget = 0 if lost else max(0, min(params.max_new_tokens, self.max_context - len(state.ids)))
        return Job(
            row, state, replace(params, max_new_tokens=0), budget, stop, [], [], [], "abort" if lost else "length"
        )

    def _run(self, jobs: list[Job]) -> None:
        self.store.reserve(
            max(j.state.slot for j in jobs) + 1, max(len(j.state.ids) for j in jobs) + 1, self.max_context
        )
        logits = self._prefill(jobs)
        while True:
            self._sample(jobs, logits)
            jobs = [j for j in jobs if j.finish == "length" and len(j.tokens) < j.budget]
            if not jobs:
                return
            self.store.reserve(0, max(len(j.state.ids) for j in jobs), self.max_context)
            jobs.sort(key=lambda j: j.state.slot)
            logits = self._forward([(j, len(j.state.ids)) for j in jobs])

    def _prefill(self, jobs: list[Job]) -> torch.Tensor:
        """Compute what is missing of each context; logits of the last ids, in the order of `jobs`."""
        for job in jobs:
            self._reuse_cells(job.state)
        shares = plan_sharing([j.state.ids.view() for j in jobs], [j.state.fed for j in jobs], self.share_min)
        parts: dict[int, torch.Tensor] = {}
        for wave in range(max(s.wave for s in shares) + 1):
            todo = [i for i, s in enumerate(shares) if s.wave == wave]
            for i in todo:
                source, state = shares[i].source, jobs[i].state
                if source is not None:
                    self._copy_cells(jobs[source].state, state, shares[i].length)
            while todo:
                work, done, left = [], [], self.chunk
                for i in todo:
                    state = jobs[i].state
                    end = min(len(state.ids), state.fed + left)
                    left -= end - state.fed
                    work.append((jobs[i], end))
                    if end == len(state.ids):
                        done.append(i)
                    if not left:
                        break
                parts.update(zip(done, self._forward(work), strict=True))
                todo = todo[len(done) :]
        return torch.stack([parts[i] for i in range(len(jobs))])

    def _reuse_cells(self, state: Row) -> None:
        """Find cells for a context that is not in the store yet: the slot's own old ones, or another
        row's.
        """
        ids = state.ids.view()
        kept = min(common_prefix(ids, state.cells), len(ids) - 1)
        best, donor = kept, None
        if len(ids) - 1 - kept > self.share_min:
            for other in self._rows.values():
                if other is not state and other.fed > best + self.share_min:
                    length = min(common_prefix(ids, other.cells), len(ids) - 1)
                    if length > best + self.share_min:
                        best, donor = length, other
        state.keep_cells(kept)
        if donor is not None:
            self._copy_cells(donor, state, best)

    def _copy_cells(self, source: Row, target: Row, length: int) -> None:
        if length > target.fed:
            self.store.copy(source.slot, target.slot, target.fed, length)
            self.stats.copied += length - target.fed
            target.keep_cells(length)

    def _forward(self, work: Sequence[tuple[Job, int]]) -> torch.Tensor:
        """Feed each row's ids up to `end`; logits of the rows that are complete then, in the order of
        `work`.
        """
        feeds = [Feed(j.state.slot, j.state.fed, end - j.state.fed) for j, end in work]
        order = pack_order(feeds)
        ids: list[int] = []
        last = [0] * len(work)
        for i in order:
            job, end = work[i]
            ids.extend(job.state.ids.view()[job.state.fed : end].tolist())
            last[i] = len(ids) - 1
        keep = [last[i] for i, (job, end) in enumerate(work) if end == len(job.state.ids)]
        logits = self.packed.forward(self.store, [feeds[i] for i in order], ids, keep)
        for job, end in work:
            job.state.fed = end
        self.stats.forwards += 1
        self.stats.fed += len(ids)
        return logits

    def _sample(self, jobs: Sequence[Job], logits: torch.Tensor) -> None:
        """Draw one id for each job; rows with the same parameters are drawn together."""
        groups: dict[SamplingParams, list[int]] = {}
        for i, job in enumerate(jobs):
            groups.setdefault(job.params, []).append(i)
        for params, members in groups.items():
            uniforms = np.array([jobs[i].state.uniforms.random() for i in members])
            try:
                choice = choose(
                    logits if len(members) == len(jobs) else logits[members],
                    uniforms,
                    params,
                    [jobs[i].state.sampled for i in members],
                )
            except NonFiniteLogits as error:
                job = jobs[members[error.index]]
                raise FloatingPointError(
                    f"row {job.row}: the model's logits are not finite after {len(job.state.ids)} ids "
                    f"(weight version {self.weight_version}); the weights are probably broken by the last "
                    "update"
                ) from None
            for i, token, logprob, model_logprob in zip(members, *(c.tolist() for c in choice), strict=True):
                job = jobs[i]
                job.tokens.append(token)
                job.logprobs.append(logprob)
                job.model_logprobs.append(model_logprob)
                job.state.sampled.append(token)
                job.state.ids.extend((token,))
                if token in job.stop:
                    job.finish = "stop"
        self.stats.sampled += len(jobs)
