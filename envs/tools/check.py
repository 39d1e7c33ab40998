"""Values against JSON schemas: harmless slips are mended, everything else is told.

`prepare` mends what pydantic cannot see or would let pass; `check` is the whole check, for schemas without a pydantic
model behind them.  Both walk the same schemas, in which `inline` has resolved the references.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from toolstep.envs.tools.problems import MismatchError, Path, Problem, describe, missing, unexpected, wrong

_INTEGER = re.compile(r"[+-]?\d{1,4000}(\.0*)?")
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,5})?")
# The words that pydantic takes.
_WORDS = {
    **dict.fromkeys(("true", "t", "yes", "y", "on", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "off", "0"), False),
}


def kinds(schema: Any) -> frozenset[str] | None:
    """The JSON types that `schema` admits; None where it admits all."""
    if not isinstance(schema, Mapping):
        return None
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(map(str, kind))
    if isinstance(schema.get("enum"), list):
        return frozenset(kind_of(value) for value in schema["enum"])
    if "const" in schema:
        return frozenset((kind_of(schema["const"]),))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found = [kinds(option) for option in schema[key]]
            return None if None in found else frozenset().union(*(f for f in found if f is not None))
    for option in schema.get("allOf") or ():
        if (inner := kinds(option)) is not None:
            return inner
    return None


def kind_of(value: Any) -> str:
    """The JSON type of a decoded value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def fits(value: Any, admitted: frozenset[str] | None) -> bool:
    """Whether `value` is of an admitted type as it is; an integer is a number, True is neither."""
    if isinstance(value, float) and not math.isfinite(value):
        return False  # 1e999 is read as infinity
    kind = kind_of(value)
    return admitted is None or kind in admitted or (kind == "integer" and "number" in admitted)


