"""GRPO and its kin over a vector env of tool use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from toolstep.agents.llm import LLMAgent
from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.generator import RolloutResult
from toolstep.rollout.learn.learner import Training
from toolstep.rollout.learn.online import OnlineLearner
from toolstep.rollout.learn.shared_prefix import SharedPrefix
from toolstep.rollout.objective import OBJECTIVES, Objective

# Of the ratio on the first step of a fresh rollout: in the mean of a micro-batch, for any id.  Rounding has a tail,
# and ids behind one prompt share it: of SmolLM2 in fp32, trained for half an hour, 3 of 352 ids were off by 1.0e-4.
# A wrong id, mask or key is off by far more, and older weights at most ids.
TOLERANCE, TOLERANCE_OF_ANY = 1e-4, 1e-2


class SamplerMismatch(RuntimeError):
    """The learner's log-probs of what was just sampled are not those of the sampler: ids, mask or weights are off."""


class GRPO(OnlineLearner):
    """Group-relative policy optimisation: GRPO, DAPO, Dr. GRPO, CISPO, GSPO, or any `Objective`.

        GRPO(agent, envs, Training(learning_rate=1e-5), groups=16, group_size=8).learn(total_episodes=10_000)

    objective: a name of `OBJECTIVES` or an `Objective`; its estimator decides the advantages.
    Other arguments as `OnlineLearner`.

    The old log-probs are those that the learner itself computes at its first step on a rollout, which are the
    sampler's: where ratios are beyond 1 +- 1e-4 (in the mean of a micro-batch; 1e-2 for any id) it raises
    `SamplerMismatch`.  Where learner and sampler differ by their precision (bf16, autocast) truncated importance
    sampling makes up for it instead (`Objective.importance_cap`).
    """

    def __init__(
        self,
        agent: LLMAgent,
        envs: VectorEnv[Any, Any, Any],
        training: Training | None = None,
        *,
        objective: str | Objective = "dapo",
        **options: Any,
    ) -> None:
        if isinstance(objective, str):
            if objective not in OBJECTIVES:
                raise ValueError(f"GRPO: objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
            objective = OBJECTIVES[objective]
        if objective.kl_coef and options.get("reference") is None:
            raise ValueError(f"GRPO: kl_coef={objective.kl_coef} needs reference='frozen' or 'ema'")
        super().__init__(agent, envs, training, estimator=objective.estimator, **options)
        self.objective = objective
        self._old = torch.zeros(0)
        self._ref: Tensor | None = None

    def update(self, result: RolloutResult, is_fresh: bool, remaining: float) -> dict[str, float]:
        batch = result.batch
        batch.require_actions()
        batch.require_logprobs()
        if is_fresh:
            self._old = torch.zeros(batch.action_mask[:, 1:].shape, device=self.policy.device)
            self._ref = None if self.reference is None else torch.zeros_like(self._old)
        # Rows without an advantage have no gradient (nor a forward): they count in the denominator only.
        learns = batch.action_mask[:, 1:].any(1)
        if not self.objective.kl_coef:
            learns &= (batch.advantages != 0).any(1)
        micro = self.policy.micro_batches(batch, np.where(learns, batch.lengths, 0), self.training.micro_tokens)
        if not micro:
            return {"skipped": 1.0}
        total = self.objective.total(torch.from_numpy(batch.action_mask[:, 1:]))
        found: list[dict[str, float]] = []
        step = self.optimizer.step(self._losses(batch, micro, float(total), is_fresh, found), remaining)
        return {"skipped": 0.0, **step, **_combined(found)}

    def _losses(
        self,
        batch: RolloutBatch,
        micro: list[list[SharedPrefix]],
        total: float,
        is_fresh: bool,
        found: list[dict[str, float]],
    ) -> Iterator[Tensor]:
        device = self.policy.device
        for parts in micro:
            rows = np.concatenate([shared.rows for shared in parts])
            part = batch.select(rows)
            shifted = part.shifted().torch(device)
            mask, sampler = shifted["action_mask"], shifted["old_logprobs"]
            ids = torch.from_numpy(part.input_ids).to(device)
            logprobs, entropy = self.policy(ids, mask, parts)
            place = torch.from_numpy(rows).to(device), slice(0, mask.shape[1])
            metrics: dict[str, float] = {}
            if is_fresh:
                self._old[place] = logprobs.detach()
                if self._ref is not None and self.reference is not None:
                    self._ref[place] = self.reference(ids, mask, parts)
                metrics = self._compared(logprobs.detach(), sampler, mask, rows)
            loss, of_loss = self.objective(
                logprobs,
                self._old[place],
                shifted["advantages"],
                mask,
                ref_logprobs=None if self._ref is None else self._ref[place],
                sampler_logprobs=None if self.policy.exact else sampler,
                total=total,
            )
            metrics = of_loss | metrics
            metrics["entropy"] = float(entropy[mask].mean())
            metrics["loss"] = float(loss.detach())
            found.append(metrics)
            yield loss

    def _compared(self, logprobs: Tensor, sampler: Tensor, mask: Tensor, rows: Any) -> dict[str, float]:
        """The ratio of learner and sampler before any step; it must be 1 where both compute in fp32."""
        ratio = torch.where(mask, (logprobs - sampler).exp(), 1.0)
        error = (ratio - 1).abs()
        mean = float(error[mask].mean())
        if self.policy.exact and not (mean <= TOLERANCE and float(error.max()) <= TOLERANCE_OF_ANY):
            row, at = (int(i) for i in np.unravel_index(int(error.argmax()), tuple(error.shape)))
            raise SamplerMismatch(
                f"row {rows[row]}, id {at + 1} of the rollout: the learner's log-prob is {logprobs[row, at]:.6f}, the "
                f"sampler's {sampler[row, at]:.6f} (ratio {ratio[row, at]:.6f}; expected 1 +- "
                f"{TOLERANCE} in the mean of {int(mask.sum())} ids, found {mean:.2g}, and {TOLERANCE_OF_ANY} for any)"
            )
        return {"first_ratio_mean": float(ratio[mask].mean()), "first_ratio_max": float(ratio.max())}


def _combined(parts: list[dict[str, float]]) -> dict[str, float]:
    """Means over ids of the micro-batches' means; the greatest of `*_max`, the sum of `tokens` and `loss`."""
    out: dict[str, float] = {}
    tokens = sum(p["tokens"] for p in parts)
    for name in parts[0]:
        values = [p[name] for p in parts]
        if name in ("tokens", "loss"):
            out[name] = sum(values)
        elif name.endswith("_max"):
            out[name] = max(values)
        else:
            out[name] = sum(v * p["tokens"] for v, p in zip(values, parts)) / tokens
    return out
