"""A causal LM that runs on packed tokens of many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from toolstep.agents.engine.attention import IMPLEMENTATION, active, attention, noted
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.causal import CausalModel, inner, probe_ids
from toolstep.agents.engine.decode import StaticDecode
from toolstep.agents.engine.layers import FusedLayers
from toolstep.agents.engine.plan import Feed, Plan, pack_order
from toolstep.agents.engine.spans import SpanTree

_PLAIN_LAYERS = ("full_attention", "sliding_attention", "attention")


class PackedModel(CausalModel):
    """Wraps any transformers causal LM whose attention goes through `AttentionInterface`."""

    def check(self, config: Any) -> None:
        problem = ""
        layers = set(getattr(config, "layer_types", None) or ())
        if strange := sorted(str(x) for x in layers if x not in _PLAIN_LAYERS):
            problem = f"it has layers of type {', '.join(strange)}"
        elif getattr(config, "num_kv_shared_layers", 0):
            problem = "its layers share keys and values"
        elif not getattr(inner(self.model), "_supports_attention_backend", False):
            problem = "its attention does not go through transformers' AttentionInterface"
        if problem:
            raise self.unsupported(problem)
        AttentionInterface.register(IMPLEMENTATION, attention)

    @cached_property
    def layers(self) -> FusedLayers:
        return FusedLayers(self.model, self.linears)

    @cached_property
    def static(self) -> StaticDecode:
        return StaticDecode(self)

    @cached_property
    def configs(self) -> list[Any]:
        """Where the layers look up which attention to call, outer ones first: setting one sets those inside it.

        `set_attn_implementation` does the same; at each step its checks would take a fiftieth of a forward.
        """
        found = {id(c): c for m in self.modules if hasattr(c := getattr(m, "config", None), "_attn_implementation")}
        return list(found.values())

    def weights_changed(self) -> None:
        families = None if self.linears is None else self.linears.families
        super().weights_changed()
        self.__dict__.pop("configs", None)
        self.static.weights_changed()
        if self.linears is not None and self.linears.families is not families:
            self.__dict__.pop("layers", None)  # they hold on to the families

    @contextmanager
    def rollout_mode(self) -> Iterator[None]:
        """As any model's, and with the engine's attention and fused layers."""
        before = [config._attn_implementation for config in self.configs]
        layers = self.layers
        with super().rollout_mode():
            try:
                for config in self.configs:
                    config._attn_implementation = IMPLEMENTATION
                layers.swap_in()
                yield
            finally:
                layers.swap_out()
                for config, name in zip(self.configs, before, strict=True):
                    config._attn_implementation = name

    def forward(self, pool: BlockPool, feeds: Sequence[Feed], wanted: Sequence[int]) -> torch.Tensor:
        """All feeds in one sequence `[1, T]`, padded only where steps have fixed shapes (`decode.py`)."""
        if self.layers.untried and self.layers.can_run(pool.size):
            self._try_fused(pool.size)
        if self.static.on and (logits := self.static.forward(pool, feeds, wanted)) is not None:
            return logits
        return self.general(pool, feeds, wanted)

    def _try_fused(self, size: int) -> None:
        """Let the fused layers show that they compute what the model's own code does: two rows, one of them behind the
        other's prompt, in two turns.
        """
        n = min(24, self.max_context)
        ids = probe_ids(n, self.vocabulary)
        found: list[torch.Tensor] = []
        for _ in range(2):
            tree = SpanTree(BlockPool(size))
            trunk = tree.hold(tree.add(None, 0, ids[: n // 2]))
            row = tree.hold(tree.add(trunk, n // 2, ids[n // 2 :]))
            tree.grow(trunk, n // 2)
            tree.grow(row, n - n // 2)
            with noted() as shapes:
                first = self.general(tree.pool, [Feed(trunk, 0, n // 2), Feed(row, 0, 1)], [0, 1])
                then = self.general(tree.pool, [Feed(row, 1, n - n // 2 - 1)], [0])
            found.append(torch.cat((first, then)).float())
            if len(found) == 1 and not self.layers.use(shapes):
                return
        plain, fused = found
        error = float((fused - plain).abs().mean() / (plain.std() + 1e-6))
        if not error <= (1e-4 if self.model.dtype == torch.float32 else 0.05):
            self.layers.give_up(f"their logits differ (relative error {error:.2g})")

    def general(self, pool: BlockPool, feeds: Sequence[Feed], wanted: Sequence[int]) -> torch.Tensor:
        """Any feeds, packed without padding."""
        device = self.device
        order = pack_order(feeds)
        ids = np.concatenate(
            [feeds[i].span.ids.view()[feeds[i].first : feeds[i].first + feeds[i].length] for i in order]
        )
        last = np.empty(len(feeds), np.int64)
        last[order] = np.cumsum([feeds[i].length for i in order]) - 1
        plan = Plan.build(pool, [feeds[i] for i in order], device)
        # The language head is the widest layer: it runs on the wanted positions only (on one where none is wanted).
        keep = torch.from_numpy(last[list(wanted)] if wanted else last[:1]).to(device)
        keeps = "logits_to_keep" in self.parameters
        with active(plan):
            output = self.model(
                input_ids=torch.from_numpy(ids.astype(np.int64))[None].to(device),
                position_ids=plan.positions[None],
                use_cache=False,
                **({"logits_to_keep": keep} if keeps else {}),
            )
        logits: torch.Tensor = output.logits[0]
        return (logits if keeps else logits[keep])[: len(wanted)]
