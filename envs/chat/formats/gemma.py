"""Gemma 4: calls in a notation of its own, with a token in the place of quotes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from toolstep.envs.chat.formats.base import Attempt, MarkedFormat, Scan, Tools, any_of
from toolstep.envs.chat.formats.literals import Literals, NotALiteral
from toolstep.envs.chat.formats.scan import has_surrogate
from toolstep.envs.types import CallStatus, ToolCall

_QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*+call:([^\s{}<]++)\s*+(?=\{)")
_KEY = re.compile(r"[^\s:,{}\[\]<]++")
_WORD = re.compile(r"[^\s:,{}\[\]<]++\Z")


class _Notation(Literals):
    constants: ClassVar[Mapping[str, Any]] = {"true": True, "false": False, "null": None, "None": None}

    def string(self, pos: int) -> tuple[str, int] | None:
        if not self.text.startswith(_QUOTE, pos):
            return None
        end = self.text.find(_QUOTE, pos + len(_QUOTE))
        if end < 0:
            raise NotALiteral(f"a string is not closed with {_QUOTE}")
        string = self.text[pos + len(_QUOTE) : end]
        if has_surrogate(string):
            raise NotALiteral("a lone surrogate is not text")
        return string, end + len(_QUOTE)

    def key(self, pos: int) -> tuple[str, int]:
        m = _KEY.match(self.text, pos)
        if m is None or has_surrogate(m.group()):
            return super().key(pos)
        return m.group(), m.end()


class Gemma4(MarkedFormat):
    """`<|tool_call>call:name{key:<|"|>text<|"|>,other:1}<tool_call|>`."""

    name: ClassVar[str] = "gemma4"
    think_open: ClassVar[str] = "<|channel>thought"
    think_close: ClassVar[str] = "<channel|>"
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call>",)
    close: ClassVar[str] = "<tool_call|>"

    def read(self, text: str, pos: int, marker: str, found: Scan) -> int:
        m = _HEAD.match(text, pos)
        start, name, error = (m.end(), m[1], "") if m else (pos, "", "a call is written call:name{key:value}")
        if m:
            source = _Notation(text)
            try:
                value, end = source.value(start)
                after = source.space(end)
                if text.startswith(self.close, after) or after == len(text) or text.startswith(marker, after):
                    found.attempts.append(Attempt(name, text[start:end], value))
                    return after + len(self.close) if text.startswith(self.close, after) else after
                error = f"there is text between the arguments and {self.close}"
            except (NotALiteral, RecursionError) as e:
                error = f"the arguments cannot be read: {e}"
        stop = any_of((self.close, marker)).search(text, start)
        end = stop.start() if stop else len(text)
        status = CallStatus.MALFORMED_MARKUP if stop else CallStatus.TRUNCATED
        found.bad(status, text[start:end], error, name)
        return stop.end() if stop and stop.group() == self.close else end

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return "".join(map(self._written, calls))

    def _written(self, call: ToolCall) -> str:
        body = call.arguments if call.parsed is None else _arguments(call)
        head = f"call:{call.name}" if call.name else ""
        return self.markers[0] + head + body + ("" if call.status is CallStatus.TRUNCATED else self.close)


def _arguments(call: ToolCall) -> str:
    try:
        value, end = _Notation(call.arguments).value(0)
        if value == dict(call.parsed or {}) and end == len(call.arguments):
            return call.arguments  # as sampled
    except (NotALiteral, RecursionError):
        pass
    return _text(call.parsed or {})


def _text(value: Any) -> str:
    if isinstance(value, str):
        return _QUOTE + value + _QUOTE
    if isinstance(value, Mapping):
        keys = (k if _WORD.match(k) and not has_surrogate(k) else _text(k) for k in map(str, value))
        return "{" + ",".join(f"{k}:{_text(v)}" for k, v in zip(keys, value.values())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)
