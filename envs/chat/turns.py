"""Stand-ins for turns: how a template can be made to write a turn with calls, found by rendering."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolstep.envs.chat.errors import TemplateRejects
from toolstep.envs.chat.provenance import Dicts
from toolstep.envs.chat.render import Renderer
from toolstep.envs.chat.watched import Watched

SENTINEL = "Zq7sentinelQz"
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")

PROBE_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "Zq7descriptionQz",
            "parameters": {
                "type": "object",
                "properties": {"value": {"type": "string", "description": "a value"}},
                "required": ["value"],
            },
        },
    }
]


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to write the stand-in turn: with calls or as plain content."""

    calls: bool
    json_arguments: bool = False
    content: str | None = None
    one_call: bool = False


PLAIN = Shape(calls=False)


def safe_name(name: str | None, default: str = "unknown") -> str:
    """`name` if it is safe to write into a template's frame: some write it between control tokens."""
    return name if name and _SAFE_NAME.fullmatch(name) else default


def _kept_name(name: Any) -> Any:
    return name if isinstance(name, Watched) else safe_name(name)


class Turns:
    """Writes stand-in turns, and earlier messages in short.  Immutable after construction."""

    def __init__(self, render: Renderer, kwargs: Mapping[str, Any]):
        self._render = render
        self._orders = {n: self._order(n, kwargs) for n in (1, 2)}
        written = (s for s in self._orders[1] if s.calls and self._written(s, 1, kwargs))
        self._history = next(written, Shape(True, False, ""))

    def shapes(self, calls: int) -> list[Shape]:
        """Ways to write a turn with so many calls, the likeliest first."""
        return self._orders[min(calls, 2)] if calls else [PLAIN]

    def skeleton(self, messages: Sequence[dict[str, Any]]) -> Dicts:
        """Earlier messages, reduced to what can shape later text."""
        return [self._reduced(m) for m in messages]

    def _reduced(self, m: dict[str, Any]) -> dict[str, Any]:
        if m["role"] == "assistant":
            if not m.get("tool_calls"):
                return {"role": "assistant", "content": "ok"}
            return {
                "role": "assistant",
                "content": self._history.content,
                "tool_calls": [
                    _call(_kept_name(c["function"]["name"]), c["id"], {}, self._history.json_arguments)
                    for c in m["tool_calls"]
                ],
            }
        return {**m, "content": "ok"} if m["role"] == "tool" else m

    def _order(self, calls: int, kwargs: Mapping[str, Any]) -> list[Shape]:
        """Shapes to try for a turn with calls: those that the template wrote in a probe come first."""
        forms = [(content, as_json) for content in (None, "", "ok") for as_json in (False, True)]
        shapes = [Shape(True, as_json, content) for content, as_json in forms]
        if calls > 1:
            shapes += [Shape(True, as_json, content, one_call=True) for content, as_json in forms[:4]]
        shapes.sort(key=lambda s: not self._written(s, calls, kwargs))
        return [*shapes, PLAIN]

    def _written(self, shape: Shape, calls: int, kwargs: Mapping[str, Any]) -> bool:
        names = [("probe", f"call{i:05d}") for i in range(calls)]
        results = [{"role": "tool", "content": "ok", "name": n, "tool_call_id": i} for n, i in names]
        try:
            messages = [user(), stand_in(shape, names), *results]
            return SENTINEL in self._render(messages, PROBE_TOOLS, generation=True, kwargs=kwargs)
        except TemplateRejects:
            return False


def user() -> dict[str, Any]:
    return {"role": "user", "content": "hi"}


def _call(name: str, id_: str, arguments: dict[str, Any], as_json: bool) -> dict[str, Any]:
    written = json.dumps(arguments) if as_json else arguments
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": written}}


def stand_in(shape: Shape, calls: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """An assistant turn whose last argument, or whose content, is the sentinel."""
    if not shape.calls:
        return {"role": "assistant", "content": SENTINEL}
    used = calls[:1] if shape.one_call else calls
    last = len(used) - 1
    return {
        "role": "assistant",
        "content": shape.content,
        "tool_calls": [
            _call(name, id_, {"value": SENTINEL if i == last else "x"}, shape.json_arguments)
            for i, (name, id_) in enumerate(used)
        ],
    }
