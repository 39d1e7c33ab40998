"""Online DPO: the best of a group against its worst, held to the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learn_setup import add, even, make_agent, make_envs, same, weights

from toolstep.rollout.learn import DPO, Training


def learner(**options: Any) -> DPO:
    agent = make_agent()
    envs = make_envs(agent, tools=[add])
    return DPO(agent, envs, Training(learning_rate=1e-2), **{"groups": 2, "group_size": 4, "reward": even, **options})


def history(made: DPO, episodes: int) -> list[dict[str, float]]:
    seen: list[dict[str, float]] = []
    made.learn(episodes, callbacks=[lambda _, metrics: seen.append(dict(metrics))])
    return seen


def test_what_is_preferred_becomes_more_likely() -> None:
    seen = history(learner(groups=4, group_size=8), 32 * 12)
    assert np.mean([m["reward"] for m in seen[-2:]]) > np.mean([m["reward"] for m in seen[:2]]) + 0.15


def test_the_loss_is_that_of_the_paper() -> None:
    made = learner(beta=0.3)
    assert made.reference is not None
    with torch.no_grad():
        made.model.lm_head.weight.mul_(1.1)  # else policy and reference are one
    made.agent.update_weights()
    result, _ = made.runner([3, 4])

    def logp(model: Any, t: Any) -> float:
        ids = torch.from_numpy(t.token_ids.astype(np.int64))[None]
        found = torch.log_softmax(model(input_ids=ids).logits[0, :-1].double(), -1).gather(-1, ids[0, 1:, None])[:, 0]
        return float(found[torch.from_numpy(t.action_mask[1:])].sum())

    expected = []
    reference = made.reference._copy.model  # type: ignore[union-attr]
    for group, rewards in zip(result.groups, result.rewards):
        best, worst = group[int(np.argmax(rewards))], group[int(np.argmin(rewards))]
        gain = [logp(made.model, t) - logp(reference, t) for t in (best, worst)]
        expected.append(np.log1p(np.exp(-0.3 * (gain[0] - gain[1]))))
    metrics = made.update(result, True, 1.0)
    assert metrics["pairs"] == 2
    assert metrics["loss"] == pytest.approx(np.mean(expected), abs=1e-4)


def test_ties_make_no_pair_and_move_no_weight() -> None:
    made = learner(reward=lambda groups: np.ones((len(groups), 4)))
    before = weights(made)
    (metrics,) = history(made, 8)
    assert metrics["pairs"] == 0
    assert metrics["skipped"] == 1
    assert same(before, weights(made))


def test_a_member_that_failed_or_was_dropped_is_no_side_of_a_pair() -> None:
    from dataclasses import replace

    from toolstep.rollout import RolloutBatch
    from toolstep.rollout.learn.dpo import _pairs

    result, _ = learner().runner([3, 4])
    best = int(np.argmax(result.rewards[0]))
    groups = [list(g) for g in result.groups]
    groups[0][best] = replace(groups[0][best], status="env_error")
    batch = RolloutBatch.from_trajectories([t for g in groups for t in g])
    first = _pairs(replace(result, groups=groups, batch=batch))[0]
    assert best not in batch.episodes[[*first.chosen, *first.rejected]]
    kept = min(t.context for t in result.groups[0])
    batch = RolloutBatch.from_trajectories(result.trajectories, max_length=kept)
    for pair in _pairs(replace(result, batch=batch)):
        for row in (*pair.chosen, *pair.rejected):
            assert result.trajectories[batch.episodes[row]].context <= kept


@pytest.mark.parametrize(
    ("options", "message"), [({"beta": 0.0}, "beta must be > 0"), ({"reference": None}, "reference is needed")]
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(**options)
