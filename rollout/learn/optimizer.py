"""One optimizer step out of any number of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# As stable-baselines3's: a number, or a function of the share of the training that is left (1 to 0).
Schedule = float | Callable[[float], float]


class Optimizer:
    """AdamW over what of the model is to be trained.

    weight_decay: of matrices; norms and biases have none.  max_grad_norm: gradients longer than this are shortened to
    it, over all parameters together; None: never.
    """

    def __init__(
        self,
        model: Any,
        learning_rate: Schedule,
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        max_grad_norm: float | None = 1.0,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ValueError(f"{type(model).__name__} has no parameters to train: all have requires_grad=False")
        self.names = [name for name, _ in named]
        self.parameters = [p for _, p in named]
        self._learning_rate = learning_rate
        self._max_grad_norm = max_grad_norm
        matrices = [p for p in self.parameters if p.ndim >= 2]
        others = [p for p in self.parameters if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW([g for g in groups if g["params"]], lr=self._rate(1.0), betas=betas)

    def _rate(self, remaining: float) -> float:
        rate = self._learning_rate
        return float(rate if isinstance(rate, (int, float)) else rate(remaining))

    def step(self, losses: Iterable[Tensor], remaining: float = 1.0) -> dict[str, float]:
        """Add up the gradients of `losses` (each is freed before the next is asked for) and take one step.

        remaining: the share of the training that is left, for the schedule.  Returns `grad_norm`, before clipping, and
        `learning_rate`.  Raises `FloatingPointError` for gradients that are not finite; the weights are as before.
        """
        self.adamw.zero_grad(set_to_none=True)
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        limit = float("inf") if self._max_grad_norm is None else self._max_grad_norm
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        if not norm < float("inf"):
            bad = [n for n, p in zip(self.names, self.parameters) if p.grad is not None and not p.grad.isfinite().all()]
            self.adamw.zero_grad(set_to_none=True)
            raise FloatingPointError(f"the gradient of {', '.join(bad[:3]) or 'the loss'} is not finite (norm {norm})")
        rate = self._rate(remaining)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)  # a rollout comes next: it needs the memory
        return {"grad_norm": norm, "learning_rate": rate}

    def state(self) -> dict[str, Tensor]:
        """Copies of what AdamW remembers, as `<parameter name>/<entry>`."""
        return {
            f"{name}/{key}": torch.as_tensor(value).detach().cpu().clone()
            for name, p in zip(self.names, self.parameters)
            for key, value in self.adamw.state.get(p, {}).items()
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over what `state` gave."""
        for name, p in zip(self.names, self.parameters):
            own = {key.rpartition("/")[2]: v for key, v in state.items() if key.rpartition("/")[0] == name}
            self.adamw.state[p] = {k: v.clone() if k == "step" else v.to(p.device, p.dtype) for k, v in own.items()}


def warmup(peak: float, share: float = 0.05, *, decay: bool = False) -> Callable[[float], float]:
    """A schedule: up to `peak` over the first `share` of the training, then flat, or on a line to 0 (`decay`)."""

    def rate(remaining: float) -> float:
        done = 1.0 - remaining
        if done < share:
            return peak * max(done / share, 1e-3)
        return peak * (remaining / (1.0 - share) if decay else 1.0)

    return rate
