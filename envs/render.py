"""A conversation as a person reads it, on a terminal."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from toolstep.envs.episode import Episode
from toolstep.envs.types import CallStatus, Message, ToolCall

_WIDTH = 100


def render_conversation(episode: Episode) -> str:
    """The messages from the first one of the task on (examples are counted, not shown), then how it stands."""
    messages = episode.messages
    n_examples = len(episode.config.examples)
    lines: list[str] = []
    n_system = 1 if messages and messages[0].role == "system" else 0
    for i, message in enumerate(messages):
        if n_system <= i < n_system + n_examples:
            if i == n_system:
                lines.append(f"── {n_examples} messages of solved examples ──")
            continue
        lines += _lines(message)
    if episode.stop_reason is not None:
        lines.append(f"── ended: {episode.stop_reason} · score {episode.score:g} · {episode.turns} turns ──")
    elif not messages:
        lines.append("── not begun: call reset() ──")
    return "\n".join(lines)


def render_messages(messages: Iterable[Mapping[str, Any]]) -> str:
    """Messages as `Message.to_dict` makes them, as a person reads them."""
    return "\n".join(line for item in messages for line in _lines(_message(item)))


def _message(item: Mapping[str, Any]) -> Message:
    calls = [(call["id"], call["function"]) for call in item.get("tool_calls", ())]
    return Message(
        item["role"],
        item["content"],
        tuple(ToolCall(i, f["name"], json.dumps(f["arguments"], ensure_ascii=False)) for i, f in calls),
        name=item.get("name"),
        reasoning=item.get("reasoning_content"),
    )


def _lines(message: Message) -> list[str]:
    title = message.role if message.name is None else f"{message.role} {clean(message.name)}"
    out = [f"── {title} " + "─" * max(0, 40 - len(title))]
    if message.reasoning:
        out += _wrapped(f"(thinks) {message.reasoning}")
    if message.content:
        out += _wrapped(message.content)
    for call in message.tool_calls:
        mark = "" if call.status == CallStatus.OK else f"   [{call.status}]"
        out += _wrapped(f"→ {call.name or '?'}({call.arguments}){mark}")
    return out


def _wrapped(text: str) -> list[str]:
    out: list[str] = []
    for line in clean(text).splitlines():
        out += textwrap.wrap(line, _WIDTH, replace_whitespace=False, drop_whitespace=False) or [""]
    return ["  " + line for line in out]


def clean(text: str) -> str:
    """`text` without control characters: what a model, a tool or a task wrote must not steer the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
