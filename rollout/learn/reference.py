"""Reference: what the policy is held close to, frozen or following it slowly."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from toolstep.rollout.learn.policy import Policy
from toolstep.rollout.learn.shared_prefix import SharedPrefix

Kind = Literal["frozen", "ema"]


class Reference:
    """Log-probs of the model as it was at the start ("frozen"), or of a moving average of it ("ema").

    A frozen reference of a model that trains adapters is the model without them, and takes no memory; any other is a
    copy.  decay: share of itself that a moving average keeps at each optimizer step.
    """

    def __init__(self, policy: Policy, kind: Kind, decay: float = 0.99) -> None:
        if kind not in ("frozen", "ema"):
            raise ValueError(f"reference must be 'frozen', 'ema' or None, got {kind!r}")
        if not 0 <= decay <= 1:
            raise ValueError(f"reference: the decay of the moving average must be in [0, 1], got {decay}")
        self.kind = kind
        self._policy = policy
        self._decay = decay
        self._names = [name for name, p in policy.model.named_parameters() if p.requires_grad]
        self._adapters = kind == "frozen" and hasattr(policy.model, "disable_adapter")
        self._copy: Policy | None = None
        if not self._adapters:
            model = copy.deepcopy(policy.model).requires_grad_(False)
            self._copy = Policy(model, temperature=policy.temperature, autocast=policy.autocast)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor, mask: Tensor, parts: Sequence[SharedPrefix] = ()) -> Tensor:
        """f32[B,T-1], as `Policy`."""
        with self._scorer() as scorer:
            return scorer(input_ids, mask, parts)[0]

    @contextmanager
    def _scorer(self) -> Iterator[Policy]:
        if self._copy is not None:
            yield self._copy
        else:
            with self._policy.model.disable_adapter():
                yield self._policy

    @torch.no_grad()
    def follow(self) -> None:
        """After an optimizer step: move on, if this is a moving average."""
        if self.kind == "ema":
            for name, own in self.weights().items():
                own.lerp_(self._policy.model.get_parameter(name), 1.0 - self._decay)

    def weights(self) -> dict[str, Tensor]:
        """Its copies of what is trained, by parameter name (not copied again); none where it keeps none."""
        if self._copy is None:
            return {}
        return {name: self._copy.model.get_parameter(name) for name in self._names}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over what `weights` gave."""
        for name, own in self.weights().items():
            own.copy_(weights[name])
