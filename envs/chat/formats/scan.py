"""Strict, position-aware reading of JSON inside text that a model wrote, in time linear in the text.

Nothing here raises on any text but `BadJSON`, where a docstring says so.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, NoReturn

from toolstep.envs.types import CallStatus

MAX_DEPTH = 100  # deeper objects break other people's recursion: templates, validators, dumps
MAX_DIGITS = 4000  # Python's own limit for conversion is 4300 digits, and it can be lowered
# Possessive, so that no position is tried twice; where they can, patterns take runs, so that Python acts once a run.
_S = r"[ \t\n\r]*+"
_SPACE = re.compile(_S)
_OPEN_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'  # a string without its closing quote
_STRINGS = re.compile(rf'(?:{_OPEN_STRING}"|\\.)++', re.DOTALL)
_NO_BRACKETS = re.compile(r"[^\[\]{}]++")
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: 1 and -1
# The first tokens of a value: of a list to behind its first element, if that is flat, of an object to its first colon.
# NaN and Infinity are among them, to get a message of their own.
_WORD = r"(?:true|false|null|NaN|Infinity)"
_NUMBER = r"-?(?:[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|Infinity)"
_FLAT = rf'(?:{_OPEN_STRING}"|{_NUMBER}|{_WORD}|\{{{_S}\}})'
_MEMBER = rf'\{{{_S}{_OPEN_STRING}"{_S}:'
_BEGINS = re.compile(
    rf'(?:\[{_S})++(?:\]|{_FLAT}{_S}[,\]]|{_MEMBER})|\{{{_S}\}}|{_MEMBER}|"|{_NUMBER}|{_WORD}', re.DOTALL
)
_KEY = re.compile(rf'"([^"\\\x00-\x1f\ud800-\udfff]*+)"{_S}(:?){_S}')  # a key as most are written
_GOES_ON = re.compile(rf"{_S}(?:(\}})|,{_S})")
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadJSON(ValueError):
    """The text at a position is not strict JSON."""


@dataclass(slots=True)
class Value:
    """A JSON value read from text: where it ends, and its source text."""

    value: Any
    end: int
    source: str


def _constant(name: str) -> NoReturn:
    raise BadJSON(f"{name} is not JSON")


def read_int(digits: str) -> int:
    """The number.  Raises BadJSON where it is so long that Python may refuse it, or take long."""
    if len(digits) > MAX_DIGITS:
        raise BadJSON("a number has too many digits")
    return int(digits)


def read_float(digits: str) -> float:
    """The number.  Raises BadJSON where it is out of range."""
    x = float(digits)
    if math.isinf(x):
        raise BadJSON(f"the number {digits[:40]} is out of range")
    return x


_DECODER = json.JSONDecoder(strict=True, parse_constant=_constant, parse_int=read_int, parse_float=read_float)


def skip_space(text: str, pos: int) -> int:
    if text[pos : pos + 1] > " ":  # mostly; the pattern takes five times as long
        return pos
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


def depth(source: str) -> int:
    """How deeply brackets outside of strings nest in the text of a JSON value."""
    if source.count("[") + source.count("{") <= MAX_DEPTH:
        return 0  # as good as the truth, and quick
    brackets = _NO_BRACKETS.sub("", _STRINGS.sub("", source))
    return max(accumulate(array("b", brackets.encode().translate(_STEPS))), default=0)


def read_value(text: str, pos: int) -> Value:
    """The JSON value that begins at `pos` (white space skipped).  Raises BadJSON, and nothing else."""
    start = skip_space(text, pos)
    value, end = _decode(text, start)
    source = text[start:end]
    if end - start > MAX_DEPTH and depth(source) > MAX_DEPTH:
        raise BadJSON(f"the JSON is nested more than {MAX_DEPTH} deep")
    if ("\\u" in source or not source.isascii()) and has_surrogate(value):
        raise BadJSON("a lone surrogate is not text")
    return Value(value, end, source)


def _decode(text: str, start: int) -> tuple[Any, int]:
    """The value at `start`, and its end.  Raises BadJSON.

    Python's decoder counts the lines in front of an error.  Many errors in one text would take time with the square of
    its length, so a window of the text is decoded, and a larger one where it may have cut the value.  What cannot be a
    value is turned away by its first tokens: an exception of the decoder costs ten times as much.
    """
    if _BEGINS.match(text, start) is None:
        shown = text[start : start + 40]
        raise BadJSON(f"no JSON value begins like {shown!r}" if shown else "the text ends where a value must stand")
    size = 256
    while True:
        window = text[start : start + size]
        whole = start + size >= len(text)
        try:
            value, end = _DECODER.raw_decode(window)
        except BadJSON:
            raise
        except json.JSONDecodeError as e:
            cut = e.msg.startswith("Unterminated") or e.pos > len(window) - 16  # no literal is longer
            if whole or not cut:
                raise BadJSON(f"{e.msg} at character {e.pos}") from e
        except RecursionError as e:
            raise BadJSON("the JSON is nested too deeply") from e
        except ValueError as e:
            raise BadJSON(str(e)[:200]) from e
        else:
            if whole or end < len(window):
                return value, start + end
        size *= 8


def read_whole(text: str) -> Value:
    """The JSON value that all of `text` is.  Raises BadJSON."""
    value = read_value(text, 0)
    if skip_space(text, value.end) < len(text):
        raise BadJSON(f"there is text behind the JSON, at character {value.end}")
    return value


def read_members(text: str, pos: int) -> tuple[dict[str, Value], int]:
    """Members of the JSON object at `pos`, each with its source text, and the object's end.  Raises BadJSON.

    The last of two equal keys counts.
    """
    start = skip_space(text, pos)
    if text[start : start + 1] != "{":
        raise BadJSON("the JSON is not an object")
    members: dict[str, Value] = {}
    at = skip_space(text, start + 1)
    if text.startswith("}", at):
        return members, at + 1
    while True:
        if m := _KEY.match(text, at):
            key, colon, at = m[1], m[2], m.end()
        else:
            read = read_value(text, at)
            if not isinstance(read.value, str):
                raise BadJSON(f"a key of an object is a string in double quotes, at character {at - start}")
            key, at = read.value, skip_space(text, read.end)
            colon = text[at : at + 1]
            at += 1
        if colon != ":":
            raise BadJSON(f"Expecting ':' delimiter behind the key {key[:40]!r}")
        members[key] = member = read_value(text, at)
        m = _GOES_ON.match(text, member.end)
        if m is None:
            raise BadJSON(f"Expecting ',' delimiter at character {skip_space(text, member.end) - start}")
        at = m.end()
        if m[1]:
            return members, at


def item_starts(text: str, pos: int) -> list[int]:
    """Where the elements of the JSON array at `pos` begin.  The array has been read before."""
    starts: list[int] = []
    at = skip_space(text, skip_space(text, pos) + 1)
    while text[at] != "]":
        starts.append(at)
        at = skip_space(text, _DECODER.raw_decode(text, at)[1])
        if text[at] == ",":
            at = skip_space(text, at + 1)
    return starts


@cache
def _up_to(needle: str) -> re.Pattern[str]:
    """Matches what stands before the first `needle` outside of strings; a string that never closes takes the rest."""
    first = re.escape(needle[0])
    string = rf'{_OPEN_STRING}(?:"|\\?\Z)'
    return re.compile(rf'(?:[^"\\{first}]++|{string}|\\.|(?!{re.escape(needle)}){first})*+', re.DOTALL)


def call_end(text: str, pos: int, close: str, limit: int) -> tuple[int, bool]:
    """Where a call ends whose text from `pos` on cannot be read, and whether its closing tag stands there.

    limit: where the next call begins, which the broken one must not swallow.  The first closing tag outside of strings
    counts; without one the first at all.
    """
    if text.find('"', pos, limit) >= 0:
        m = _up_to(close).match(text, pos, limit)
        if m and text.startswith(close, m.end(), limit):
            return m.end(), True
    at = text.find(close, pos, limit)
    return (limit, False) if at < 0 else (at, True)


def is_open(text: str) -> bool:
    """Whether text that should hold JSON ends before it does: in a string, or with a bracket open."""
    rest = _STRINGS.sub("", text)
    opened, closed = rest.count("[") + rest.count("{"), rest.count("]") + rest.count("}")
    return '"' in rest or opened > closed or not text.strip()


def unreadable(text: str, at_end: bool) -> CallStatus:
    """Status of text that is not the JSON it should be; `at_end`: not even a closing tag follows it."""
    return CallStatus.TRUNCATED if at_end and is_open(text) else CallStatus.INVALID_JSON


def has_surrogate(value: Any) -> bool:
    """Whether a text in a decoded value, its keys included, holds half of a surrogate pair."""
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, dict):
        return any(has_surrogate(k) or has_surrogate(v) for k, v in value.items())
    return isinstance(value, list) and any(has_surrogate(v) for v in value)
