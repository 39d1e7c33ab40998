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
_WORDS = "Zq7wordsQz"  # text of a stand-in turn beside its calls
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
    """Writes stand-in turns, and earlier messages in short.  Immutable after construction.

    json_arguments: whether the template writes calls only with their arguments as JSON text, not as a dict.
    """

    def __init__(self, render: Renderer, kwargs: Mapping[str, Any]):
        self._render = render
        self._orders: dict[tuple[int, bool], list[Shape]] = {}
        self._history: dict[bool, Shape] = {}
        for calls in (1, 2):
            written = {s for s in _shapes(calls) if self._written(s, calls, kwargs)}
            for text in (False, True):
                # What the template wrote in a probe comes first; of that, what has text where the turn has.
                order = sorted(_shapes(calls), key=lambda s: (s not in written, (s.content != _WORDS) is text))
                self._orders[calls, text] = [*order, PLAIN]
                if calls == 1:
                    self._history[text] = next((s for s in order if s in written), Shape(True, False, ""))
            if calls == 1:
                self.json_arguments = bool(written) and all(s.json_arguments for s in written)
            self._one_call = bool(written) and all(s.one_call for s in written)

    def shapes(self, calls: int, text: bool = False) -> list[Shape]:
        """Ways to write a turn with so many calls, and with text beside them or not, the likeliest first."""
        return self._orders[min(calls, 2), text] if calls else [PLAIN]

    def skeleton(self, messages: Sequence[dict[str, Any]]) -> Dicts:
        """Earlier messages, reduced to what can shape later text."""
        return [self._reduced(m) for m in messages]

    def _reduced(self, m: dict[str, Any]) -> dict[str, Any]:
        if m["role"] == "assistant":
            if not m.get("tool_calls"):
                return {"role": "assistant", "content": "ok"}
            shape = self._history[bool(m.get("content"))]
            # A template that takes one call a turn refuses more of them in the history too.
            calls = m["tool_calls"][:1] if self._one_call else m["tool_calls"]
            return {
                "role": "assistant",
                "content": shape.content,
                "tool_calls": [
                    _call(_kept_name(c["function"]["name"]), c["id"], {}, shape.json_arguments) for c in calls
                ],
            }
        return {**m, "content": "ok"} if m["role"] == "tool" else m

    def _written(self, shape: Shape, calls: int, kwargs: Mapping[str, Any]) -> bool:
        names = [("probe", f"call{i:05d}") for i in range(calls)]
        results = [{"role": "tool", "content": "ok", "name": n, "tool_call_id": i} for n, i in names]
        messages = [user(), stand_in(shape, names), *results]
        text = ""
        for tools in (PROBE_TOOLS, None):  # there are templates that fail on tools, and others that fail without
            try:
                text = self._render(messages, tools, generation=True, kwargs=kwargs)
                break
            except TemplateRejects:
                continue
        # Some write the words of a turn behind the results of its calls; those were sampled in front of them.
        _, found, after = text.partition(SENTINEL)
        return bool(found) and _WORDS not in after


def _shapes(calls: int) -> list[Shape]:
    """Ways to write a turn with calls."""
    forms = [(content, as_json) for content in (None, "", _WORDS) for as_json in (False, True)]
    shapes = [Shape(True, as_json, content) for content, as_json in forms]
    return shapes + [Shape(True, as_json, content, one_call=True) for content, as_json in forms if calls > 1]


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
