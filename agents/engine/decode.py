"""Decode steps in fixed shapes, so that a device can replay them without the host.

A decode step of a small model is some thousand launches of a few microseconds each: on a GPU the host decides how long
it takes.  Where each feed is one token, the forward runs on a `StaticPlan` instead, which a CUDA graph can hold.
Steps with prompts or observations take the general path, and so does everything where this one is not believed.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from toolstep.agents.engine.adapters import switches
from toolstep.agents.engine.attention import active_static
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.causal import probe_ids
from toolstep.agents.engine.graphs import Compute, Graphs, Waits
from toolstep.agents.engine.plan import Feed
from toolstep.agents.engine.spans import SpanTree
from toolstep.agents.engine.static import StaticPlan, bucket, numbers

if TYPE_CHECKING:
    from toolstep.agents.engine.packed import PackedModel

_LOG = logging.getLogger(__name__)
# Most bytes of keys and values that a layer may gather; where contexts are so long, launches are no longer what counts,
# and the general path reads shared blocks once.
_GATHERED = 1 << 30


class _Step(NamedTuple):
    plan: StaticPlan
    run: Compute


class StaticDecode:
    """Runs what a packed model decodes in fixed shapes, one captured forward for each size of a step.

    Believed only after its logits were compared with those of the general path, and as long as the weights stay where
    they are.

    on: whether to; on CUDA, where launches are what counts.  capture: makes a forward out of one that was run.
    """

    def __init__(self, model: PackedModel) -> None:
        self._model: PackedModel = weakref.proxy(model)  # its owner: in a cycle weights would wait for the collector
        self.on = model.device.type == "cuda"
        self.capture: Callable[[Compute], Compute] = Graphs(model.device) if self.on else _as_it_is
        self._steps: dict[tuple[int, int], _Step | None] = {}
        self._version = -1
        self._layout: Hashable = None
        self._changed = self._untried = True
        self._refused = ""
        self._said: set[str] = set()

    def weights_changed(self) -> None:
        """Look, before the next step, whether weights are where they were."""
        self._changed = True

    def forward(self, pool: BlockPool, feeds: Sequence[Feed], wanted: Sequence[int]) -> torch.Tensor | None:
        """As `CausalModel.forward`; None: not here.  The logits are good until the next step."""
        if any(feed.length != 1 for feed in feeds) or not pool.covers:
            return None
        if self._changed:
            self._changed = False
            layout = _layout(self._model)
            self._untried = self._untried or bool(self._refused) or layout != self._layout
            self._layout = layout
        try:
            if self._untried:
                self._try(pool.size)
            logits = None if self._refused else self._run(pool, feeds)
        except RuntimeError as error:  # of memory, or of what cannot be captured
            self._refuse(str(error).strip().partition("\n")[0])
            return None
        if logits is None or list(wanted) == list(range(len(logits))):
            return logits
        return logits[list(wanted)]

    def _run(self, pool: BlockPool, feeds: Sequence[Feed]) -> torch.Tensor | None:
        """Logits [len(feeds), V]; None where the step is too large."""
        if pool.version != self._version:
            self._steps.clear()
            self._version = pool.version
        tables, longest = numbers(pool, feeds)
        key = (bucket(len(feeds)), bucket(longest))
        if key not in self._steps:
            self._steps[key] = None
            if key[0] * key[1] * pool.size * pool.layer_bytes <= _GATHERED:
                plan = StaticPlan(pool, *key, self._model.device)
                plan.fill(feeds, tables)
                self._steps[key] = _Step(plan, self.capture(lambda: self._compute(plan)))
        step = self._steps[key]
        if step is None:
            return None
        step.plan.fill(feeds, tables)
        return step.run()[: len(feeds)]

    def _compute(self, plan: StaticPlan) -> torch.Tensor:
        """Logits [rows, V]."""
        plan.begin()
        with active_static(plan):
            logits: torch.Tensor = self._model.model(
                input_ids=plan.ids.contiguous(), position_ids=plan.positions.contiguous(), use_cache=False
            ).logits
        return logits[0]

    def _try(self, size: int) -> None:
        """Let it show that it waits for nothing and computes what the general path does: two rows with one beginning,
        of which two tokens each are decoded.
        """
        self._untried, self._refused = False, ""
        model = self._model
        devices = {t.device for t in (*model.model.parameters(), *model.model.buffers())}
        n = min(24, model.max_context)
        if len(devices) > 1 or n < 8:
            return self._refuse("the weights are on several devices" if n >= 8 else "contexts are too short to try")
        ids, half = probe_ids(n, model.vocabulary), n // 2
        tree = SpanTree(BlockPool(size))
        trunk = tree.hold(tree.add(None, 0, ids[:half]))
        rows = [tree.hold(tree.add(trunk, half - k, ids[half - k :])) for k in (0, 1)]
        for span in (trunk, *rows):
            tree.grow(span, len(span.ids))
        ends = [len(row.ids) for row in rows]
        model.general(tree.pool, [Feed(trunk, 0, half), *(Feed(r, 0, e - 2) for r, e in zip(rows, ends))], [])
        found: list[tuple[torch.Tensor, torch.Tensor]] = []
        for behind in (2, 1):
            feeds = [Feed(row, end - behind, 1) for row, end in zip(rows, ends, strict=True)]
            plain = model.general(tree.pool, feeds, [0, 1]).float()
            if not found and (waits := self._waits(tree.pool, feeds)):
                return self._refuse(f"the model's forward cannot be captured ({waits})")
            logits = self._run(tree.pool, feeds)
            if logits is None:
                return self._refuse("the step is too large")
            found.append((plain, logits.float().clone()))
        plain, logits = (torch.cat(parts) for parts in zip(*found, strict=True))
        error = float((logits - plain).abs().mean() / (plain.std() + 1e-6))
        if not error <= (1e-4 if model.model.dtype == torch.float32 else 0.05):
            self._refuse(f"its logits differ (relative error {error:.2g})")
        return None

    def _waits(self, pool: BlockPool, feeds: Sequence[Feed]) -> str:
        """An operation of the forward that no graph can hold; empty: there is none."""
        tables, longest = numbers(pool, feeds)
        plan = StaticPlan(pool, bucket(len(feeds)), bucket(longest), self._model.device)
        plan.fill(feeds, tables)
        with Waits() as seen:
            self._compute(plan)
        return seen.found[0] if seen.found else ""

    def _refuse(self, reason: str) -> None:
        """Take the general path until there are other weights."""
        self._refused = reason
        self._steps.clear()
        if reason not in self._said:
            self._said.add(reason)
            _LOG.info("decode steps of %s take the general path, without CUDA graphs: %s", self._model.name, reason)


def _as_it_is(compute: Compute) -> Compute:
    return compute


def _layout(model: PackedModel) -> Hashable:
    """What a captured forward took from the weights: where and what they are, and how adapters are set."""
    tensors = (*model.model.parameters(), *model.model.buffers())
    return (
        tuple((t.data_ptr(), t.device, t.dtype, t.shape, t.stride()) for t in tensors),
        tuple(switches(module) for module in model.modules),
    )
