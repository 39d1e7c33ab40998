"""Rewards over a finished episode."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from toolstep.envs.rewards import (
    RewardError,
    Rubric,
    call_cost,
    exact_match,
    format_errors,
    invalid_calls,
    make_rubric,
    number_match,
    tool_success,
    unfinished,
)
from toolstep.envs.types import CallStatus, EpisodeRecord, Message, StopReason, Task

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
) -> EpisodeRecord:
    task = Task("sums/7", (Message("user", "2 + 2?"),), expected)
    return EpisodeRecord(task, (*task.messages, Message("assistant", answer)), stop, 1, tuple(statuses))


@pytest.mark.parametrize(
    ("answer", "expected", "value"),
    [
        ("Paris.", "paris", 1.0),
        (" **Paris** ", "Paris", 1.0),
        ("Paris, France", "Paris", 0.0),
        ("", "x", 0.0),
    ],
)
def test_exact_match(answer: str, expected: str, value: float) -> None:
    assert exact_match(record(answer, expected)) == value


@pytest.mark.parametrize(
    ("answer", "expected", "value"),
    [
        ("= 1,234", 1234, 1.0),
        ("1532", "5", 0.0),
        ("3/4", 0.75, 1.0),
        ("75%", "0.75", 1.0),
        ("so #### 12", "reasoning\n#### 12", 1.0),
        ("none", "5", 0.0),
        ("5", "none", 0.0),
    ],
)
def test_number_match(answer: str, expected: object, value: float) -> None:
    assert number_match(record(answer, expected)) == value


def test_terms_count_what_they_say() -> None:
    mixed = record(statuses=[OK, OK, BAD, UNFIT, FAILED], stop=StopReason.MAX_TURNS)
    assert format_errors(mixed) == -1
    assert invalid_calls(mixed) == -1
    assert tool_success(mixed) == 0.4
    assert call_cost(mixed) == -5
    assert unfinished(mixed) == -1
    clean = record()
    assert [f(clean) for f in (format_errors, invalid_calls, tool_success, call_cost, unfinished)] == [0] * 5
    assert unfinished(record(stop=StopReason.TASK_ENDED)) == 0


def test_every_status_belongs_to_at_most_one_penalty() -> None:
    for status in CallStatus:
        one = record(statuses=[status])
        assert format_errors(one) + invalid_calls(one) + (tool_success(one) - 1) in (-1, -2, 0)
        assert (status is OK) == (tool_success(one) == 1)


def test_only_the_outcome_counts_by_default() -> None:
    rubric = make_rubric(number_match)
    bad = record(statuses=[BAD, UNFIT, FAILED], stop=StopReason.MAX_TURNS)
    assert rubric(bad) == 1.0
    assert rubric.terms(bad) == {
        "outcome": 1.0,
        "format_errors": 0.0,
        "invalid_calls": 0.0,
        "tool_success": 0.0,
        "call_cost": 0.0,
        "unfinished": 0.0,
    }


def test_reward_is_the_sum_of_its_terms() -> None:
    rubric = make_rubric(number_match, weight=2.0, format_weight=0.5, call_weight=0.1, unfinished_weight=0.25)
    one = record(statuses=[OK, BAD], stop=StopReason.CUT_TURN)
    terms = rubric.terms(one)
    assert terms["outcome"] == 2.0
    assert terms["format_errors"] == -0.5
    assert terms["call_cost"] == pytest.approx(-0.2)
    assert terms["unfinished"] == -0.25
    assert rubric(one) == math.fsum(terms.values())
    assert rubric.weights["outcome"] == 2.0


def test_term_without_weight_is_not_computed() -> None:
    def broken(record: EpisodeRecord) -> float:
        raise AssertionError

    assert Rubric({"a": (1.0, number_match), "b": (0.0, broken)}).terms(record()) == {"a": 1.0, "b": 0.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1", [1]])
def test_reward_that_is_not_finite_is_refused_by_name(value: object) -> None:
    rubric = Rubric({"style": (0.5, lambda record: value)})  # type: ignore[dict-item,return-value]
    with pytest.raises(RewardError, match=r"'style' gave .* for task 'sums/7'"):
        rubric(record())


@pytest.mark.parametrize("weight", [math.nan, math.inf, True, "1"])
def test_weight_must_be_finite(weight: object) -> None:
    with pytest.raises(ValueError, match="'a': the weight must be a finite number"):
        Rubric({"a": (weight, number_match)})  # type: ignore[dict-item]


def test_huge_terms_do_not_overflow_quietly() -> None:
    rubric = Rubric({"a": (1e300, lambda record: 1e300)})
    with pytest.raises(RewardError, match="'a'"):
        rubric(record())
