"""What is wrong with the arguments of a call, in words that a model can act on."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from toolstep.envs.tools.encode import shorten, well_formed
from toolstep.envs.types import CallStatus

MAX_PROBLEMS = 5  # told in one message
MAX_CHOICES = 30  # values of an enum, names of arguments or tools
MAX_SHOWN = 80  # characters of a value or name that the model sent

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong; `text` says what, without the place."""

    path: Path
    kind: Literal["missing", "unexpected", "wrong"]
    text: str


class MismatchError(ValueError):
    """Arguments that do not fit their schema, with every problem found (at least one)."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{place(p.path)}: {p.text}" for p in problems[:MAX_PROBLEMS]))
        self.problems = problems

    @property
    def status(self) -> CallStatus:
        """The gravest problem of the arguments themselves; what is inside an argument is its type."""
        top = {problem.kind for problem in self.problems if len(problem.path) <= 1}
        if "missing" in top:
            return CallStatus.MISSING_ARGUMENT
        return CallStatus.UNEXPECTED_ARGUMENT if "unexpected" in top else CallStatus.WRONG_TYPE

    def message(self, name: str, schema: Mapping[str, Any]) -> str:
        """For the model: field, expectation and value of the first problems; the arguments where names are wrong."""
        told = "; ".join(f"{place(p.path)}: {p.text}" for p in self.problems[:MAX_PROBLEMS])
        more = len(self.problems) - MAX_PROBLEMS
        text = f"{name}: {told}" + (f" (and {more} more)" if more > 0 else "")
        if self.status is not CallStatus.WRONG_TYPE:
            text += f". Arguments of {name}: {_arguments(schema)}"
        return well_formed(text)


def wrong(path: Path, expected: str, value: Any) -> Problem:
    return Problem(path, "wrong", f"expected {expected}, got {show(value)}")


def missing(path: Path) -> Problem:
    return Problem(path, "missing", "required, but missing")


def unexpected(path: Path, known: list[str], so_far: int = 0) -> Problem:
    """`so_far` problems were found before: what will not be told needs no search for the nearest name."""
    near = nearest(str(path[-1]), known) if so_far < MAX_PROBLEMS else None
    return Problem(path, "unexpected", "no such argument" + (f" (did you mean {near!r}?)" if near else ""))


def nearest(name: str, known: list[str]) -> str | None:
    """The one of `known` that `name` most likely stands for."""
    found = difflib.get_close_matches(name[:MAX_SHOWN].lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    return next((k for k in known if k.lower() == found[0]), None) if found else None


def listing(names: list[str]) -> str:
    """`a, b, c`, cut where there are too many."""
    more = len(names) - MAX_CHOICES
    return ", ".join(names[:MAX_CHOICES]) + (f" and {more} more" if more > 0 else "")


def place(path: Path) -> str:
    """`a.b[0]`; "arguments" for the whole."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else ("." if text else "") + shorten(part, MAX_SHOWN)
    return text or "arguments"


def show(value: Any) -> str:
    """A value that the model sent: scalars as JSON, shortened; of lists and objects the size, never the contents."""
    if isinstance(value, Mapping):
        keys = listing([shorten(str(key), MAX_SHOWN) for key in list(value)[:8]])
        return f"an object with {len(value)} keys" + (f" ({keys}{', ...' if len(value) > 8 else ''})" if keys else "")
    if isinstance(value, list | tuple):
        return f"an array of {len(value)} items"
    if isinstance(value, str):
        return json.dumps(value[:MAX_SHOWN], ensure_ascii=False) + (
            f"... ({len(value) - MAX_SHOWN} more characters)" if len(value) > MAX_SHOWN else ""
        )
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return json.dumps(value) if value is None or isinstance(value, bool | int | float) else type(value).__name__


_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_BOUNDS = {
    "minimum": ">=",
    "maximum": "<=",
    "exclusiveMinimum": ">",
    "exclusiveMaximum": "<",
    "multipleOf": "that is a multiple of",
}


def describe(schema: Any, depth: int = 0) -> str:
    """One schema in a few words: "an integer >= 1", 'one of "c", "f"', "an array of strings"."""
    if not isinstance(schema, Mapping) or not schema:
        return "any value"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False, default=str)
    if isinstance(schema.get("enum"), list):
        choices = [json.dumps(choice, ensure_ascii=False, default=str) for choice in schema["enum"]]
        return choices[0] if len(choices) == 1 else f"one of {listing(choices)}"
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return " or ".join(dict.fromkeys(describe(option, depth) for option in schema[key]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " or ".join(describe({**schema, "type": one}, depth) for one in kind)
    text = _NAMES.get(str(kind), "any value")
    if kind == "array" and schema.get("items") and depth < 2:
        text += f" of {describe(schema['items'], depth + 1).removeprefix('an ').removeprefix('a ')}"
    if kind == "object" and schema.get("properties") and depth < 2:
        text += f" with {listing(list(schema['properties']))}"
    if kind == "string" and schema.get("format"):
        text += f" in {schema['format']} format"
    if kind == "string" and schema.get("pattern"):
        text += f" that matches {shorten(str(schema['pattern']), MAX_SHOWN)}"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    if bounds:
        text += f" {' and '.join(bounds)}"
    for low, high, unit in (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "items")):
        if low in schema or high in schema:
            text += f" of {schema.get(low, 0)} to {schema.get(high, 'any number of')} {unit}"
    return text


def _arguments(schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    told = [
        f"{name} ({describe(child)}{', required' if name in required else ''})" for name, child in properties.items()
    ]
    return listing(told) if told else "none"