def decode_text(value: Any, admitted: frozenset[str] | None) -> Any:
    """A list or object that came as JSON text, decoded; only where the schema wants one and no text."""
    if isinstance(value, str) and admitted is not None and "string" not in admitted and admitted & {"array", "object"}:
        try:
            decoded = json.loads(value, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return value
        if isinstance(decoded, dict | list) and kind_of(decoded) in admitted:
            return decoded
    return value


def _refuse(word: str) -> Any:
    raise ValueError(word)


def prepare(arguments: dict[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """`arguments` for pydantic, and what it would let pass.

    JSON text is decoded where a list or object is wanted, and "2" is 2 where that is one of the choices.  Problems are
    a boolean in the place of a number, which pydantic reads as 0 or 1, numbers that are not finite, and what an object
    inside has no name for, which a model of pydantic drops without a word.
    """
    problems: list[Problem] = []
    prepared: dict[str, Any] = _prepare(arguments, schema, (), problems)
    return prepared, problems


def _prepare(value: Any, schema: Any, path: Path, problems: list[Problem]) -> Any:
    admitted = kinds(schema)
    value = choose(decode_text(value, admitted), schema)
    if isinstance(value, float) and not math.isfinite(value):
        problems.append(wrong(path, "a finite number", value))
    elif admitted is not None and "boolean" not in admitted and isinstance(value, bool):
        if admitted & {"integer", "number"}:
            problems.append(wrong(path, describe(schema), value))
    elif admitted is not None and "string" not in admitted and isinstance(value, str) and "number" in admitted:
        if value.strip().lower().lstrip("+-") in ("inf", "infinity", "nan"):
            problems.append(wrong(path, "a finite number", value))
    elif isinstance(value, dict):
        shape = _only(schema, "object")
        known = shape.get("properties") or {}
        rest = shape.get("additionalProperties")
        if path and rest is False:
            for key in (key for key in value if key not in known):
                problems.append(unexpected((*path, key), list(known), len(problems)))
        return {key: _prepare(child, known.get(key, rest), (*path, key), problems) for key, child in value.items()}
    elif isinstance(value, list):
        shape = _only(schema, "array")
        first, rest = shape.get("prefixItems") or (), shape.get("items")
        return [
            _prepare(child, first[i] if i < len(first) else rest, (*path, i), problems) for i, child in enumerate(value)
        ]
    return value


def _only(schema: Any, kind: str) -> Mapping[str, Any]:
    """The one alternative of `schema` for values of `kind`; {} where there are several or none."""
    if not isinstance(schema, Mapping):
        return {}
    if schema.get("type") == kind:
        return schema
    options = [option for key in ("anyOf", "oneOf") for option in schema.get(key) or ()]
    found = [option for option in options if isinstance(option, Mapping) and option.get("type") == kind]
    return found[0] if len(found) == 1 else {}


def check(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` with harmless slips mended ("5" and 5.0 for an integer, JSON text for a list).

    Knows type, enum, const, required, properties, additionalProperties, items, prefixItems, anyOf, oneOf (as anyOf),
    allOf and the bounds of numbers, lengths and sizes.  `pattern` and `format` are left to the tool: a pattern from
    elsewhere run on text from a model can take for ever.  Raises MismatchError with all problems.
    """
    problems: list[Problem] = []
    checked: dict[str, Any] = _check(arguments, schema, (), problems)
    if problems:
        raise MismatchError(problems)
    return checked


def _check(value: Any, schema: Any, path: Path, problems: list[Problem]) -> Any:
    if schema is False:
        problems.append(Problem(path, "unexpected", "not allowed"))
        return value
    if not isinstance(schema, Mapping):
        schema = {}
    admitted = kinds(schema)
    value = choose(value, schema)
    if not fits(value, admitted):
        value = mend(value, admitted)
    if not fits(value, admitted):
        problems.append(wrong(path, describe(schema), value))
        return value
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            value = _check_any(value, schema, schema[key], path, problems)
    for part in schema.get("allOf") or ():
        value = _check(value, part, path, problems)
    choices = schema["enum"] if isinstance(schema.get("enum"), list) else [value]
    constant = schema.get("const", value)
    if not (any(_same(value, c) for c in choices) and _same(value, constant) and _within(value, schema)):
        problems.append(wrong(path, describe(schema), value))
    if isinstance(value, dict):
        return _check_object(value, schema, path, problems)
    if isinstance(value, list):
        first, rest = schema.get("prefixItems") or (), schema.get("items")
        return [
            _check(child, first[i] if i < len(first) else rest, (*path, i), problems) for i, child in enumerate(value)
        ]
    return value


def choose(value: Any, schema: Any) -> Any:
    """The one of the choices that a text means, where it is none as it stands ("2" of 1, 2); else the value."""
    if isinstance(value, str) and (choices := _choices(schema)) and value not in choices:
        mended = mend(value, frozenset(map(kind_of, choices)))
        if any(_same(mended, choice) for choice in choices):
            return mended
    return value


def _choices(schema: Any) -> list[Any] | None:
    """All values that `schema` admits; None where it does not list them."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "null":
        return [None]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found = [_choices(option) for option in schema[key]]
            return None if None in found else [choice for part in found for choice in part or ()]
    return None


def mend(value: Any, admitted: frozenset[str] | None) -> Any:
    """The value that was meant, where there is no doubt about it; else the value as it is."""
    if admitted is None:
        return value
    if isinstance(value, float) and value.is_integer() and "integer" in admitted:
        return int(value)
    if type(value) is int and value in (0, 1) and "boolean" in admitted:
        return bool(value)
    if isinstance(value, str):
        text = value.strip()
        if "integer" in admitted and _INTEGER.fullmatch(text):
            return int(text.partition(".")[0])
        if "number" in admitted and _NUMBER.fullmatch(text):
            return int(text) if _INTEGER.fullmatch(text) and "." not in text else float(text)
        if "boolean" in admitted and text.lower() in _WORDS:
            return _WORDS[text.lower()]
        return decode_text(value, admitted)
    return value


def _check_any(value: Any, schema: Mapping[str, Any], options: list[Any], path: Path, problems: list[Problem]) -> Any:
    # A value that is right as it stands is never mended into another alternative.
    for option in sorted(options, key=lambda option: not fits(value, kinds(option))):
        found: list[Problem] = []
        mended = _check(value, option, path, found)
        if not found:
            return mended
    problems.append(wrong(path, describe(schema), value))
    return value


def _check_object(
    value: dict[str, Any], schema: Mapping[str, Any], path: Path, problems: list[Problem]
) -> dict[str, Any]:
    known = schema.get("properties") or {}
    rest = schema.get("additionalProperties", True)
    for name in schema.get("required") or ():
        if name not in value:
            problems.append(missing((*path, name)))
    out: dict[str, Any] = {}
    for key, child in value.items():
        if key not in known and rest is False:
            problems.append(unexpected((*path, key), list(known), len(problems)))
        else:
            out[key] = _check(child, known.get(key, rest), (*path, key), problems)
    return out


def _same(value: Any, choice: Any) -> bool:
    """JSON equality: 1 is 1.0, but True is not 1."""
    return isinstance(value, bool) == isinstance(choice, bool) and bool(value == choice)


def _within(value: Any, schema: Mapping[str, Any]) -> bool:
    """Bounds of numbers, lengths of texts, sizes of lists; a bound that is no number bounds nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Draft 4 writes the exclusive bounds as booleans beside the others.
        below = (schema.get("maximum"), schema.get("exclusiveMaximum"))
        above = (schema.get("minimum"), schema.get("exclusiveMinimum"))
        return (
            _at_most(value, below[0], strictly=below[1] is True)
            and _at_most(value, below[1], strictly=True)
            and _at_most(above[0], value, strictly=above[1] is True)
            and _at_most(above[1], value, strictly=True)
        )
    for kind, low, high in ((str, "minLength", "maxLength"), (list, "minItems", "maxItems")):
        if isinstance(value, kind):
            return _at_most(schema.get(low), len(value)) and _at_most(len(value), schema.get(high))
    return True


def _at_most(low: Any, high: Any, strictly: bool = False) -> bool:
    if kind_of(low) not in ("integer", "number") or kind_of(high) not in ("integer", "number"):
        return True
    return bool(low < high if strictly else low <= high)
