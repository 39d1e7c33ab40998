"""A causal LM that runs on packed tokens of many rows: checks, mode switching, one forward."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface

from toolstep.agents.engine.attention import IMPLEMENTATION, UnsupportedModel, active, attention
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.linears import PackedLinears, can_pack
from toolstep.agents.engine.plan import Feed, Plan, pack_order
from toolstep.agents.engine.spans import SpanTree

# Rotary variants whose frequencies depend on the longest row of the batch: within the original length they do
# not.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_PLAIN_LAYERS = ("full_attention", "sliding_attention", "attention")


class PackedModel:
    """Wraps any transformers causal LM whose attention goes through `AttentionInterface`.

    The wrapped model is changed only inside `rollout_mode()`: train/eval flags and attention implementation are put
    back afterwards, so that a learner may use the same object.
    """

    def __init__(self, model: Any, max_context: int | None = None, pack: bool | None = None) -> None:
        self.model = model
        self.name = type(model).__name__
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        self.vocabulary = int(config.vocab_size)
        self._check(config)
        self.max_context = _context_limit(config, max_context)
        self._keeps_logits = "logits_to_keep" in inspect.signature(_inner(model).forward).parameters
        wanted = can_pack(model) if pack is None else pack
        self.linears = PackedLinears(model) if wanted else None
        AttentionInterface.register(IMPLEMENTATION, attention)

    @property
    def device(self) -> torch.device:
        """Where the embedding, and so the input ids, live."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight.device

    def _check(self, config: Any) -> None:
        problem = ""
        layers = set(getattr(config, "layer_types", None) or ())
        if strange := sorted(str(x) for x in layers if x not in _PLAIN_LAYERS):
            problem = f"it has layers of type {', '.join(strange)}"
        elif getattr(config, "is_encoder_decoder", False):
            problem = "it is an encoder-decoder"
        elif getattr(config, "num_kv_shared_layers", 0):
            problem = "its layers share keys and values"
        elif not getattr(_inner(self.model), "_supports_attention_backend", False):
            problem = "its attention does not go through transformers' AttentionInterface"
        if problem:
            raise UnsupportedModel(
                f"{self.name} cannot run in the rollout engine: {problem}; expected a causal LM in which "
                "every layer "
                "is (sliding-window) attention behind AttentionInterface, such as Llama, Qwen2/3, Mistral, "
                "Gemma, GPT-2"
            )

    @contextmanager
    def rollout_mode(self) -> Iterator[None]:
        """eval(), inference mode and the engine's attention; everything as before at the end, also after an error."""
        before = self.model.config._attn_implementation
        with self._eval_mode():
            try:
                self.model.set_attn_implementation(IMPLEMENTATION)
                if self.linears is not None:
                    self.linears.swap_in()
                yield
            finally:
                if self.linears is not None:
                    self.linears.swap_out()
                self.model.set_attn_implementation(before)

    @contextmanager
    def _eval_mode(self) -> Iterator[None]:
        # Flags are kept module by module: a learner may hold a part of the model in eval mode on purpose.
        training = [m for m in self.model.modules() if m.training]
        try:
            for module in training:
                module.training = False
            with torch.inference_mode():
                yield
        finally:
            for module in training:
                module.training = True

    def forward(self, pool: BlockPool, feeds: Sequence[Feed], wanted: Sequence[int]) -> torch.Tensor:
        """Run the ids of all feeds, packed; the logits of the last id of the feeds numbered `wanted`.

        They are [len(wanted), V] in the model's dtype.  The feeds' spans must have blocks for the new cells already.
        Call it inside `rollout_mode()`.
        """
        device = self.device
        order = pack_order(feeds)
        ids = np.concatenate(
            [feeds[i].span.ids.view()[feeds[i].first : feeds[i].first + feeds[i].length] for i in order]
        )
        last = np.empty(len(feeds), np.int64)
        last[order] = np.cumsum([feeds[i].length for i in order]) - 1
        plan = Plan.build(pool, [feeds[i] for i in order], device)
        # The language head is the widest layer: it runs on the wanted positions only (on one where none is
        # wanted).
        keep = torch.from_numpy(last[list(wanted)] if wanted else last[:1]).to(device)
        arguments: dict[str, Any] = {"logits_to_keep": keep} if self._keeps_logits else {}
        with active(plan):
            output = self.model(
                input_ids=torch.from_numpy(ids.astype(np.int64))[None].to(device),
                position_ids=plan.positions[None],
                use_cache=False,
                **arguments,
            )
        logits: torch.Tensor = output.logits[0]
        if not self._keeps_logits:
            logits = logits[keep]
        return logits[: len(wanted)]

    def weights_changed(self) -> None:
        """What was derived from the weights is void."""
        if self.linears is not None:
            self.linears.weights_changed()

    def verify(self) -> None:
        """Compare a few logits with the model's own forward; raise UnsupportedModel where they differ.

        Catches whatever the static checks cannot know, for instance a model with a state beside keys and values.
        """
        n = min(8, self.max_context)
        if n < 4:
            return
        ids = [(7 * i + 3) % self.vocabulary for i in range(n)]
        tree = SpanTree(BlockPool(2))
        trunk = tree.hold(tree.add(None, 0, ids[:2]))
        first, second = (tree.hold(tree.add(trunk, 2, ids[2:])) for _ in range(2))
        tree.grow(trunk, 2)
        for span in (first, second):
            tree.grow(span, n - 2)
        with self.rollout_mode():
            self.forward(tree.pool, [Feed(trunk, 0, 2), Feed(first, 0, n - 4), Feed(second, 0, n - 5)], [])
            got = [self.forward(tree.pool, [Feed(second, n - 5, 2), Feed(first, n - 4, 1)], [1, 0])]
            got.append(self.forward(tree.pool, [Feed(second, n - 3, 1)], [0]))
        with self._eval_mode():
            probe = torch.tensor([ids], device=self.device)
            plain = self.model(input_ids=probe, use_cache=False).logits[0].float()
        found = torch.cat(got).float()
        expected = plain[[n - 2, n - 2, n - 1]]
        error = float((found - expected).abs().mean() / (expected.std() + 1e-6))
        limit = 1e-3 if plain.dtype == torch.float32 and self.model.dtype == torch.float32 else 0.15
        if not error <= limit:
            if not bool(torch.isfinite(expected).all()):
                raise ValueError(
                    f"{self.name}: the logits of the model's own forward are not finite; check the weights"
                )
            raise UnsupportedModel(
                f"{self.name} cannot run in the rollout engine: its logits differ from the model's own forward "
                f"(relative error {error:.2g}, allowed {limit:.2g}); "
                "it probably keeps a state that the engine does not know of"
            )

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy new weights in.  Names must be the model's own; tied weights may be left out."""
        own = self.model.state_dict()
        unknown = sorted(set(state) - set(own))
        held = {own[name].data_ptr() for name in state if name in own}
        missing = sorted(name for name, tensor in own.items() if name not in state and tensor.data_ptr() not in held)
        wrong = [n for n in state if n in own and state[n].shape != own[n].shape]
        if unknown or missing or wrong:
            parts = [
                f"{title}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
                for title, names in (("unknown", unknown), ("missing", missing), ("of another shape", wrong))
                if names
            ]
            raise ValueError(
                f"update_weights: the state dict does not fit {self.name} ({'; '.join(parts)}); "
                "pass model.state_dict() of the same architecture"
            )
        with torch.no_grad():
            self.model.load_state_dict(dict(state), strict=False)


def _inner(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _context_limit(config: Any, asked: int | None) -> int:
    """Longest context in tokens: what the model was built for, or `asked` if that is shorter."""
    limits = [n for n in (asked, getattr(config, "max_position_embeddings", None)) if n is not None]
    rope = getattr(config, "rope_parameters", None) or {}
    for part in [rope, *(v for v in rope.values() if isinstance(v, Mapping))]:
        if part.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            original = part.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            limits += [int(original)] if original else []
    if not limits:
        raise ValueError("the model's config has no max_position_embeddings: pass max_context, in tokens")
    if min(limits) < 1:
        raise ValueError(f"max_context must be a positive number of tokens, got {min(limits)}")
    return int(min(limits))
