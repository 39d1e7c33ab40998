"""Users who go on after an answer, and tools that hear of it."""

from __future__ import annotations

from typing import Any

import pytest

from toolstep.envs import EpisodeRecord, Message, Task, ToolUseEnv, Turn
from toolstep.envs.limits import EnvConfigError
from toolstep.envs.tasks import TaskError, TaskList, TaskSet, example_messages
from toolstep.envs.tasks.conversation import call, since_task
from toolstep.envs.tools import Tool, per_episode
from toolstep.envs.tools.bound import BoundTools
from toolstep.envs.tools.tool import tool


class Shop(BoundTools):
    """A till; what was bought can be paid once the agent has said that all is there."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.open = False
        self._tools = [tool(self.put, run_in="inline")]

    def put(self, what: str) -> str:
        """Put something on the belt."""
        self.log.append(what)
        return f"{len(self.log)} on the belt"

    def pay(self) -> str:
        """Pay."""
        self.log.append("paid")
        return "paid"

    def answered(self) -> None:
        self.log.append("answered")

    def changes(self) -> list[Tool] | None:
        if self.open or "answered" not in self.log:
            return None
        self.open = True
        self._tools = [*self._tools, tool(self.pay, run_in="inline")]
        return self._tools

    def snapshot(self) -> dict[str, Any]:
        return {"log": list(self.log)}


class Shopping(TaskSet):
    name = "shopping"
    limits = {"max_turns": 3, "max_calls": 1}

    def task(self, seed, split="train"):  # type: ignore[no-untyped-def]
        return Task(
            f"t{seed}", (Message("user", f"Put apple {seed % 1000} on the belt."),), data=f"apple {seed % 1000}"
        )

    def tools(self, task: Task) -> list[Any]:
        return [per_episode(Shop)]

    def score(self, record: EpisodeRecord) -> float:
        return float(record.state["log"] == [record.task.data, "answered", "paid", "answered"])

    def reply(self, record: EpisodeRecord) -> Message | None:
        return None if "paid" in record.state["log"] else Message("user", "Now pay.")

    def oracle(self, record: EpisodeRecord) -> Turn:
        done = sum(len(m.tool_calls) for m in since_task(record))
        asked = 1 + sum(m.role == "user" for m in since_task(record))
        if done == asked:
            return Turn("Done.")
        return call(record, ("put", {"what": record.task.data}) if asked == 1 else ("pay", {}))


def test_tools_hear_of_an_answer_and_new_ones_come_with_the_users_words() -> None:
    env = ToolUseEnv(Shopping(), max_turns=8, strict=True)
    env.reset(seed=1)
    env.step(env.oracle_action())
    assert env.step('<tool_call>{"name": "pay", "arguments": {}}</tool_call>')[4]["call_statuses"] == ["unknown_tool"]
    observation, reward, terminated, _, _ = env.step("It is there.")
    assert (reward, terminated) == (0.0, False)
    assert "Now pay.\n\nThese tools are new or have changed:\n" in observation
    assert '"name": "pay"' in observation
    assert '"name": "put"' not in observation
    assert env.record.state == {"log": [env.task.data, "answered"]}
    assert env.step('<tool_call>{"name": "pay", "arguments": {}}</tool_call>')[4]["call_statuses"] == ["ok"]
    _, reward, terminated, _, info = env.step("Done.")
    assert (reward, terminated, info["stop_reason"]) == (1.0, True, "answered")
    env.close()


def test_a_cut_answer_is_none(tokenizer: Any) -> None:
    env = ToolUseEnv(Shopping(), view="tokens", tokenizer=tokenizer)
    env.reset(seed=1)
    ids = env.config.chat.encode_turn("Done, I thi")[:-1]
    _, _, terminated, truncated, info = env.step(ids)
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "cut_turn")
    assert env.record.state == {"log": []}
    env.close()


def test_limits_of_the_set_hold_where_the_env_has_none_of_its_own() -> None:
    env = ToolUseEnv(Shopping())
    assert (env.config.limits.max_turns, env.config.limits.max_calls, env.config.limits.tool_timeout) == (3, 1, 10.0)
    env.close()
    env = ToolUseEnv(Shopping(), max_turns=None, max_calls=5)
    assert (env.config.limits.max_turns, env.config.limits.max_calls) == (None, 5)
    env.close()
    with pytest.raises(EnvConfigError, match="max_calls must be"):
        ToolUseEnv(Shopping(), max_calls=0)


def test_examples_are_shown_to_the_end_of_the_conversation() -> None:
    messages = example_messages(Shopping(), 2)
    assert [m.role for m in messages] == ["user", "assistant", "tool", "assistant"] * 4
    assert '"name": "pay"' in messages[4].content
    assert messages[4].content.startswith("Now pay.\n\nThese tools are new")


def test_a_split_that_a_list_does_not_have_is_told_when_the_env_is_made() -> None:
    with pytest.raises(TaskError, match="no test split"):
        ToolUseEnv([{"prompt": "2 + 3?", "answer": "5"}], split="test")
    assert TaskList([{"prompt": "2 + 3?", "answer": "5"}]).size() == 1
    assert Shopping().size() is None
