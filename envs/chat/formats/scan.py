"""Strict, position-aware reading of JSON inside text that a model wrote.  Nothing here raises on any text."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from toolstep.envs.types import CallStatus

MAX_DEPTH = 100  # deeper objects break other people's recursion: templates, validators, dumps
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


class BadJSON(ValueError):
    """The text at a position is not strict JSON."""


@dataclass(frozen=True, slots=True)
class Value:
    """A JSON value read from text: where it ends, and its source text."""

    value: Any
    end: int
    source: str


def _constant(name: str) -> NoReturn:
    raise BadJSON(f"{name} is not JSON")


def _int(digits: str) -> int:
    if len(digits) > 4000:  # Python's own limit for conversion is 4300 digits, and it can be lowered
        raise BadJSON("a number has too many digits")
    return int(digits)


def _float(digits: str) -> float:
    x = float(digits)
    if math.isinf(x):
        raise BadJSON(f"the number {digits[:40]} is out of range")
    return x


_DECODER = json.JSONDecoder(strict=True, parse_constant=_constant, parse_int=_int, parse_float=_float)


def skip_space(text: str, pos: int) -> int:
    match = _SPACE.match(text, pos)
    return match.end() if match else pos


def depth(text: str, pos: int = 0) -> int:
    """How deeply brackets outside of strings nest in the value at `pos`, counted to MAX_DEPTH + 1."""
    deepest = now = 0
    for m in _STRING_OR_BRACKET.finditer(text, pos):
        if m.group() in "[{":
            now += 1
            deepest = max(deepest, now)
        elif m.group() in "]}":
            now -= 1
        if now <= 0 or deepest > MAX_DEPTH:
            break
    return deepest


def read_value(text: str, pos: int) -> Value:
    """The JSON value that begins at `pos` (white space skipped).  Raises BadJSON, and nothing else."""
    start = skip_space(text, pos)
    if text[start : start + 1] in ("{", "[") and depth(text, start) > MAX_DEPTH:
        raise BadJSON(f"the JSON is nested more than {MAX_DEPTH} deep")
    try:
        value, end = _DECODER.raw_decode(text, start)
    except BadJSON:
        raise
    except (ValueError, RecursionError) as e:
        raise BadJSON(_reason(e, start)) from e
    source = text[start:end]
    if ("\\u" in source or not source.isascii()) and _has_surrogate(value):
        raise BadJSON("a lone surrogate is not text")
    return Value(value, end, source)


def read_members(text: str, pos: int) -> tuple[dict[str, Value], int]:
    """Members of the JSON object at `pos`, each with its source text, and the object's end.  Raises BadJSON.

    The last of two equal keys counts.
    """
    whole = read_value(text, pos)
    if not isinstance(whole.value, dict):
        raise BadJSON("the JSON is not an object")
    members: dict[str, Value] = {}
    at = skip_space(text, skip_space(text, pos) + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = skip_space(text, at) + 1  # the colon
        member = read_value(text, at)
        members[key] = member
        at = skip_space(text, member.end)
        if text[at] == ",":
            at = skip_space(text, at + 1)
    return members, at + 1


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


def find_outside_strings(text: str, pos: int, *needles: str) -> tuple[int, str] | None:
    """The first of `needles` from `pos` on that does not stand inside a JSON string, and where."""
    pattern = re.compile(r'"(?:[^"\\]|\\.)*"|' + "|".join(re.escape(n) for n in needles), re.DOTALL)
    for m in pattern.finditer(text, pos):
        if not m.group().startswith('"'):
            return m.start(), m.group()
    return None


def is_open(text: str) -> bool:
    """Whether text that should hold JSON ends before it does: in a string, or with a bracket open."""
    now = 0
    for m in _STRING_OR_BRACKET.finditer(text):
        if m.group() in "[{":
            now += 1
        elif m.group() in "]}":
            now -= 1
        elif len(m.group()) < 2 or not m.group().endswith('"') or _escaped_end(m.group()):
            return True
    return now > 0 or not text.strip()


def _escaped_end(quoted: str) -> bool:
    body = quoted[:-1]
    return (len(body) - len(body.rstrip("\\"))) % 2 == 1


def unreadable(text: str, at_end: bool) -> CallStatus:
    """Status of text that is not the JSON it should be; `at_end`: not even a closing tag follows it."""
    return CallStatus.TRUNCATED if at_end and is_open(text) else CallStatus.INVALID_JSON


def _reason(e: Exception, start: int) -> str:
    if isinstance(e, json.JSONDecodeError):
        return f"{e.msg} at character {e.pos - start}"
    return "the JSON is nested too deeply" if isinstance(e, RecursionError) else str(e)[:200]


def _has_surrogate(value: Any) -> bool:
    if isinstance(value, str):
        return _SURROGATE.search(value) is not None
    if isinstance(value, dict):
        return any(_has_surrogate(k) or _has_surrogate(v) for k, v in value.items())
    return isinstance(value, list) and any(_has_surrogate(v) for v in value)
