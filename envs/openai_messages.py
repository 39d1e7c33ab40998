"""Messages as text in OpenAI's form: what `view="chat"` shows and takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.types import CallStatus, Message, ToolCall, Turn

_CUT = "\n[cut: the message has {} characters]"


def write_observation(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], limit: int) -> str:
    """`{"messages": [...], "tools": [...]}` with new messages and the tools on offer, in at most `limit` characters.

    Contents are shortened, with a word about it, where they do not fit.
    """
    shown = [openai_message(m) for m in messages]
    text = _json({"messages": shown, "tools": list(tools)})
    room = limit
    while len(text) > limit and room > 1:
        room //= 2
        for m in shown:
            if len(m["content"]) > room:
                m["content"] = m["content"][:room] + _CUT.format(len(m["content"]))
        text = _json({"messages": shown, "tools": list(tools)})
    return text if len(text) <= limit else _json({"messages": [], "tools": []})


def openai_message(message: Message) -> dict[str, Any]:
    """The message as a chat API takes it: arguments are text there."""
    out = message.to_dict()
    for key in ("reasoning_content", "name"):
        out.pop(key, None)
    for call, made in zip(out.get("tool_calls", ()), message.tool_calls, strict=True):
        call["function"]["arguments"] = made.arguments if made.parsed is None else _json(dict(made.parsed))
    return out


def read_message(text: str, first_id: int = 0) -> tuple[Turn, bool]:
    """(turn, whether it was cut by length) of `{"content": ..., "tool_calls": [...], "finish_reason": ...}`.

    Calls get the ids `call00000`, ... from the number `first_id` on.  Total: text that is no such object is the content
    of a turn, and a call that is none becomes an attempt with its error.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return Turn(text), False
    calls = value.get("tool_calls")
    made = [_call(call, f"call{i:05d}") for i, call in enumerate(calls if isinstance(calls, list) else (), first_id)]
    content = next((value[key] for key in ("content", "refusal") if isinstance(value.get(key), str)), "")
    return Turn(content, None, tuple(made)), value.get("finish_reason") == "length"


def write_message(turn: Turn) -> str:
    """The text from which `read_message` reads the turn's content and calls."""
    message = openai_message(Message("assistant", turn.content, turn.calls))
    return _json({k: v for k, v in message.items() if k != "role"})


def _call(call: Any, id_: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    raw = function.get("arguments") if isinstance(function, dict) else None
    arguments = raw if isinstance(raw, str) else _json(raw) if raw is not None else "{}"
    if not isinstance(name, str) or not name:
        return ToolCall(id_, "", arguments, None, CallStatus.MISSING_NAME, "the call has no name")
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        return ToolCall(id_, name, arguments, None, CallStatus.INVALID_JSON, f"the arguments are not JSON: {error}")
    if not isinstance(parsed, dict):
        found = f"the arguments must be a JSON object, found {type(parsed).__name__}"
        return ToolCall(id_, name, arguments, None, CallStatus.ARGUMENTS_NOT_OBJECT, found)
    return ToolCall(id_, name, arguments, parsed)


def _json(value: Any) -> str:
    # Lone surrogates, which JSON can name, break whatever encodes the text later.
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
