"""The fixed conversations of an audit: what can stand between two turns of an episode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolstep.envs.types import Message, ToolCall, Turn

Ended = Literal["stop", "none", "other"]
Kind = Literal["prompt", "delta", "close", "past"]

SYSTEM = Message("system", "You are a weather bot.")
USER = Message("user", "How is the weather up north?")
FOLLOW = Message("user", "And what about tomorrow?")
THOUGHT = "The user wants Iceland, so I look there."
PLACE = "Reykjavik"  # stands nowhere but in the audited turn: behind it the turn ends
UNICODE = "Zürich 21°C — 東京 \U0001f9d1\U0001f3fd\u200d\U0001f680 \u0e01\u0e33 e\u0301 \u05e9\u05dc\u05d5\u05dd"

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Name of the city"}},
                "required": ["city"],
            },
        },
    }
    for name, description in (("get_weather", "Look up the weather of a city."), ("get_time", "Tell a city's time."))
]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One conversation.

    kind: what is asked of the template: the first prompt, the delta behind `turn`, the close of a turn that was
        cut, or a delta where it is the task and the tools that hold control tokens.
    before: messages between the opening and the turn.  new: what the environment adds.
    ended: whether the sample ended with the natural stop token, with none, or with another one.
    hostile: the contents hold control tokens.
    """

    name: str
    title: str
    kind: Kind = "delta"
    turn: Turn | None = None
    new: tuple[Message, ...] = ()
    before: tuple[Message, ...] = ()
    ended: Ended = "stop"
    hostile: bool = False
    thought_open: bool = False


def scenarios(hostile: str) -> list[Scenario]:
    """All of them, in the order in which they are shown; `hostile` is text that holds control tokens."""
    one = Turn("", None, calls(1))
    two = Turn("", None, calls(2))
    earlier = Turn("", None, (_call(0, "Oslo"),))
    rounds = (said(earlier), result(0, "rain, 4C"))
    answer = Turn(f"It is sunny in {PLACE}.")
    thinking = Turn("", THOUGHT, calls(1))
    sunny = result(0, "sunny, 21C")
    second = Turn("", None, (_call(1, PLACE),))
    return [
        Scenario("prompt", "first prompt", "prompt"),
        Scenario("one_result", "one tool result", turn=one, new=(sunny,)),
        Scenario("several_results", "several tool results", turn=two, new=(sunny, result(1, "12:30"))),
        Scenario(
            "text_and_calls", "result after text and a call", turn=Turn("Let me look.", None, calls(1)), new=(sunny,)
        ),
        Scenario("second_round", "second round of calls", turn=second, new=(result(1, "sunny, 21C"),), before=rounds),
        Scenario(
            "text_second_round",
            "second round, text before the call",
            turn=Turn("Let me look.", None, second.calls),
            new=(result(1, "sunny, 21C"),),
            before=rounds,
        ),
        Scenario(
            "after_several",
            "round after one with several calls",
            turn=Turn("", None, (_call(2, PLACE),)),
            new=(result(2, "sunny, 21C"),),
            before=(
                said(Turn("", None, (earlier.calls[0], _call(1, "Bergen")))),
                result(0, "rain, 4C"),
                result(1, "12:30"),
            ),
        ),
        Scenario("user_follow_up", "user message after an answer", turn=answer, new=(FOLLOW,)),
        Scenario("user_after_tools", "user message after a tool round", turn=answer, new=(FOLLOW,), before=rounds),
        Scenario("tool_and_user", "tool result and user message together", turn=one, new=(sunny, FOLLOW)),
        Scenario("thinking_result", "tool result after thinking", turn=thinking, new=(sunny,)),
        Scenario("thinking_user", "user message after thinking", turn=Turn(answer.content, THOUGHT), new=(FOLLOW,)),
        Scenario("cut_turn", "turn cut by length", "close", turn=Turn(f"It is sunny in {PLACE}"), ended="none"),
        Scenario(
            "cut_thought", "turn cut inside a thought", "close", turn=Turn("", THOUGHT), ended="none", thought_open=True
        ),
        Scenario("no_stop_result", "tool result, stop token not sampled", turn=one, new=(sunny,), ended="none"),
        Scenario("no_stop_user", "user message, stop token not sampled", turn=answer, new=(FOLLOW,), ended="none"),
        Scenario("other_stop_result", "tool result after another stop token", turn=one, new=(sunny,), ended="other"),
        Scenario("other_stop_user", "user message after another stop token", turn=answer, new=(FOLLOW,), ended="other"),
        Scenario("empty_result", "empty tool result", turn=one, new=(result(0, ""),)),
        Scenario("padded_result", "result with white space around it", turn=one, new=(result(0, "\n  sunny \n\n"),)),
        Scenario(
            "json_result", "result with quotes and braces", turn=one, new=(result(0, '{"a": "\\"b\\" \\\\ \'c\'"}'),)
        ),
        Scenario("unicode_result", "unicode result", turn=one, new=(result(0, UNICODE),)),
        Scenario(
            "hostile_result", "result that holds control tokens", turn=one, new=(result(0, hostile),), hostile=True
        ),
        Scenario(
            "hostile_user",
            "user text that holds control tokens",
            turn=answer,
            new=(Message("user", hostile),),
            hostile=True,
        ),
        Scenario(
            "hostile_prompt",
            "task text that holds control tokens",
            "prompt",
            hostile=True,
            new=(Message("user", hostile),),
        ),
        Scenario(
            "hostile_past",
            "task and tools with control tokens, later on",
            "past",
            turn=answer,
            new=(FOLLOW,),
            hostile=True,
        ),
    ]


def _call(number: int, city: str) -> ToolCall:
    name = TOOLS[number % 2]["function"]["name"]
    return ToolCall(f"call{number:05d}", name, f'{{"city": "{city}"}}', {"city": city})


def calls(n: int) -> tuple[ToolCall, ...]:
    """`n` calls, the last of which asks for PLACE."""
    return tuple(_call(i, PLACE if i == n - 1 else "Bergen") for i in range(n))


def result(number: int, content: str) -> Message:
    """The answer to call `number`."""
    return Message("tool", content, (), f"call{number:05d}", TOOLS[number % 2]["function"]["name"])


def said(turn: Turn) -> Message:
    """A turn as message of the real conversation."""
    return Message("assistant", turn.content, turn.calls, reasoning=turn.reasoning)


def worded(messages: Sequence[Message], word: Callable[[int], str]) -> list[Message]:
    """The messages with other contents."""
    return [Message(m.role, word(i), (), m.tool_call_id, m.name) for i, m in enumerate(messages)]


def described(text: str) -> list[dict[str, Any]]:
    """The tools with other descriptions."""
    return [{**t, "function": {**t["function"], "description": text}} for t in TOOLS]
