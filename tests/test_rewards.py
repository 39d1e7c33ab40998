"""What an episode earns: the terms, their weighted sum, and how an env pays it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.limits import EnvConfigError
from toolstep.envs.rewards import TERMS, Numeric, RewardError, Rubric, make_rubric
from toolstep.envs.rewards.calls import same_value
from toolstep.envs.rewards.terms import call_cost, format_errors, invalid_calls, token_cost, tool_success, unfinished
from toolstep.envs.types import CallStatus, EpisodeRecord, Message, ReferenceCall, StopReason, Task, ToolCall

OK, BAD, UNFIT, FAILED = (
    CallStatus.OK,
    CallStatus.INVALID_JSON,
    CallStatus.UNKNOWN_TOOL,
    CallStatus.TOOL_ERROR,
)


def record(
    answer: str = "4",
    expected: object = "4",
    statuses: Sequence[CallStatus] = (),
    stop: StopReason | None = StopReason.ANSWERED,
    tokens: int = 0,
) -> EpisodeRecord:
    task = Task("sums/7", (Message("user", "2 + 2?"),), expected)
    return EpisodeRecord(task, (*task.messages, Message("assistant", answer)), stop, 1, tuple(statuses), tokens)


def right(episode: EpisodeRecord) -> float:
    return float(episode.answer == episode.task.answer)


# ---------------------------------------------------------------------------------------------------------------- terms
def test_terms_count_what_they_say() -> None:
    mixed = record(statuses=[OK, OK, BAD, UNFIT, FAILED], stop=StopReason.MAX_TURNS, tokens=17)
    assert format_errors(mixed) == -1
    assert invalid_calls(mixed) == -1
    assert tool_success(mixed) == 0.4
    assert call_cost(mixed) == -5
    assert token_cost(mixed) == -17
    assert unfinished(mixed) == -1
    found = [f(record()) for f in (format_errors, invalid_calls, tool_success, call_cost, token_cost, unfinished)]
    assert json.dumps(found) == "[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]"  # and no -0.0
    assert unfinished(record(stop=StopReason.TASK_ENDED)) == 0


def test_every_status_belongs_to_at_most_one_penalty() -> None:
    for status in CallStatus:
        one = record(statuses=[status])
        assert format_errors(one) + invalid_calls(one) + (tool_success(one) - 1) in (-1, -2, 0)
        assert (status is OK) == (tool_success(one) == 1)


def accuracy(made: Sequence[tuple[str, Any]], wanted: Sequence[tuple[str, Any]] | None) -> float | None:
    reference = None if wanted is None else tuple(ReferenceCall(n, a) for n, a in wanted)
    task = Task("t", (Message("user", "?"),), calls=reference)
    calls = tuple(ToolCall(str(i), n, "", a) for i, (n, a) in enumerate(made))
    example = Message("assistant", "", tool_calls=(ToolCall("9", "g", "", {}),))  # a worked one, before the task
    messages = (example, *task.messages, Message("assistant", "", tool_calls=calls))
    return TERMS["call_accuracy"](EpisodeRecord(task, messages, StopReason.ANSWERED, 1))


@pytest.mark.parametrize(
    ("made", "wanted", "value"),
    [
        ([("f", {"x": 1})], None, None),
        ([], [], 1.0),
        ([("f", {})], [], 0.0),
        ([], [("f", {})], 0.0),
        ([("f", {})], [("f", {})], 1.0),
        ([("f", {"x": "1 "})], [("f", {"x": 1.0})], 1.0),
        ([("f", {"x": 1})], [("f", {"x": 2})], 2 / 3),
        ([("f", {"y": 1})], [("f", {"x": 1})], 1 / 3),
        ([("f", {"x": 1, "y": 2})], [("f", {"x": 1})], 2 / 3),
        ([("g", {"x": 1})], [("f", {"x": 1})], 0.0),
        ([("f", {"x": 2}), ("f", {"x": 1})], [("f", {"x": 1}), ("f", {"x": 2})], 1.0),  # in any order
        ([("f", {"x": 1})] * 2, [("f", {"x": 1})], 0.5),  # one too many
        ([("f", {"x": 1})], [("f", {"x": 1}), ("f", {"x": 1})], 0.5),
        ([("f", None), ("f", {"x": 1})], [("f", {"x": 1})], 1.0),  # what could not be read is another term's affair
    ],
)
def test_calls_are_compared_with_those_of_the_reference(made: Any, wanted: Any, value: float | None) -> None:
    assert accuracy(made, wanted) == (None if value is None else pytest.approx(value))


def test_hostile_calls_are_compared_in_bounded_time() -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    flood = [("f", {"x": i}) for i in range(5_000)]
    assert accuracy([("f", {"x": deep})], [("f", {"x": deep})]) == pytest.approx(2 / 3)
    assert accuracy(flood, [("f", {"x": 1}), ("f", {"x": 2})]) == pytest.approx(2 / 5_000)


@pytest.mark.parametrize(
    ("made", "wanted", "same"),
    [
        (True, 1, False),
        (1, 1.0, True),
        ("1,000", 1000, True),
        ("a", "A", False),
        ({"a": [1, "2"]}, {"a": ["1", 2]}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        (None, None, True),
        (None, 0, False),
        (math.nan, math.nan, False),
        (math.inf, 1, False),
        (0.1, "0.1", True),
        pytest.param(10**5000, 1, False, id="huge"),
    ],
)
def test_values_mean_the_same(made: Any, wanted: Any, same: bool) -> None:
    assert same_value(made, wanted) is same


# --------------------------------------------------------------------------------------------------------------- rubric
def test_only_the_outcome_counts_by_default_and_all_terms_are_told() -> None:
    rubric = make_rubric(right)
    bad = record(statuses=[BAD, UNFIT, FAILED], stop=StopReason.MAX_TURNS)
    assert rubric(bad) == 1.0
    assert rubric.values(bad) == {
        "outcome": 1.0,
        "format": -1.0,
        "call_validity": -1.0,
        "tool_success": 0.0,
        "call_cost": -3.0,
        "token_cost": 0.0,
        "unfinished": -1.0,
    }


def test_reward_is_the_weighted_sum_of_its_terms() -> None:
    rubric = make_rubric(right, {"outcome": 2, "format": 0.5, "call_cost": 0.1, "unfinished": 0.25})
    one = record(statuses=[OK, BAD], stop=StopReason.CUT_TURN)
    assert rubric(one) == pytest.approx(2 - 0.5 - 0.2 - 0.25)
    assert rubric.weights["outcome"] == 2.0
    assert rubric.weights["token_cost"] == 0.0


@pytest.mark.parametrize(("clip", "value"), [((-1, 1), -1.0), ((None, -2), -3.0), ((-2.5, None), -2.5), (None, -3.0)])
def test_sum_is_clipped(clip: Any, value: float) -> None:
    assert make_rubric(lambda _: 0.0, {"call_cost": 1.0}, clip=clip)(record(statuses=[OK] * 3)) == value


@pytest.mark.parametrize("clip", [3, "ab", (1, 0), (0, math.nan), (1,), (True, 2)])
def test_bounds_that_are_none_are_refused(clip: Any) -> None:
    with pytest.raises(ValueError, match="must be \\(least, most\\)"):
        make_rubric(right, clip=clip)


def test_unknown_term_has_the_nearest() -> None:
    with pytest.raises(ValueError, match="no reward term 'call_costs'; did you mean 'call_cost'"):
        make_rubric(right, {"call_costs": 1.0})
    with pytest.raises(ValueError, match="must be a dict"):
        make_rubric(right, ["call_cost"])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", [1]])
def test_reward_that_is_not_finite_is_refused_by_name(value: object) -> None:
    rubric = Rubric({"style": (0.5, lambda record: value)})  # type: ignore[dict-item,return-value]
    with pytest.raises(RewardError, match=r"'style' gave .* for task 'sums/7'"):
        rubric(record())


@pytest.mark.parametrize("weight", [math.nan, math.inf, True, "1"])
def test_weight_must_be_finite(weight: object) -> None:
    with pytest.raises(ValueError, match="'a': the weight must be a finite number"):
        Rubric({"a": (weight, right)})  # type: ignore[dict-item]


def test_huge_terms_do_not_overflow_quietly() -> None:
    with pytest.raises(RewardError, match="'a'"):
        Rubric({"a": (1e300, lambda record: 1e300)})(record())
    with pytest.raises(RewardError, match="'sum'"):
        Rubric({"a": (1.0, lambda record: 1.7e308), "b": (1.0, lambda record: 1.7e308)})(record())


# ------------------------------------------------------------------------------------------------------------------ env
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


ITEM = {"prompt": "2 + 3?", "answer": 5, "calls": [{"name": "add", "arguments": {"a": 2, "b": 3}}]}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 30}}</tool_call>'


def end(env: ToolUseEnv, *actions: str) -> tuple[float, dict[str, Any]]:
    env.reset(seed=0)
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
    assert terminated or truncated
    env.close()
    return float(reward), info


def test_an_episode_tells_each_term() -> None:
    env = ToolUseEnv([ITEM], tools=[add], reward_weights={"call_accuracy": 0.3, "call_cost": 0.1})
    reward, info = end(env, CALL, "Five, 5")
    likeness = (1 + 1 + 0.5) / 3
    assert info["reward_terms"] == {
        "outcome": 1.0,
        "format": 0.0,
        "call_validity": 0.0,
        "call_accuracy": pytest.approx(likeness),
        "tool_success": 1.0,
        "call_cost": -1.0,
        "token_cost": 0.0,
        "unfinished": 0.0,
    }
    assert reward == pytest.approx(1 + 0.3 * likeness - 0.1)


def test_nothing_but_the_outcome_is_paid_by_default() -> None:
    reward, info = end(ToolUseEnv([ITEM], tools=[add]), CALL, "6")
    assert (reward, info["score"], info["reward_terms"]["call_cost"]) == (0.0, 0.0, -1.0)


def test_no_terms_are_told_before_the_end() -> None:
    env = ToolUseEnv([ITEM], tools=[add])
    env.reset(seed=0)
    assert env.step(CALL)[-1]["reward_terms"] == {}
    env.close()


def test_a_named_reward_says_what_success_is() -> None:
    for reward, paid in (("exact", 0.0), ("numeric", 1.0), ({"name": "numeric", "abs": 1}, 1.0), (Numeric(), 1.0)):
        found, info = end(ToolUseEnv([ITEM], tools=[add], reward=reward), "It is 5.")
        assert (found, info["score"], info["success"]) == (paid, paid, paid == 1.0)
    assert end(ToolUseEnv([ITEM], tools=[add], reward=Numeric), "5")[0] == 1.0


def test_a_named_reward_scores_built_in_tasks_too() -> None:
    env = ToolUseEnv("calculator", level=1, reward={"name": "numeric", "abs": 1000000})
    assert end(env, "1")[0] == 1.0
    assert end(ToolUseEnv("calculator", level=1), "1")[0] == 0.0


def test_a_function_pays_and_the_score_stays_the_tasks_own() -> None:
    def length(episode: EpisodeRecord) -> float:
        return len(episode.answer) / 10

    env = ToolUseEnv([ITEM], tools=[add], reward=length, reward_weights={"outcome": 2.0})
    reward, info = end(env, "It is 5")
    assert (reward, info["score"], info["reward_terms"]["outcome"]) == (pytest.approx(1.4), 1.0, 0.7)


def test_a_reward_that_fails_is_no_reward_of_zero() -> None:
    reward, info = end(ToolUseEnv([ITEM], reward=lambda episode: math.nan), "5")
    assert (reward, info["status"], info["stop_reason"]) == (0.0, "env_error", "error")
    assert "'outcome' gave nan" in info["error"]


def test_terms_of_a_rubric_are_its_own() -> None:
    rubric = Rubric({"a": (2.0, lambda episode: 3.0), "outcome": (1.0, lambda episode: 7.0)}, clip=(0, 10))
    reward, info = end(ToolUseEnv([ITEM], reward=rubric), "6")
    assert (reward, info["reward_terms"], info["score"]) == (10.0, {"a": 3.0, "outcome": 7.0}, 0.0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"reward": "numbers"}, "there is no reward 'numbers'; did you mean 'numeric'"),
        ({"reward": 3}, "reward must be a name"),
        ({"reward": {"name": "numeric", "relative": 1}}, "'numeric' has no option 'relative'"),
        ({"reward": "no_module_of_that:name"}, "cannot import the reward 'no_module_of_that:name'"),
        ({"reward_weights": {"cost": 1.0}}, "no reward term 'cost'"),
        ({"reward_weights": {"call_cost": "1"}}, "must be a finite number"),
        ({"reward_clip": [1, 0]}, "clip of a reward"),
        ({"reward": Rubric({}), "reward_clip": [0, 1]}, "do not go with a Rubric"),
    ],
)
def test_rewards_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(EnvConfigError, match=problem):
        ToolUseEnv([ITEM], **options)


def test_reward_keywords_go_through_gymnasium_and_json() -> None:
    options: dict[str, Any] = {
        "reward": {"name": "numeric", "rel": 0.5},
        "reward_weights": {"call_cost": 0.5, "tool_success": 0.25},
        "reward_clip": [-1, 0.75],
    }
    env = gym.make("toolstep/Calculator-v0", level=1, **options)
    made = [env, gym.make(EnvSpec.from_json(env.spec.to_json()))]
    for e in made:
        assert end(e.unwrapped, e.unwrapped.task.answer if e.reset(seed=0) else "")[0] == 0.75
    vec = gym.make_vec("toolstep/Calculator-v0", num_envs=3, autoreset_mode="SameStep", level=1, **options)
    vec.reset(seed=0)
    actions = tuple(vec.unwrapped.oracle_actions())
    vec.step(actions)
    _, rewards, terminations, _, infos = vec.step(tuple(vec.unwrapped.oracle_actions()))
    assert terminations.all()
    assert rewards.tolist() == [0.75] * 3  # 1 - 0.5 + 0.25
    assert infos["final_info"]["reward_terms"]["call_cost"].tolist() == [-1.0] * 3
    vec.close()


def test_rows_of_a_vector_env_tell_the_terms_of_one_env() -> None:
    options: dict[str, Any] = {"tools": [add], "reward_weights": {"call_cost": 0.1}}
    rows = ToolUseVectorEnv(2, [ITEM], autoreset_mode="Disabled", **options)
    rows.reset(seed=0)
    rows.step((CALL, "5"))
    rows.reset(seed=0)
    rows.step((CALL, CALL))
    *_, infos = rows.step(("5", "x"))
    reward, info = end(ToolUseEnv([ITEM], **options), CALL, "5")
    told = {name: values[0] for name, values in infos["reward_terms"].items() if not name.startswith("_")}
    assert told == info["reward_terms"]
    assert reward == pytest.approx(0.9)
    rows.close()
