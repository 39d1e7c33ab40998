"""Policy: the log-probs of given ids under a causal LM, as a learner needs them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from toolstep.rollout.logprobs import token_logprobs_and_entropy


class Policy:
    """A transformers causal LM (or a peft model of one) that scores ids.

    Where the logits are the last hidden states times the head's weights, they are computed in chunks
    (`rollout.logprobs`): memory does not grow with vocabulary x length.  Heads with a bias, a soft cap, a scale or
    adapters of their own run as the model runs them.

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

    def __call__(self, input_ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies f32[B,T-1] at the masked targets, 0.0 elsewhere; entropies carry no gradient.

        input_ids: i64[B,T], rows padded on the right.  mask: bool[B,T-1], lined up with `input_ids[:, 1:]`.
        """
        targets = input_ids[:, 1:][mask]
        with self._precision():
            if self._chunked:
                # Padding is on the right: no id attends to it, so no attention mask is needed.
                hidden = self._backbone()(input_ids=input_ids, use_cache=False)[0][:, :-1][mask]
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
        return float((own - logits).abs().max()) <= (1e-4 if self.exact else 0.05) * float(logits.abs().max())


def micro_batches(lengths: NDArray[np.integer[Any]], tokens: int) -> list[NDArray[np.int64]]:
    """Row numbers in groups whose padded size (rows x longest) is at most `tokens`, long rows first.

    A row that is longer than `tokens` by itself is a group of its own.  Rows of length 0 are left out.
    """
    order = [int(i) for i in np.argsort(-lengths, kind="stable") if lengths[i] > 0]
    out: list[NDArray[np.int64]] = []
    while order:
        count = max(1, tokens // int(lengths[order[0]]))
        out.append(np.array(order[:count], np.int64))
        order = order[count:]
    return out
