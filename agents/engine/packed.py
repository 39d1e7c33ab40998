"""A causal LM that runs on packed tokens of many rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from toolstep.agents.engine.attention import IMPLEMENTATION, active, attention
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.causal import CausalModel, inner
from toolstep.agents.engine.plan import Feed, Plan, pack_order

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

    @contextmanager
    def rollout_mode(self) -> Iterator[None]:
        """As any model's, and with the engine's attention."""
        before = self.model.config._attn_implementation
        with super().rollout_mode():
            try:
                self.model.set_attn_implementation(IMPLEMENTATION)
                yield
            finally:
                self.model.set_attn_implementation(before)

    def forward(self, pool: BlockPool, feeds: Sequence[Feed], wanted: Sequence[int]) -> torch.Tensor:
        """All feeds in one sequence `[1, T]` without padding."""
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
