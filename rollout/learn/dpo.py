"""Online DPO: the best of each group against its worst."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from toolstep.agents.llm import LLMAgent
from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.generator import RolloutResult
from toolstep.rollout.learn.learner import Training
from toolstep.rollout.learn.online import OnlineLearner
from toolstep.rollout.types import OK


class _Pair(NamedTuple):
    """Row numbers of the chosen and the rejected episode (an episode has a row for each of its segments)."""

    chosen: list[int]
    rejected: list[int]


class DPO(OnlineLearner):
    """Direct preference optimisation on pairs of the agent's own episodes (Rafailov et al. 2023, arXiv 2305.18290;
    online: Guo et al. 2024, arXiv 2402.04792).

    beta: how strongly the policy is held to the reference.  Groups whose usable members all have one reward make no
    pair.  Other arguments as `OnlineLearner`; there is always a reference, by default a frozen one.
    """

    def __init__(
        self,
        agent: LLMAgent,
        envs: VectorEnv[Any, Any, Any],
        training: Training | None = None,
        *,
        beta: float = 0.1,
        **options: Any,
    ) -> None:
        if not beta > 0:
            raise ValueError(f"DPO: beta must be > 0, got {beta}")
        super().__init__(agent, envs, training, **{"reference": "frozen", **options})
        if self.reference is None:
            raise ValueError("DPO: a reference is needed: reference='frozen' or 'ema'")
        self.beta = beta

    def update(self, result: RolloutResult, is_fresh: bool, remaining: float) -> dict[str, float]:
        result.batch.require_actions()
        pairs = _pairs(result)
        if not pairs:
            return {"skipped": 1.0, "pairs": 0.0}
        parts: list[dict[str, float]] = []
        step = self.optimizer.step(self._losses(result.batch, pairs, parts), remaining)
        means = {name: sum(p[name] for p in parts) / len(parts) for name in parts[0]}
        return {"skipped": 0.0, "pairs": float(len(pairs)), **step, **means}

    def _losses(self, batch: RolloutBatch, pairs: list[_Pair], parts: list[dict[str, float]]) -> Iterator[Tensor]:
        assert self.reference is not None
        device = self.policy.device
        for pair in pairs:
            part = batch.select([*pair.chosen, *pair.rejected])
            ids = torch.from_numpy(part.input_ids).to(device)
            mask = torch.from_numpy(part.action_mask[:, 1:]).to(device)
            logprobs, _ = self.policy(ids, mask)
            gain = (logprobs - self.reference(ids, mask)).sum(-1)
            split = len(pair.chosen)
            margin = self.beta * (gain[:split].sum() - gain[split:].sum())
            loss = -torch.nn.functional.logsigmoid(margin)
            parts.append({"loss": float(loss.detach()), "margin": float(margin.detach())})
            yield loss / len(pairs)


def _pairs(result: RolloutResult) -> list[_Pair]:
    """The first best and the first worst usable episode of each group, where they differ."""
    rows = _rows(result)
    out = []
    for group, rewards in enumerate(result.rewards):
        members = [m for m, t in enumerate(result.groups[group]) if t.status == OK and rows.get((group, m))]
        if not members:
            continue
        values = rewards[members]
        best, worst = members[int(np.argmax(values))], members[int(np.argmin(values))]
        if values.max() > values.min():
            out.append(_Pair(rows[group, best], rows[group, worst]))
    return out


def _rows(result: RolloutResult) -> dict[tuple[int, int], list[int]]:
    """The rows of each episode (group, member) in the batch; none for one that was dropped as too long."""
    out: dict[tuple[int, int], list[int]] = {}
    for row, episode in enumerate(result.batch.episodes.tolist()):
        out.setdefault(divmod(episode, result.rewards.shape[1]), []).append(row)
    return out
