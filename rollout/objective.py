"""Objective: what a member of the GRPO family is made of, as one callable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from toolstep.rollout import losses
from toolstep.rollout.advantages import Estimator
from toolstep.rollout.losses import LossError, Reduction, Surrogate


@dataclass(frozen=True, slots=True)
class Objective:
    """A surrogate, the advantages and the reduction that go with it, and the penalty and correction added to it.

    surrogate: `losses.grpo`, `gspo`, `cispo`, or any function of (logprobs, old_logprobs, advantages, mask), all [B,T];
        `functools.partial` sets its clip.
    estimator: for `RolloutBatch.from_trajectories`.
    reduction, length: see `losses.denominator`.
    kl_coef: weight of the k3 estimate of KL(policy || reference) in the loss.
    importance_cap: most that truncated importance sampling lets an id weigh, where the sampler is not the learner.
    """

    surrogate: Callable[[Tensor, Tensor, Tensor, Tensor], Surrogate] = losses.grpo
    estimator: Estimator = "grpo"
    reduction: Reduction = "token-mean"
    length: int | None = None
    kl_coef: float = 0.0
    importance_cap: float = 2.0

    def __call__(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor,
        *,
        ref_logprobs: Tensor | None = None,
        sampler_logprobs: Tensor | None = None,
        total: Tensor | float | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """The loss, a scalar, and what to log of it.

        logprobs, old_logprobs, advantages, mask: [B,T], of the learner now, of the learner that the batch was sampled
        for, and of the shifted batch.  ref_logprobs: of the reference, needed with `kl_coef`, else logged alone.
        sampler_logprobs: of what sampled, where that is not the learner; `old_logprobs` are then the learner's own.
        total: `self.total` of the whole batch where these rows are a micro-batch.

        Logged are `tokens` (ids on the mask) and, unless there are none, means over them: `policy_loss` (before the
        penalty), `ratio_mean`, `ratio_max`, `clip_fraction`, `approx_kl` (k3 between old and new), `kl` (k3, with a
        reference) and, with a sampler, `importance_mean`, `importance_max`, `importance_capped` (the share at the cap)
        and `importance_cap`.  Raises `LossError`.
        """
        parts = self.surrogate(logprobs, old_logprobs, advantages, mask)
        per_id, penalty, importance = parts.loss, None, None
        if sampler_logprobs is not None:
            importance = losses.importance_ratio(old_logprobs, sampler_logprobs, mask)
            per_id = per_id * importance.clamp(max=self.importance_cap)
        weighted = per_id.detach()
        if ref_logprobs is not None:
            penalty = losses.kl(logprobs, ref_logprobs, mask, "k3")
            per_id = per_id + self.kl_coef * penalty
        elif self.kl_coef:
            raise LossError(f"ref_logprobs are missing: kl_coef is {self.kl_coef}, which needs those of a reference")
        loss = losses.reduce(per_id, mask, self.reduction, length=self.length, total=total)

        metrics = {"tokens": float(mask.sum())}
        if not metrics["tokens"]:
            return loss, metrics
        with torch.no_grad():
            ratio = parts.ratio[mask]
            means = {
                "policy_loss": weighted,
                "ratio_mean": parts.ratio,
                "clip_fraction": parts.clipped.to(ratio.dtype),
                "approx_kl": losses.kl(old_logprobs, logprobs, mask, "k3"),
            }
            if penalty is not None:
                means["kl"] = penalty
            if importance is not None:
                means["importance_mean"] = importance
                means["importance_capped"] = (importance > self.importance_cap).to(ratio.dtype)
                metrics["importance_max"] = float(importance[mask].max())
                metrics["importance_cap"] = self.importance_cap
            metrics["ratio_max"] = float(ratio.max())
            metrics.update({name: float(value[mask].mean()) for name, value in means.items()})
        return loss, metrics

    def total(self, mask: Tensor) -> Tensor:
        """What the losses of a batch's micro-batches are divided by; mask: that of the whole batch, [B,T]."""
        return losses.denominator(mask, self.reduction, length=self.length)


# By the names that TRL gives its `loss_type`; "dr_grpo" wants a length: `dataclasses.replace(..., length=512)`.
OBJECTIVES: dict[str, Objective] = {
    "grpo": Objective(losses.grpo, "grpo", "sequence-mean"),
    "dapo": Objective(partial(losses.grpo, clip_high=0.28), "grpo", "token-mean"),
    "dr_grpo": Objective(losses.grpo, "dr_grpo", "constant-length"),
    "cispo": Objective(losses.cispo, "grpo", "token-mean"),
    "gspo": Objective(losses.gspo, "grpo", "sequence-mean"),
}
