"""RolloutGenerator and RolloutRunner: rewards by group, reuse that is explicit and never answers for other tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learn_setup import add, even, make_agent, make_envs

from toolstep.rollout import RolloutGenerator, RolloutRunner
from toolstep.rollout.batch import BatchError
from toolstep.rollout.generator import RewardError
from toolstep.rollout.runner import StaleWeights

TASKS = [11, 12, 13]


def generator(**options: Any) -> RolloutGenerator:
    agent = make_agent()
    return RolloutGenerator(agent, make_envs(agent, tools=[add]), 2, **options)


def ids(result: Any) -> list[list[int]]:
    return [t.token_ids.tolist() for t in result.trajectories]


def test_a_group_has_one_prompt_and_different_samples() -> None:
    result = generator()(TASKS)
    assert [len(g) for g in result.groups] == [2, 2, 2]
    assert [[t.seed for t in g] for g in result.groups] == [[s, s] for s in TASKS]
    for a, b in result.groups:
        assert np.array_equal(a.token_ids[: a.prompt_length], b.token_ids[: b.prompt_length])
        assert a.token_ids.tolist() != b.token_ids.tolist()
    assert result.rewards.shape == (3, 2)
    assert result.weight_version == 0
    assert result.metrics.episodes == 6


def test_the_same_tasks_are_sampled_anew_at_each_call_and_the_same_in_each_run() -> None:
    one, other = generator(), generator()
    first, second = one(TASKS), one(TASKS)
    assert ids(first) != ids(second)
    assert [ids(first), ids(second)] == [ids(other(TASKS)), ids(other(TASKS))]
    assert ids(generator(seed=1)(TASKS)) != ids(first)


def test_a_reward_sees_whole_trajectories_and_decides_the_advantages() -> None:
    seen: list[Any] = []

    def reward(groups: Any) -> list[list[float]]:
        seen.extend(groups)
        return [[0.0, 2.0]] * len(groups)

    result = generator(reward=reward)(TASKS)
    assert seen == result.groups
    assert all(t.messages[-1]["role"] == "assistant" for t in result.trajectories)
    assert np.array_equal(result.rewards, [[0.0, 2.0]] * 3)
    first = result.batch.action_mask & (result.batch.episodes % 2 == 0)[:, None]
    second = result.batch.action_mask & (result.batch.episodes % 2 == 1)[:, None]
    assert np.allclose(result.batch.advantages[first], -1, atol=1e-3)
    assert np.allclose(result.batch.advantages[second], 1, atol=1e-3)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([[0.0, 1.0]] * 2, r"reward 'wrong' must return \[groups, members\] = \[3, 2\], got shape \[2, 2\]"),
        ([0.0] * 6, r"must return \[groups, members\] = \[3, 2\], got shape \[6\]"),
        ([[0.0, 1.0], [0.0, float("nan")], [0.0, 1.0]], r"of group 1, member 1 \(task .*\) must be a finite number"),
        ([[0.0, float("-inf")]] * 3, "of group 0, member 1 .* got -inf"),
        ([["a", "b"]] * 3, "must return numbers of shape"),
        (None, "must return"),
    ],
)
def test_a_reward_that_is_no_finite_number_for_each_episode_is_refused_by_name(returned: Any, message: str) -> None:
    def wrong(groups: Any) -> Any:
        return returned

    with pytest.raises(RewardError, match=message):
        generator(reward=wrong)(TASKS)


def test_credit_by_turn_needs_the_rewards_of_the_env() -> None:
    with pytest.raises(ValueError, match="credit='turn' needs the env's own rewards"):
        generator(reward=even, credit="turn")


def test_without_tools_an_episode_is_one_turn_by_the_same_code() -> None:
    agent = make_agent()
    result = RolloutGenerator(agent, make_envs(agent), 3, reward=even)([5, 6])
    assert [t.turns for t in result.trajectories] == [1] * 6
    assert result.batch.action_mask.sum() == sum(t.sampled for t in result.trajectories) > 0


def test_weights_that_change_within_a_rollout_are_refused() -> None:
    made = generator()
    calls = 0
    step = made.agent.engine.step  # type: ignore[attr-defined]

    def stepped() -> Any:
        nonlocal calls
        calls += 1
        if calls == 9:
            made.agent.update_weights()  # type: ignore[attr-defined]
        return step()

    made.agent.engine.step = stepped  # type: ignore[attr-defined]
    with pytest.raises(BatchError, match=r"sampled by weights of the versions \[0, 1\]"):
        made(TASKS)


def test_a_result_serves_as_many_steps_as_it_may_and_then_a_fresh_one_comes() -> None:
    runner = RolloutRunner(generator(), rollout_interval=2)
    first, fresh = runner(TASKS)
    assert fresh
    runner.step()
    again, fresh = runner(TASKS)
    assert again is first
    assert not fresh
    runner.step()
    last, fresh = runner(TASKS)
    assert fresh
    assert last is not first
    assert last.weight_version == 1  # the agent was told of the trained weights


def test_a_result_never_answers_for_other_tasks() -> None:
    runner = RolloutRunner(generator(), rollout_interval=100)
    runner(TASKS)
    other, fresh = runner([21, 22])
    assert fresh
    assert [t.seed for t in other.trajectories] == [21, 21, 22, 22]
    back, fresh = runner(TASKS)
    assert fresh
    assert [t.seed for t in back.trajectories] == [11, 11, 12, 12, 13, 13]


def test_clear_cache_makes_the_next_result_fresh() -> None:
    runner = RolloutRunner(generator(), rollout_interval=100)
    runner(TASKS)
    runner.clear_cache()
    assert runner(TASKS)[1]


def test_weights_from_elsewhere_end_the_reuse_with_an_error() -> None:
    runner = RolloutRunner(generator(), rollout_interval=2)
    runner(TASKS)
    runner.generator.agent.update_weights()  # type: ignore[attr-defined]
    with pytest.raises(StaleWeights, match="are of weights 0, the agent has weights 1 now"):
        runner(TASKS)


def test_an_agent_that_keeps_its_version_is_found_out() -> None:
    runner = RolloutRunner(generator())
    runner(TASKS)
    runner.step()
    runner.generator.agent.update_weights = lambda: 0  # type: ignore[attr-defined]
    with pytest.raises(StaleWeights, match="left the version at 0"):
        runner(TASKS)


@pytest.mark.parametrize("interval", [0, -1])
def test_an_interval_below_one_is_refused(interval: int) -> None:
    with pytest.raises(ValueError, match="rollout_interval must be >= 1"):
        RolloutRunner(generator(), interval)
