"""Conversations as a template that knows tools reads them: OpenAI-style dicts, with marks where text is foreign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.turns import safe_name
from toolstep.envs.chat.watcher import Watcher
from toolstep.envs.types import Message


def message_dicts(messages: Sequence[Message], mark: Marker | Watcher, *, deep: bool) -> list[dict[str, Any]]:
    """Messages with the content of system, user and tool messages marked; `deep`: the assistant's words as well."""
    out = []
    for i, m in enumerate(messages):
        d = m.to_dict()
        if m.role != "assistant":
            d["content"] = mark.wrap(m.content, at=i)
        elif deep and m.content:
            d["content"] = mark.wrap(m.content, required=False)
        for call in d.get("tool_calls", ()):
            call["id"] = mark.label(call["id"])
            call["function"]["name"] = mark.label(safe_name(call["function"]["name"]))
            if deep:
                call["function"]["arguments"] = mark.wrap_values(call["function"]["arguments"])
        for key in ("name", "tool_call_id"):
            if key in d:
                d[key] = mark.label(safe_name(d[key]))
        out.append(d)
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
            found += [] if deep else [m.content]
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
