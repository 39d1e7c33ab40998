"""Calls written as Python calls: Llama 3.2 and 4, and between marks LFM2.

They are read by a parser for literals: nothing that a model wrote is ever evaluated, or handed to Python's compiler.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from toolstep.envs.chat.formats.base import Attempt, Finish, MarkedFormat, Scan, ToolCallFormat, Tools, blank_end
from toolstep.envs.chat.formats.literals import Literals, NotALiteral
from toolstep.envs.types import CallStatus, ToolCall

_NAME = r"[^\W\d]\w*+(?:\.[^\W\d]\w*+)*+"
_FIRST = re.compile(rf"\[\s*+{_NAME}\s*+\(")
_CALL = re.compile(rf"({_NAME})\s*+\(")
_KEYWORD = re.compile(r"([^\W\d]\w*+)\s*+=(?!=)")
_SINGLE = re.compile(r"'([^'\\\n]*+(?:\\.[^'\\\n]*+)*+)'", re.DOTALL)
_DOUBLE = re.compile(r'"([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)"', re.DOTALL)
_LONG = re.compile(r'"""((?:[^"\\]|\\.|"(?!""))*+)"""' + "|" + r"'''((?:[^'\\]|\\.|'(?!''))*+)'''", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE = {"\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
           "v": "\v"}  # fmt: skip
# For finding the end of what cannot be read: runs of brackets; a string that never closes takes the rest.
_BRACKETS = re.compile(
    r"(?:[^\"'()\[\]{}]++|\"[^\"\\]*+(?:\\.[^\"\\]*+)*+(?:\"|\\?\Z)|'[^'\\]*+(?:\\.[^'\\]*+)*+(?:'|\\?\Z))*+"
    r"(?:([(\[{]++)|([)\]}]++))",
    re.DOTALL,
)


class _Python(Literals):
    constants: ClassVar[Mapping[str, Any]] = {"True": True, "False": False, "None": None}

    def string(self, pos: int) -> tuple[str, int] | None:
        quote = self.text[pos : pos + 1]
        if quote not in ('"', "'"):
            return None
        if self.text.startswith(quote * 3, pos):
            m = _LONG.match(self.text, pos)
        else:
            m = (_SINGLE if quote == "'" else _DOUBLE).match(self.text, pos)
        if m is None:
            raise NotALiteral("a string is not closed on its line")
        return _unescaped(m[1] if m.lastindex == 1 else m[2]), m.end()


class _BadCall(Exception):
    """A call cannot be read.  at: where its list goes on, between two elements; -1 where the text ends before."""

    def __init__(self, status: CallStatus, message: str, at: int = -1):
        super().__init__(message)
        self.status, self.at = status, at


class Pythonic(ToolCallFormat):
    """The turn is `[name(key="value", other=1), ...]`; arguments are keywords with literals.

    One list holds all calls, so one bad element spoils it.  A list of anything else is an answer.
    """

    name: ClassVar[str] = "pythonic"

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        pos = self.leading_thought(text, pos, found)
        start = blank_end(text, pos)
        if not _FIRST.match(text, start):
            found.content.append(text[pos:])
            return
        found.content.append(text[read_list(text, start, found) :])

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return write_list(calls)


class LFM2(MarkedFormat):
    """`<|tool_call_start|>[name(key="value")]<|tool_call_end|>`, with text and thoughts around it."""

    name: ClassVar[str] = "lfm2_pythonic"
    announcements: ClassVar[tuple[str, ...]] = ("<|tool_list_start|>",)
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call_start|>",)
    close: ClassVar[str] = "<|tool_call_end|>"

    def read(self, text: str, pos: int, marker: str, found: Scan) -> int:
        start = blank_end(text, pos)
        if not _FIRST.match(text, start):
            close = text.find(self.close, pos)
            end = len(text) if close < 0 else close
            status = CallStatus.TRUNCATED if close < 0 else CallStatus.MALFORMED_MARKUP
            found.bad(status, text[pos:end].strip(), 'a list of calls is written [name(key="value"), ...]')
            return end if close < 0 else end + len(self.close)
        end = read_list(text, start, found)
        after = blank_end(text, end)
        return after + len(self.close) if text.startswith(self.close, after) else end

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        if not calls:
            return ""
        cut = calls[-1].status is CallStatus.TRUNCATED
        return self.markers[0] + write_list(calls) + ("" if cut else self.close)


def read_list(text: str, pos: int, found: Scan) -> int:
    """Read the list of calls that begins at `pos`; the position behind it."""
    try:
        attempts, end = _calls(_Python(text), pos)
    except _BadCall as e:
        end = _brackets_end(text, e.at, 1) if e.at >= 0 else -1
        status, error = (e.status, str(e)) if end > 0 else (CallStatus.TRUNCATED, f"the list of calls never ends: {e}")
        end = end if end > 0 else len(text)
        found.bad(status, text[pos:end], error)
        return end
    found.attempts += attempts
    return end


def _calls(source: _Python, pos: int) -> tuple[list[Attempt], int]:
    """Calls of the list at `pos`, and its end.  Raises _BadCall."""
    text, attempts = source.text, []
    pos = source.space(pos + 1)
    while not text.startswith("]", pos):
        m = _CALL.match(text, pos)
        if m is None:
            error = f"a call is written name(key=value), not {text[pos : pos + 40]!r}"
            raise _BadCall(CallStatus.MALFORMED_MARKUP, error, pos)
        try:
            values, end = _keywords(source, m.end())
        except _BadCall as e:
            e.at = _brackets_end(text, m.end(), 1)
            if e.at > 0 and text[source.space(e.at) : source.space(e.at) + 1] not in (",", "]", ""):
                error = "there is more than a call in an element of the list"
                raise _BadCall(CallStatus.MALFORMED_MARKUP, error, e.at) from e
            raise
        attempts.append(Attempt(m[1], text[m.end() : end - 1], values))
        pos = source.space(end)
        if text.startswith(",", pos):
            pos = source.space(pos + 1)
        elif not text.startswith("]", pos):
            error = f"a comma or ] must stand where {text[pos : pos + 40]!r} stands"
            raise _BadCall(CallStatus.MALFORMED_MARKUP, error, pos)
    return attempts, pos + 1


def _keywords(source: _Python, pos: int) -> tuple[dict[str, Any], int]:
    """Arguments from behind the opening parenthesis to behind the closing one.  Raises _BadCall."""
    text, values = source.text, {}
    while not text.startswith(")", pos := source.space(pos)):
        m = _KEYWORD.match(text, pos)
        try:
            if m is None:
                source.value(pos)
                error = "arguments are written key=value, and one has no key"
                raise _BadCall(CallStatus.POSITIONAL_ARGUMENT, error)
            values[m[1]], pos = source.value(m.end())
        except (NotALiteral, RecursionError) as e:
            what = f"the value of {m[1][:40]!r}" if m else "an argument"
            raise _BadCall(CallStatus.NOT_A_LITERAL, f"{what} is not a literal: {e}") from e
        pos = source.space(pos)
        if text.startswith(",", pos):
            pos += 1
        elif not text.startswith(")", pos):
            error = f"the value of {m[1][:40]!r} is not a literal: it goes on with {text[pos : pos + 40]!r}"
            raise _BadCall(CallStatus.NOT_A_LITERAL, error)
    return values, pos + 1


def _brackets_end(text: str, pos: int, depth: int) -> int:
    """Behind the bracket that closes the last of `depth` that are open at `pos`; -1 if none does.

    Kinds of brackets are not told apart.
    """
    while m := _BRACKETS.match(text, pos):
        pos, closing = m.end(), m[2]
        if closing is None:
            depth += pos - m.start(1)
        elif len(closing) >= depth:
            return m.start(2) + depth
        else:
            depth -= len(closing)
    return -1


def write_list(calls: Sequence[ToolCall]) -> str:
    if any(c.parsed is None for c in calls):  # a spoilt list is one attempt, kept whole
        return "\n".join(c.arguments for c in calls)
    return "[" + ", ".join(f"{c.name}({_written(c)})" for c in calls) + "]" if calls else ""


def _written(call: ToolCall) -> str:
    parsed = dict(call.parsed or {})
    try:
        values, end = _keywords(_Python(call.arguments + ")"), 0)
        if values == parsed and end == len(call.arguments) + 1:
            return call.arguments  # as sampled
    except _BadCall:
        pass
    return ", ".join(f"{k}={_literal(v)}" for k, v in parsed.items())


def _literal(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(str(k))}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if value is None or isinstance(value, bool):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def _unescaped(body: str) -> str:
    if "\\" in body:
        body = _ESCAPE.sub(_escape, body)
    try:  # pairs of surrogates become one character, halves are refused
        return body if body.isascii() else body.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as e:
        raise NotALiteral("a lone surrogate is not text") from e


def _escape(m: re.Match[str]) -> str:
    octal, *hexadecimal, other = m.groups()
    if octal:
        return chr(int(octal, 8))
    if code := next(filter(None, hexadecimal), None):
        if int(code, 16) > 0x10FFFF:
            raise NotALiteral(f"\\U{code} is no character")
        return chr(int(code, 16))
    if other in "xuUN":
        raise NotALiteral(f"the escape \\{other} is not complete")
    return _SIMPLE.get(other, "\\" + other)
