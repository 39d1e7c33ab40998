"""One conversation: statuses of calls, ends of episodes, budgets, failures (I3, I11-I14)."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.envs import EpisodeRecord, Message, Source, ToolResult, ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tasks import NoOracle, TaskSet
from toolstep.envs.tools import tool

TASKS = [{"prompt": "What is 2 + 3?", "answer": "5"}]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def add(a: int, b: int = 0) -> int:
    """Add two integers."""
    return a + b


def make(*tools: object, **kwargs: object) -> ToolUseEnv:
    env = ToolUseEnv(TASKS, tools=list(tools) or [add], **kwargs)
    env.reset(seed=0)
    return env


def contents(env: ToolUseEnv) -> list[str]:
    return [m.content for m in env.messages if m.role == "tool"]


def test_each_attempt_gets_one_answer_in_order() -> None:
    env = make()
    turn = (
        call("add", a=1, b=2)
        + '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>'
        + call("sub", a=1)
        + call("add", b=1)
        + call("add", a=1, c=2)
        + call("add", a="one")
        + '<tool_call>{"arguments": {}}</tool_call>'
        + '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'
    )
    _, reward, terminated, truncated, info = env.step(turn)
    assert info["call_statuses"] == [
        "ok",
        "invalid_json",
        "unknown_tool",
        "missing_argument",
        "unexpected_argument",
        "wrong_type",
        "missing_name",
        "arguments_not_object",
    ]
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert contents(env)[0] == "3"
    for status, text in zip(info["call_statuses"][1:], contents(env)[1:], strict=True):
        assert json.loads(text)["error"] == status
    ids = [m.tool_call_id for m in env.messages if m.role == "tool"]
    assert ids == [c.id for c in env.messages[-len(ids) - 1].tool_calls]
    assert len(set(ids)) == len(ids)
    env.close()


def test_a_flood_of_calls_has_a_bounded_answer() -> None:
    env = make(max_calls=2)
    obs, _, terminated, _, info = env.step("<tool_call>" * 20_000 + call("add", a=1))
    assert not terminated
    assert len(info["call_statuses"]) <= 8
    assert info["call_statuses"][-1] == "over_limit"
    assert "more calls of the turn" in contents(env)[-1]
    assert len(obs) < 20_000
    env.close()


def test_calls_beyond_the_limit_are_answered_not_dropped() -> None:
    env = make(max_calls=2)
    info = env.step("".join(call("add", a=i) for i in range(4)))[4]
    assert info["call_statuses"] == ["ok", "ok", "over_limit", "over_limit"]
    assert len(contents(env)) == 4
    env.close()


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), ("", ""), ({}, "{}"), ([], "[]"), (None, "null"), (False, "false")]
)
def test_falsy_results_pass_through(value: object, text: str) -> None:
    def get() -> object:
        """Get."""
        return value

    env = make(get)
    assert env.step(call("get"))[4]["call_statuses"] == ["ok"]
    assert contents(env) == [text]
    env.close()


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (lambda: 1 / 0, "tool_error"),
        (lambda: sys.exit(3), "tool_error"),
        (lambda: _raise(KeyboardInterrupt()), "tool_error"),
        (lambda: object(), "tool_error"),
        (lambda: time.sleep(30), "tool_timeout"),
        (lambda: "x" * 10_000_000, "ok"),
    ],
)
def test_a_tool_that_misbehaves_is_a_status_and_the_episode_goes_on(body: object, status: str) -> None:
    def get() -> object:
        """Get."""
        return body()  # type: ignore[operator]

    env = make(get, add, tool_timeout=0.3)
    info = env.step(call("get") + call("add", a=1))[4]
    assert info["call_statuses"] == [status, "ok"]
    assert len(contents(env)[0]) < 20_000
    assert contents(env)[1] == "1"
    assert env.step("5")[1] == 1.0
    env.close()


def test_a_cut_result_says_so() -> None:
    def get() -> list[int]:
        """Get."""
        return list(range(10_000))

    env = make(get, max_result_tokens=50)
    env.step(call("get"))
    assert len(contents(env)[0]) < 400
    assert "characters left out" in contents(env)[0]
    env.close()


def test_only_offered_tools_run() -> None:
    class One(TaskSet):
        name = "one"

        def task(self, seed, split="train"):  # type: ignore[no-untyped-def]
            from toolstep.envs import Task

            return Task("t", (Message("user", "hi"),), answer="5", tools=("other",))

        def tools(self, task):  # type: ignore[no-untyped-def]
            return [tool(add, run_in="inline"), tool(add, name="other", run_in="inline")]

        def score(self, record: EpisodeRecord) -> float:
            return 0.0

        def oracle(self, record):  # type: ignore[no-untyped-def]
            raise NoOracle("none")

    env = ToolUseEnv(One())
    env.reset(seed=0)
    assert env.step(call("add", a=1) + call("other", a=1))[4]["call_statuses"] == ["unknown_tool", "ok"]
    env.close()


def test_an_answer_terminates() -> None:
    env = make()
    obs, reward, terminated, truncated, info = env.step("It is 5.")
    assert (obs, reward, terminated, truncated) == ("", 1.0, True, False)
    assert info["stop_reason"] == "answered"
    assert info["success"]
    env.close()


def test_a_tool_may_end_the_episode_and_reward_it() -> None:
    def submit(x: int) -> ToolResult:
        """Submit."""
        return ToolResult(f"got {x}", terminate=True, reward=0.25)

    env = make(submit)
    _, reward, terminated, truncated, info = env.step(call("submit", x=1))
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.25, True, False, "tool_ended")
    env.close()


def test_running_out_of_turns_truncates_and_still_shows_the_results() -> None:
    env = make(max_turns=2)
    env.step(call("add", a=1))
    obs, _, terminated, truncated, info = env.step(call("add", a=41, b=1))
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "max_turns")
    assert "42" in obs
    env.close()


def test_a_full_context_truncates_and_says_so(tokenizer: Any) -> None:
    env = ToolUseEnv(TASKS, [add], view="tokens", tokenizer=tokenizer, max_turns=None)
    prompt, info = env.reset(seed=0)
    assert info["context_tokens"] == len(prompt)
    for room, actions, reasons in (
        (0, ["5"], ["context"]),  # the prompt alone fills it: the turn is not even read
        (1, ["5"], ["answered"]),
        (40, [call("add", a=1)], ["context"]),  # the turn and its result do
        (400, [call("add", a=1), "5"], ["", "answered"]),
    ):
        env = ToolUseEnv(TASKS, [add], view="tokens", tokenizer=tokenizer, max_context=len(prompt) + room)
        env.reset(seed=0)
        got = [env.step(env.config.chat.encode_turn(a))[4]["stop_reason"] for a in actions]
        assert got == reasons, room
    env = ToolUseEnv(TASKS, [add], view="tokens", tokenizer=tokenizer, max_context=len(prompt) + 3)
    env.reset(seed=0)
    cut = env.config.chat.encode_turn("It is")[:3]
    assert env.step(cut)[4]["stop_reason"] == "context"


def test_sampled_tokens_are_budgeted(tokenizer: Any) -> None:
    env = ToolUseEnv(TASKS, [add], view="tokens", tokenizer=tokenizer, max_tokens=60)
    env.reset(seed=0)
    action = env.config.chat.encode_turn(call("add", a=1))
    steps = [env.step(action)]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(action))
    assert steps[-1][4]["stop_reason"] == "max_tokens"
    assert steps[-1][4]["sampled_tokens"] == len(steps) * len(action) >= 60 > (len(steps) - 1) * len(action)


def test_a_cut_turn_is_closed_and_its_calls_are_not_run(tokenizer: Any) -> None:
    ran: list[int] = []

    def note(a: int) -> int:
        """Note."""
        ran.append(a)
        return a

    env = ToolUseEnv(TASKS, [note], view="tokens", tokenizer=tokenizer)
    env.reset(seed=0)
    action = env.config.chat.encode_turn(call("note", a=1) + "and then")[:-1]
    obs, _, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, info["stop_reason"], info["response_truncated"]) == (False, True, "cut_turn", True)
    assert ran == []
    assert info["call_statuses"] == ["truncated"]
    assert env.config.chat.decode(obs) == "<|im_end|>"
    assert info["sources"] == bytes([Source.SCAFFOLD])


def test_wall_clock_truncates() -> None:
    env = make(max_seconds=0.01)
    time.sleep(0.02)
    _, _, terminated, truncated, info = env.step(call("add", a=1))
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "wall_clock")
    env.close()


def test_a_reward_that_is_not_finite_never_passes_silently() -> None:
    env = make(reward=lambda record: float("nan"))
    _, reward, terminated, truncated, info = env.step("5")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["stop_reason"], info["status"]) == ("error", "env_error")
    assert "nan" in info["error"]
    env.close()
    strict = make(reward=lambda record: float("nan"), strict=True)
    with pytest.raises(ValueError, match="nan"):
        strict.step("5")
    strict.close()


def test_options_of_reset_are_not_changed_and_returns_are_fresh() -> None:
    env = make()
    options = {"x": [1]}
    a = env.reset(seed=0, options=options)[1]
    b = env.reset(seed=0, options=options)[1]
    assert options == {"x": [1]}
    assert a == b
    a["new_messages"][0]["content"] = "changed"
    a["tags"]["k"] = "v"
    assert env.reset(seed=0)[1] == b
    env.close()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.text()
        | st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>", "\ud800", "{", "["])
        | st.builds(lambda n, a: f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>", JSON, JSON)
        | st.builds(lambda a: f"<tool_call>{json.dumps({'name': 'add', 'arguments': a})}</tool_call>", JSON),
        max_size=6,
    ).map("".join)
)
def test_no_model_text_makes_step_raise(text: str) -> None:
    env = make(strict=True)
    obs, reward, terminated, truncated, info = env.step(text)
    assert isinstance(obs, str)
    assert np.isfinite(reward)
    assert not truncated
    asked = [m for m in env.messages if m.role == "assistant"][-1].tool_calls
    assert len(contents(env)) == len(asked) == len(info["call_statuses"])
    assert terminated == (not asked)
    env.close()


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '<think>\n' if open_thinking else "
    "'<think>\n\n</think>\n\n' }}{% endif %}"
)


def test_thinking_is_drawn_from_the_episodes_own_generator_once_a_group() -> None:
    options = {"chat_template": THINKING, "stop_tokens": ["<|im_end|>"], "thinking_ratio": 0.5}
    envs = ToolUseVectorEnv(64, TASKS, [add], **options)
    prompts = envs.reset(seed=[i // 4 for i in range(64)])[0]  # 16 groups of 4
    opened = [p.endswith("<think>\n") for p in prompts]
    assert all(len(set(opened[i : i + 4])) == 1 for i in range(0, 64, 4))
    assert 0 < sum(opened) < 64
    # It holds for the whole episode.
    seen = envs.step(tuple(("hm</think>" if o else "") + call("add", a=1) for o in opened))[0]
    assert [s.endswith("<think>\n") for s in seen] == opened
    for ratio, tail in ((0.0, "</think>\n\n"), (1.0, "<think>\n")):
        always = ToolUseVectorEnv(4, TASKS, [add], **{**options, "thinking_ratio": ratio})
        assert all(p.endswith(tail) for p in always.reset(seed=0)[0])


def test_an_empty_list_of_calls_is_an_attempt() -> None:
    env = make()
    assert env.step("<tool_call>\n[]\n</tool_call>")[4]["call_statuses"] == ["missing_name"]
    env.close()
