"""A causal LM that runs on caches of its own making: for models whose state is more than keys and values.

Recurrent and hybrid models (Mamba, Jamba, Qwen3-Next, ...) and those whose layers share keys and values keep what they
know of a context in a cache object that only they understand.  Each context has one.  Rows run together where their
caches can be stacked exactly, which needs equal numbers of new ids and, where there is attention, equal lengths; there
is no padding, for a recurrent state would take it for ids.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from toolstep.agents.engine.attention import UnsupportedModel
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.caches import State, StatePool, clone, kind, stack, tensors, unstack
from toolstep.agents.engine.causal import CausalModel, probe_ids
from toolstep.agents.engine.packed import PackedModel
from toolstep.agents.engine.plan import Feed
from toolstep.agents.engine.spans import Span

_LOG = logging.getLogger(__name__)
# What forward methods call the cache; the output has it under the same name.
_NAMES = ("cache", "past_key_values", "cache_params", "state")
_UNBOUNDED = 1 << 40


class _Job(NamedTuple):
    """Ids to run behind the first `start` ids of a context, of which `cache` is the state (None: there are none)."""

    cache: Any
    start: int
    ids: NDArray[np.int32]


class CachedModel(CausalModel):
    """Wraps any causal LM whose forward takes and returns a cache.

    continues: whether several ids at a time may follow a state.  Some recurrent layers begin from zero there; such a
    model gets a prompt in one piece, and observations id by id.
    """

    def __init__(self, model: Any, max_context: int | None = None, pack: bool | None = None) -> None:
        super().__init__(model, max_context, pack)
        self._tokens = 512
        self.stacks = self.continues = True
        try:
            with self.rollout_mode():
                self.continues = self._continues()
                self.stacks = self._stacks()
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
            if isinstance(error, UnsupportedModel):
                raise
            raise self.unsupported(f"its forward with a cache fails ({str(error).strip().splitlines()[0]})") from error

    def check(self, config: Any) -> None:
        name = next((name for name in _NAMES if name in self.parameters), None)
        if name is None:
            raise self.unsupported("its forward takes no cache")
        self._name = name

    def pool(self, size: int, limit: int | None) -> StatePool:
        return StatePool(size, limit)

    def quota(self, tokens: int) -> int:
        self._tokens = tokens
        return tokens if self.continues else _UNBOUNDED

    def forward(self, pool: BlockPool, feeds: Sequence[Feed], wanted: Sequence[int]) -> torch.Tensor:
        """One call of the model for each group of feeds whose caches can be stacked."""
        assert isinstance(pool, StatePool)
        logits: dict[int, torch.Tensor] = {}
        waiting = list(range(len(feeds)))
        while waiting:
            ready: list[int] = []
            later: list[int] = []
            touched: set[Span] = set()
            for i in waiting:  # a feed that goes on from another one of this forward comes after it
                path = {span for span, _ in feeds[i].span.path()}
                (later if path & touched else ready).append(i)
                touched.add(feeds[i].span)
            jobs = [self._job(pool, feeds[i]) for i in ready]
            groups: dict[Hashable, list[int]] = {}
            for k, job in enumerate(jobs):
                key = k if not self.stacks else (len(job.ids), None if job.cache is None else kind(job.cache))
                groups.setdefault(key, []).append(k)
            for members in groups.values():
                rows = iter(members)
                most = max(1, self._tokens // len(jobs[members[0]].ids))
                while part := list(islice(rows, most)):
                    out, caches = self._run([jobs[k] for k in part])
                    for k, row, cache in zip(part, out, caches, strict=True):
                        logits[ready[k]] = row
                        job, feed = jobs[k], feeds[ready[k]]
                        pool.states[feed.span.blocks[0]] = State(cache, job.start + len(job.ids))
            waiting = later
        if not wanted:
            return next(iter(logits.values()))[None][:0]
        return torch.stack([logits[i] for i in wanted])

    def _job(self, pool: StatePool, feed: Feed) -> _Job:
        """What has to run for a feed: its ids, and those before them whose state is not at hand."""
        span, position = feed.span, feed.span.start + feed.first
        cache, start = self._resume(pool, span, position)
        ids = span.ids.view()[feed.first : feed.first + feed.length]
        if start < position:
            before = np.concatenate([s.ids.view()[:upto] for s, upto in span.path()])[start:position]
            ids = np.concatenate((before, ids))
            self.replayed += position - start
        return _Job(cache, start, ids)

    def _resume(self, pool: StatePool, span: Span, position: int) -> tuple[Any, int]:
        """The state nearest before `position` on the path of `span`, for good: nobody else has it."""
        own = pool.states.pop(span.blocks[0], None)
        if own is not None and own.length <= position:
            return own
        limit, ancestor = span.start, span.parent
        while ancestor is not None:
            state = pool.states.get(ancestor.blocks[0]) if ancestor.blocks else None
            if state is not None and state.length <= limit:
                if pool.sharing == "nowhere":
                    return pool.states.pop(ancestor.blocks[0])
                return clone(state.cache), state.length
            limit, ancestor = min(limit, ancestor.start), ancestor.parent
        return None, 0

    def _run(self, jobs: Sequence[_Job]) -> tuple[torch.Tensor, list[Any]]:
        """Jobs that can be stacked: logits [n, V] of each one's last id, and the caches behind it."""
        ids = torch.from_numpy(np.stack([job.ids for job in jobs]).astype(np.int64)).to(self.device)
        starts = torch.tensor([[job.start] for job in jobs], device=self.device)
        cache = None if jobs[0].cache is None else stack([job.cache for job in jobs])
        count = ids.shape[1]
        if self.continues:
            step = max(1, self._tokens // len(jobs))
        else:
            step = count if cache is None else 1
        for first in range(0, count, step):
            part = ids[:, first : first + step]
            logits, cache = self._call(part, starts + first, cache)
        return logits, unstack(cache, len(jobs))

    def _call(self, ids: torch.Tensor, starts: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """ids [n, T], starts [n, 1] -> logits [n, V] of the last ids, and the cache."""
        arguments: dict[str, Any] = {} if cache is None else {self._name: cache}
        if "position_ids" in self.parameters:
            arguments["position_ids"] = starts + torch.arange(ids.shape[1], device=ids.device)
        if "logits_to_keep" in self.parameters:
            arguments["logits_to_keep"] = 1
        output = self.model(input_ids=ids, use_cache=True, **arguments)
        cache = getattr(output, self._name, None)
        if cache is None:
            raise self.unsupported("its forward returns no cache, so its state cannot be kept for each row")
        return output.logits[:, -1], cache

    def _continues(self) -> bool:
        """Whether logits and state are the same after two ids at once and after two single ones."""
        ids = torch.tensor([probe_ids(16, self.vocabulary)], device=self.device)
        found: list[list[torch.Tensor]] = []
        for cuts in ((0, 14, 16), (0, 14, 15, 16)):
            cache = None
            for first, end in pairwise(cuts):
                logits, cache = self._call(ids[:, first:end], torch.tensor([[first]], device=self.device), cache)
            found.append([logits, *tensors(cache)])
        return _alike(*found)

    def _stacks(self) -> bool:
        """Whether two rows that run together have the states that they have alone."""
        ids = torch.tensor([probe_ids(6, self.vocabulary)] * 2, device=self.device)
        ids[1] = ids[0].flip(0)
        jobs = [_Job(None, 0, row.cpu().numpy()[:5]) for row in ids]
        caches = [self._run([job])[1][0] for job in jobs]
        last = [_Job(cache, 5, row.cpu().numpy()[5:]) for cache, row in zip(caches, ids, strict=True)]
        if kind(caches[0]) != kind(caches[1]):
            return False
        try:
            together = self._run([job._replace(cache=clone(job.cache)) for job in last])[1]
        except (RuntimeError, ValueError, TypeError, IndexError):  # a tensor that is not [rows, ...]
            return False
        alone = [self._run([job])[1][0] for job in last]
        return all(
            kind(one) == kind(other) and _alike(tensors(one), tensors(other))
            for one, other in zip(together, alone, strict=True)
        )


def suited(model: Any, max_context: int | None, pack: bool | None, verify: bool) -> CausalModel:
    """The model as the engine can run it: packed, else on its own caches.  Raises UnsupportedModel.

    verify: compare a few logits with the model's own forward.
    """
    try:
        packed = PackedModel(model, max_context, pack)
        if verify:
            packed.verify()
        return packed
    except UnsupportedModel as error:
        reason = error
    try:
        cached = CachedModel(model, max_context, pack)
        cached.verify()
    except UnsupportedModel as error:
        if str(error) == str(reason):
            raise
        raise UnsupportedModel(f"{reason}; and without packing {str(error).partition(': ')[2]}") from None
    _LOG.warning(
        "%s; it runs on its own caches instead, rows together only where their caches have one shape%s",
        str(reason).replace("cannot run in the rollout engine", "cannot be packed", 1),
        "" if cached.continues else ", observations id by id",
    )
    return cached


def _alike(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Equal but for rounding, in half precision 1 % or so; a state that was begun anew differs by far more."""
    if [t.shape for t in some] != [t.shape for t in others]:
        return False
    limit = 1e-3 if all(t.dtype != torch.bfloat16 and t.dtype != torch.float16 for t in some) else 0.04
    pairs = [(a.double(), b.double()) for a, b in zip(some, others, strict=True)]
    return all(float((a - b).norm()) <= limit * (float(b.norm()) + 1e-6) for a, b in pairs)
