"""Messages and tools as a template reads them that writes them itself: OpenAI-style dicts, with marks where text is
foreign.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.turns import safe_name
from toolstep.envs.chat.watcher import Watcher
from toolstep.envs.types import Message


@dataclass(frozen=True, slots=True)
class Native:
    """What a template writes itself.

    schemas: the tools that it is given.  calls: the calls of a turn; then it writes their results too.  results: tool
    messages.  thoughts: thoughts that stand apart from the content.  empty, blank: tool messages without any text, or
    with nothing but white space.  json_arguments: it is given the arguments of a call as JSON text.
    """

    schemas: bool = True
    calls: bool = True
    results: bool = True
    thoughts: bool = True
    empty: bool = True
    blank: bool = True
    json_arguments: bool = False

    def leaves_out(self, content: str) -> bool:
        """Whether the template writes no message for a tool's result `content`."""
        return not ((self.blank or content.strip()) if content else self.empty)


def message_dict(
    m: Message, mark: Marker | Watcher, *, at: int = -1, deep: bool = False, json_arguments: bool = False
) -> dict[str, Any]:
    """A message with its content marked; of an assistant's message nothing is, or if `deep` all that is text.

    at: the index of the message.  json_arguments: those of calls are JSON text.
    """
    out = m.to_dict()
    if m.role != "assistant":
        out["content"] = mark.wrap(m.content, at=at)
    elif deep:
        for key in ("content", "reasoning_content"):
            if out.get(key):
                out[key] = mark.wrap(out[key], required=False)
    for call in out.get("tool_calls", ()):
        call["id"] = mark.label(call["id"])
        function = call["function"]
        function["name"] = mark.label(safe_name(function["name"]))
        if json_arguments:
            function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        if deep:
            function["arguments"] = mark.wrap_values(function["arguments"])
    for key in ("name", "tool_call_id"):
        if key in out:
            out[key] = mark.label(safe_name(out[key]))
    return out


def answers(new: Sequence[Message], calls: Sequence[tuple[str, str]]) -> list[Message]:
    """New messages whose tool results name the call that they answer: result i answers call i (I13)."""
    out, k = [], 0
    for m in new:
        if m.role == "tool":
            name, id_ = calls[k] if k < len(calls) else ("unknown", f"call{k:05d}")
            m = Message("tool", m.content, (), m.tool_call_id or id_, m.name or name)
            k += 1
        out.append(m)
    return out


def marked_schemas(tools: Sequence[Mapping[str, Any]], mark: Marker | Watcher) -> list[dict[str, Any]]:
    """Tool schemas with all text marked that no template's logic looks at."""
    return [_marked(dict(t), mark) for t in tools]


_WORDS = frozenset(("description", "title", "enum", "const", "default", "examples", "pattern"))


def _marked(value: Any, mark: Marker | Watcher) -> Any:
    if isinstance(value, Mapping):
        return {
            k: mark.wrap_values(v) if k in _WORDS and not isinstance(v, Mapping) else _marked(v, mark)
            for k, v in value.items()
        }
    return [_marked(v, mark) for v in value] if isinstance(value, (list, tuple)) else value


def loose_text(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, deep: bool) -> list[str]:
    """Foreign text that a marking leaves unmarked: names and keys, and if it is not deep, all of calls and tools."""
    found = [s for t in tools for s in _strings(t, frozenset() if not deep else _WORDS)]
    for m in messages:
        if m.role == "assistant":
            arguments = [dict(c.parsed or {}) for c in m.tool_calls]
            found += [s for a in arguments for s in (_keys(a) if deep else _strings(a, frozenset()))]
            found += [] if deep else [m.content, m.reasoning or ""]
    return found


def _strings(value: Any, marked: frozenset[str]) -> list[str]:
    """Keys and texts, but for the values of the keys in `marked`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        rest = [v for k, v in value.items() if k not in marked or isinstance(v, Mapping)]
        return [*map(str, value), *(s for v in rest for s in _strings(v, marked))]
    return [s for v in value for s in _strings(v, marked)] if isinstance(value, (list, tuple)) else []


def _keys(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [*map(str, value), *(k for v in value.values() for k in _keys(v))]
    return [k for v in value for k in _keys(v)] if isinstance(value, (list, tuple)) else []
