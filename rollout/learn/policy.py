"""Policy: the log-probs of given ids under a causal LM, as a learner needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.learn.shared_prefix import Layout, SharedPrefix, alone, shared
from toolstep.rollout.logprobs import token_logprobs_and_entropy


class Policy:
    """A transformers causal LM (or a peft model of one) that scores ids.

    Where the logits are the last hidden states times the head's weights, they are computed in chunks
    (`rollout.logprobs`): memory does not grow with vocabulary x length.  Heads with a bias, a soft cap, a scale or
    adapters of their own run as the model runs them.  A prompt that rows share is computed once (`shares`) where the
    model takes an attention mask of ours.

    temperature: that of the distribution that was sampled from.
    autocast: compute in bfloat16 with weights in fp32; None: on CUDA, where the weights are fp32.
    """

    def __init__(self, model: Any, *, temperature: float = 1.0, autocast: bool | None = None) -> None:
        self.model = model
        self.temperature = temperature
        parameter = next(model.parameters())
        self.device: torch.device = parameter.device
        self.autocast = (
            (self.device.type == "cuda" and parameter.dtype == torch.float32) if autocast is None else autocast
        )
        self.exact = parameter.dtype == torch.float32 and not self.autocast
        self._chunked = self._plain_head()
        self.shares = self._chunked and self._takes_masks()

    def micro_batches(
        self, batch: RolloutBatch, lengths: NDArray[np.integer[Any]], tokens: int
    ) -> list[list[SharedPrefix]]:
        """The rows of `batch` for forward and backward passes of at most `tokens` ids each, padding included.

        lengths: i64[B], how much of each row is needed; 0 leaves it out.
        """
        if self.shares:
            return micro_batches(shared(batch.input_ids, lengths, batch.group_ids, tokens), tokens)
        return micro_batches(alone(lengths), tokens)

    def __call__(self, input_ids: Tensor, mask: Tensor, parts: Sequence[SharedPrefix] = ()) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies f32[B,T-1] at the masked targets, 0.0 elsewhere; entropies carry no gradient.

        input_ids: i64[B,T], rows padded on the right.  mask: bool[B,T-1], lined up with `input_ids[:, 1:]`.
        parts: one of `micro_batches`, of which these are the rows, in its order.
        """
        targets = input_ids[:, 1:][mask]
        with self._precision():
            if self._chunked:
                states = self._shared if 0 < len(parts) < len(mask) else self._alone
                hidden = states(input_ids, mask, parts)
                found = token_logprobs_and_entropy(hidden, self._head().weight, targets, temperature=self.temperature)
            else:
                logits = self.model(input_ids=input_ids, use_cache=False).logits[:, :-1][mask].float()
                rows = torch.log_softmax(logits / self.temperature, -1)
                entropy = torch.special.entr(rows.detach().exp()).sum(-1)
                found = rows.gather(-1, targets[:, None])[:, 0], entropy
        out = []
        for values in found:
            filled = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
            filled[mask] = values
            out.append(filled)
        return out[0], out[1]

    def _alone(self, input_ids: Tensor, mask: Tensor, _: Sequence[SharedPrefix]) -> Tensor:
        """[n,H], the states that predict the masked targets."""
        # Padding is on the right: no id attends to it, so no attention mask is needed.
        hidden: Tensor = self._backbone()(input_ids=input_ids, use_cache=False)[0]
        return hidden[:, :-1][mask]

    def _shared(self, input_ids: Tensor, mask: Tensor, parts: Sequence[SharedPrefix]) -> Tensor:
        layout = Layout.of(input_ids, parts)
        hidden: Tensor = self._backbone()(
            input_ids=layout.input_ids,
            position_ids=layout.position_ids,
            attention_mask=layout.attention,
            use_cache=False,
        )[0]
        return hidden.flatten(0, 1)[layout.place[:, :-1][mask]]

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.autocast else nullcontext()

    def _causal_lm(self) -> Any:
        """The transformers model; peft puts its layers inside it."""
        return self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model

    def _backbone(self) -> Any:
        return self._causal_lm().base_model

    def _head(self) -> Any:
        return self._causal_lm().get_output_embeddings()

    @torch.no_grad()
    def _plain_head(self) -> bool:
        head, config = self._head(), self._causal_lm().config.get_text_config()
        # A soft cap does not show in the small logits of a model that is just begun.
        capped = any(getattr(config, name, None) for name in dir(config) if "logit" in name and "cap" in name)
        if (
            type(head) is not torch.nn.Linear
            or head.bias is not None
            or capped
            or self._backbone() is self._causal_lm()
        ):
            return False
        ids = torch.arange(min(8, head.out_features), device=self.device)[None]
        with self._precision():
            hidden = self._backbone()(input_ids=ids, use_cache=False)[0]
            logits = self.model(input_ids=ids, use_cache=False).logits
            own = hidden @ head.weight.to(hidden.dtype).T
        return self._same(own, logits)

    @torch.no_grad()
    def _takes_masks(self) -> bool:
        """Whether attention is torch's own, over everything that a mask of ours allows, and nothing else mixes ids."""
        config = self._causal_lm().config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ())
        if (
            config._attn_implementation != "sdpa"
            or kinds - {"full_attention"}
            or getattr(config, "sliding_window", None)
        ):
            return False
        vocabulary = self._head().out_features
        ids = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 6, 7, 0]], device=self.device) % vocabulary
        parts = [SharedPrefix([0, 1], 2, [3, 2])]
        mask = torch.tensor([[True] * 4, [True] * 3 + [False]], device=self.device)
        with self._precision():
            try:
                found = self._shared(ids, mask, parts)
            except (TypeError, ValueError, RuntimeError, IndexError):
                return False  # no position ids, or no mask of that shape
            return self._same(found, self._alone(ids, mask, parts))

    def _same(self, found: Tensor, expected: Tensor) -> bool:
        return float((found - expected).abs().max()) <= (1e-4 if self.exact else 0.05) * float(expected.abs().max())


def micro_batches(parts: Iterable[SharedPrefix], tokens: int) -> list[list[SharedPrefix]]:
    """Lists of parts whose padded size (parts x longest) is at most `tokens`, long ones first.

    A part that is longer than `tokens` by itself is a list of its own.
    """
    order = sorted(parts, key=lambda part: -part.size)
    out: list[list[SharedPrefix]] = []
    while order:
        count = max(1, tokens // order[0].size)
        out.append(order[:count])
        order = order[count:]
    return out
