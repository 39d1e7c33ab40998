"""OpenAI's messages as the project's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.types import CallStatus, Message, Role, ToolCall
from toolstep.rollout.serve.errors import BadRequest
from toolstep.rollout.serve.protocol import CallIn, MessageIn


def read_messages(given: Sequence[MessageIn]) -> list[Message]:
    """The conversation.  Calls get ids by their number (`call00000`), so that a prompt depends on nothing but what was
    said: templates write ids, and some take none but of that form.

    Raises BadRequest where a result answers no call.
    """
    out: list[Message] = []
    calls: dict[str, ToolCall] = {}  # by the id that the client knows
    open_: list[ToolCall] = []  # without a result yet, in order
    count = 0
    for i, m in enumerate(given):
        role: Role = "system" if m.role == "developer" else m.role
        if m.tool_calls and role != "assistant":
            raise BadRequest(f"a message of role {m.role!r} cannot have tool_calls", f"messages[{i}].tool_calls")
        if role == "tool":
            call = _answered(m, i, calls, open_)
            out.append(Message("tool", _text(m), tool_call_id=call.id, name=call.name))
            continue
        made = []
        for call_in in m.tool_calls or ():
            call = _call(call_in, f"call{count:05d}")
            calls[call_in.id or call.id] = call
            made.append(call)
            count += 1
        open_ += made
        reasoning = (m.reasoning_content or m.reasoning) if role == "assistant" else None
        out.append(Message(role, _text(m), tuple(made), reasoning=reasoning))
    return out


def _answered(m: MessageIn, index: int, calls: Mapping[str, ToolCall], open_: list[ToolCall]) -> ToolCall:
    """The call that a tool message answers: that of its id, else the first without a result."""
    if m.tool_call_id is None:
        if not open_:
            raise BadRequest("a tool message must follow a call of the assistant", f"messages[{index}]")
        return open_.pop(0)
    call = calls.get(m.tool_call_id)
    if call is None:
        raise BadRequest(
            f"tool_call_id {m.tool_call_id[:80]!r} is the id of no earlier call", f"messages[{index}].tool_call_id"
        )
    if call in open_:
        open_.remove(call)
    return call


def _text(m: MessageIn) -> str:
    if m.content is None:
        return ""
    return m.content if isinstance(m.content, str) else "".join(part.text for part in m.content)


def _call(given: CallIn, id_: str) -> ToolCall:
    arguments = given.function.arguments
    if isinstance(arguments, dict):
        return ToolCall(id_, given.function.name, json.dumps(arguments, ensure_ascii=False), arguments)
    parsed: Any
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        return ToolCall(id_, given.function.name, arguments, None, CallStatus.INVALID_JSON)
    return ToolCall(id_, given.function.name, arguments, parsed)
