"""finish and clock, and built-in tools by name."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from toolstep.envs import ToolUseEnv
from toolstep.envs.tools import tool
from toolstep.envs.tools.builtin import Clock, Finish, builtin, builtin_names, monty

TASKS = [{"prompt": "What is 2 + 3?", "answer": "5"}]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def contents(env: ToolUseEnv) -> list[str]:
    return [m.content for m in env.messages if m.role == "tool"]


@pytest.mark.parametrize("answer", ["5", 5, "The answer is 5."])
def test_finish_ends_the_episode_and_its_answer_is_scored(answer: object) -> None:
    env = ToolUseEnv(TASKS, tools=["finish"])
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step(call("finish", answer=answer))
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, True, False, "tool_ended")
    env.close()


def test_finish_runs_beside_other_calls_and_is_named_as_wished() -> None:
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    env = ToolUseEnv(TASKS, tools=[tool(double, run_in="inline"), "submit"])
    env.reset(seed=0)
    _, reward, *_ = env.step(call("submit", answer="4") + call("double", x=4))
    assert reward == 0.0
    assert contents(env)[1] == "8"
    env.close()


def test_an_answer_of_the_wrong_type_does_not_end_the_episode() -> None:
    env = ToolUseEnv(TASKS, tools=[Finish()])
    env.reset(seed=0)
    for wrong in ({"answer": [5]}, {"answer": True}, {}):
        _, _, terminated, _, info = env.step(call("finish", **wrong))
        assert not terminated
        assert info["call_statuses"][0] in ("wrong_type", "missing_argument")
    env.close()


def test_the_clock_stands_still_and_knows_time_zones() -> None:
    env = ToolUseEnv(TASKS, tools=[Clock(datetime(2030, 7, 1, 22, 30, tzinfo=UTC))])
    env.reset(seed=0)
    env.step(call("clock") + call("clock", timezone="Asia/Tokyo") + call("clock", timezone="berlin"))
    assert contents(env) == [
        "2030-07-01T22:30:00+00:00 (Monday)",
        "2030-07-02T07:30:00+09:00 (Tuesday)",
        "2030-07-02T00:30:00+02:00 (Tuesday)",
    ]
    env.close()


@pytest.mark.parametrize("zone", ["Europe/Berlim", "../../etc/passwd", "/etc/passwd", "", "x" * 10_000, "UTC\x00"])
def test_an_unknown_time_zone_is_an_error_to_act_on(zone: str) -> None:
    env = ToolUseEnv(TASKS, tools=["clock"])
    env.reset(seed=0)
    _, _, _, _, info = env.step(call("clock", timezone=zone))
    assert info["call_statuses"] == ["tool_error"]
    assert "Europe/Berlin" in contents(env)[0]
    assert len(contents(env)[0]) < 500
    env.close()


def test_a_clock_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        Clock(datetime(2030, 7, 1))


def test_every_name_makes_tools_and_an_unknown_one_is_told_the_nearest() -> None:
    for name in builtin_names():
        if name == "python" and monty.missing():
            continue
        env = ToolUseEnv(TASKS, tools=[name])
        env.reset(seed=0)
        assert env.schemas, name
        env.close()
    with pytest.raises(ValueError, match=r"did you mean 'finish'.*calculator"):
        builtin("finnish")
