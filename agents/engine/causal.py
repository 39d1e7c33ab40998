"""What every causal LM of the engine has in common: its limits, its modes, its weights."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from toolstep.agents.engine.adapters import adapter_state, load_adapter
from toolstep.agents.engine.attention import UnsupportedModel
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.linears import PackedLinears, can_pack
from toolstep.agents.engine.plan import Feed
from toolstep.agents.engine.spans import SpanTree

# Rotary variants whose frequencies depend on the longest row of the batch: within the original length they do not.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
# What configs call the longest context.
_LIMITS = ("max_position_embeddings", "context_length", "max_seq_len", "seq_length")


class CausalModel(ABC):
    """A transformers causal LM that computes the logits of many contexts, whose state it keeps in a pool.

    The model is changed only inside `rollout_mode()`: all is put back afterwards, so that a learner may use the same
    object.  replayed: tokens that were computed again because no state could be taken up where a feed began.
    """

    def __init__(self, model: Any, max_context: int | None = None, pack: bool | None = None) -> None:
        self.model = model
        self.name = type(model).__name__
        config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
        if getattr(config, "is_encoder_decoder", False):
            raise self.unsupported("it is an encoder-decoder")
        self.vocabulary = int(config.vocab_size)
        self.parameters = frozenset(inspect.signature(inner(model).forward).parameters)
        self.check(config)
        self.max_context = _context_limit(config, max_context)
        self.replayed = 0
        wanted = can_pack(model) if pack is None else pack
        self.linears = PackedLinears(model) if wanted else None

    @property
    def device(self) -> torch.device:
        """Where the embedding, and so the input ids, live."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight.device

    @abstractmethod
    def check(self, config: Any) -> None:
        """Raise UnsupportedModel where it can be seen that the model will not do."""

    def pool(self, size: int, limit: int | None) -> BlockPool:
        """Where the state of contexts is kept: blocks of `size` tokens, at most `limit` of them."""
        return BlockPool(size, limit)

    def quota(self, tokens: int) -> int:
        """Most tokens of prompts and observations in one call of `forward`, where `tokens` are wanted at a time."""
        return tokens

    @abstractmethod
    def forward(self, pool: BlockPool, feeds: Sequence[Feed], wanted: Sequence[int]) -> torch.Tensor:
        """Run the ids of all feeds; the logits of the last id of the feeds numbered `wanted`.

        They are [len(wanted), V] in the model's dtype.  The feeds' spans must have blocks for the new cells already.
        Call it inside `rollout_mode()`.
        """

    def unsupported(self, reason: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.name} cannot run in the rollout engine: {reason}")

    @contextmanager
    def rollout_mode(self) -> Iterator[None]:
        """eval(), inference mode, packed linear layers; everything as before at the end, also after an error."""
        with self.eval_mode():
            try:
                if self.linears is not None:
                    self.linears.swap_in()
                yield
            finally:
                if self.linears is not None:
                    self.linears.swap_out()

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """eval() and inference mode alone."""
        # Flags are kept module by module: a learner may hold a part of the model in eval mode on purpose.
        training = [m for m in self.modules if m.training]
        try:
            for module in training:
                module.training = False
            with torch.inference_mode():
                yield
        finally:
            for module in training:
                module.training = True

    @cached_property
    def modules(self) -> list[torch.nn.Module]:
        """All of the model's; to find them takes longer than what a step asks of them."""
        return list(self.model.modules())

    def weights_changed(self) -> None:
        """What was derived from the weights, or from how the model is put together, is void."""
        self.__dict__.pop("modules", None)
        if self.linears is not None:
            self.linears.weights_changed()

    def verify(self) -> None:
        """Compare a few logits with the model's own forward; raise UnsupportedModel where they differ.

        Catches whatever the static checks cannot know, for instance a model with a state beside keys and values.
        """
        n = min(8, self.max_context)
        if n < 4:
            return
        ids = probe_ids(n, self.vocabulary)
        tree = SpanTree(self.pool(2, None))
        trunk = tree.hold(tree.add(None, 0, ids[:2]))
        first, second = (tree.hold(tree.add(trunk, 2, ids[2:])) for _ in range(2))
        tree.grow(trunk, 2)
        for span in (first, second):
            tree.grow(span, n - 2)
        with self.rollout_mode():
            self.forward(tree.pool, [Feed(trunk, 0, 2), Feed(first, 0, n - 4), Feed(second, 0, n - 5)], [])
            got = [self.forward(tree.pool, [Feed(second, n - 5, 2), Feed(first, n - 4, 1)], [1, 0])]
            got.append(self.forward(tree.pool, [Feed(second, n - 3, 1)], [0]))
        with self.eval_mode():
            plain = self.model(input_ids=torch.tensor([ids], device=self.device), use_cache=False).logits[0].float()
        found = torch.cat(got).float()
        expected = plain[[n - 2, n - 2, n - 1]]
        error = float((found - expected).abs().mean() / (expected.std() + 1e-6))
        limit = 1e-3 if plain.dtype == torch.float32 and self.model.dtype == torch.float32 else 0.15
        if not error <= limit:
            if not bool(torch.isfinite(expected).all()):
                raise ValueError(
                    f"{self.name}: the logits of the model's own forward are not finite; check the weights"
                )
            raise self.unsupported(
                f"its logits differ from the model's own forward (relative error {error:.2g}, allowed {limit:.2g}); "
                "it probably keeps a state that the engine does not know of"
            )

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy new weights in, in place.

        Names must be the model's own, where tied weights may be left out, or those of its active LoRA adapter as peft's
        `get_peft_model_state_dict` gives them.
        """
        everything = self.model.state_dict()
        adapter = adapter_state(self.model) or {}
        own = adapter if set(state) & set(adapter) else everything
        unknown = sorted(set(state) - set(everything) - set(own))
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
                f"{', or get_peft_model_state_dict(model) of the active adapter' if adapter else ''}"
            )
        with torch.no_grad():
            if own is adapter:
                load_adapter(self.model, state)
            else:
                self.model.load_state_dict(dict(state), strict=False)


def inner(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def probe_ids(count: int, vocabulary: int) -> list[int]:
    """A few ids that differ."""
    return [(7 * i + 3) % vocabulary for i in range(count)]


def _context_limit(config: Any, asked: int | None) -> int:
    """Longest context in tokens: what the model was built for, or `asked` if that is shorter."""
    own = next((n for name in _LIMITS if isinstance(n := getattr(config, name, None), int)), None)
    limits = [n for n in (asked, own) if n is not None]
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
