"""Arguments that a JSON schema allows, the simplest first.

Own code and not a library: hypothesis-jsonschema, the one that is there, ended with draft 7 (no `prefixItems`, which
pydantic writes for tuples).  What `pattern` asks for is found among common forms, or has to be given.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.tools.check import kinds

_DEPTH = 4
_MOST = 10  # values of one place
_FORMATS: dict[str, tuple[str, ...]] = {
    "date": ("2024-02-29", "1999-12-31"),
    "date-time": ("2024-02-29T12:30:00Z", "1999-12-31T23:59:59+02:00"),
    "time": ("12:30:00", "00:00:00"),
    "duration": ("PT1H30M", "P1D"),
    "email": ("ada@example.org",),
    "uri": ("https://example.org/a?b=c",),
    "url": ("https://example.org/a?b=c",),
    "hostname": ("example.org",),
    "ipv4": ("192.0.2.1",),
    "ipv6": ("2001:db8::1",),
    "uuid": ("123e4567-e89b-42d3-a456-426614174000",),
    "regex": ("a+",),
    "json-string": ('{"a": 1}',),
    "binary": ("YQ==",),
    "base64": ("YQ==",),
    "path": ("a.txt",),
    "file-path": ("a.txt",),
}
_TEXTS = ("a", "hello world", "", "7", "é 你好 🙂", 'a "quoted" <b> \\ line\nbreak', "x" * 300)
_PATTERNED = (
    *_TEXTS,
    "A", "abc", "ABC", "Abc", "aB1", "a1", "A1", "1", "12", "123", "1234", "12345", "123456", "1.5", "-1", "USD",
    "en", "en-US", "12:30", "12:30:00", "A-1", "AB-12", "AB-123", "ABC-123", "AB123", "ABC123", "abc_def", "abc-def",
    "a/b", "/a/b", "a.txt", "#a", "#aabbcc", "0xff", "+4912345678", "a@example.org", "@a", "v1.2.3", "1.2.3", "2024",
    "2024-02", *(text for texts in _FORMATS.values() for text in texts),
)  # fmt: skip
_WHOLE = (1, 0, 2, 7, -1, 100)
_REAL = (1.5, 0, 1, -2.5, 100, 0.001)


class NoSample(ValueError):
    """No value could be made; the message says for what."""


def sample_arguments(schema: Mapping[str, Any], count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Up to `count` different objects of the arguments that `schema` describes, the same for the same seed.

    First come those with the fewest arguments and the simplest values, then those that differ from them in one place,
    then random mixtures: the first one that fails shows the fault with little else.  `examples`, `default`, `enum`
    and `const` of the schema come before values of our own.

    Raises:
        NoSample: a required argument for which nothing can be made (a `pattern` out of the ordinary, say).
    """
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = [name for name in schema.get("required") or () if name in properties]
    found: dict[str, list[Any]] = {}
    for name, part in properties.items():
        try:
            found[name] = choices(part, where=name)
        except NoSample:
            if name in required:
                raise
    simplest = {name: values[0] for name, values in found.items()}
    least = {name: simplest[name] for name in required}
    out = [dict(example) for example in schema.get("examples") or () if isinstance(example, Mapping)]
    out += [least, dict(simplest)]
    for depth in range(1, _MOST):
        out += [{**simplest, name: values[depth]} for name, values in found.items() if depth < len(values)]
    draw = random.Random(seed)
    for _ in range(count):
        chosen = [name for name in found if name in required or draw.random() < 0.7]
        out.append({name: draw.choice(found[name]) for name in chosen})
    return _different(out)[:count]


def choices(schema: Any, depth: int = 0, where: str = "value") -> list[Any]:
    """A few values that `schema` allows, the simplest first; at least one.

    Raises:
        NoSample: nothing fits, or nothing is known that does.
    """
    if schema is False:
        raise NoSample(f"{where}: the schema allows nothing")
    if not isinstance(schema, Mapping):
        schema = {}
    given = [*_listed(schema.get("examples")), *([schema["default"]] if "default" in schema else [])]
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), Sequence) and not isinstance(schema["enum"], str):
        if not schema["enum"]:
            raise NoSample(f"{where}: its enum is empty")
        return _different([*given, *schema["enum"]])[:_MOST]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return _of_any(schema[key], given, depth, where)
    if isinstance(schema.get("allOf"), list):
        return choices(_merged(schema), depth, where)
    admitted = kinds(schema)
    order = ("string", "integer", "number", "boolean", "array", "object", "null")
    if admitted is None:
        return _different([*given, "a", 1, None, True, 1.5, ["a"], {"a": 1}])[:_MOST]
    made: list[Any] = []
    problem: NoSample | None = None
    for kind in (k for k in order if k in admitted):
        try:
            made += _MAKERS[kind](schema, depth, where)
        except NoSample as error:
            problem = error
    if not made and not given:
        raise problem or NoSample(f"{where}: there is no JSON type {sorted(admitted)}")
    return _different([*given, *made])[:_MOST]


def _of_any(options: list[Any], given: list[Any], depth: int, where: str) -> list[Any]:
    found = []
    for option in options:
        try:
            found.append(choices(option, depth, where))
        except NoSample:
            continue
    if not found and not given:
        raise NoSample(f"{where}: none of its alternatives can be made")
    mixed = [values[i] for i in range(_MOST) for values in found if i < len(values)]
    return _different([*given, *mixed])[:_MOST]


def _texts(schema: Mapping[str, Any], depth: int, where: str) -> list[Any]:
    low, high = _size(schema, "minLength", 0), _size(schema, "maxLength", 100_000)
    form, pattern = schema.get("format"), schema.get("pattern")
    if isinstance(pattern, str):
        try:
            known = [text for text in _PATTERNED if re.search(pattern, text)]
        except re.error:
            raise NoSample(f"{where}: its pattern {pattern!r} is no regular expression") from None
        what = f"the pattern {pattern!r}"
    elif isinstance(form, str) and form in _FORMATS:
        known, what = list(_FORMATS[form]), f"the format {form!r}"
    else:
        short = [text for text in _TEXTS if low <= len(text) <= high]
        known, what = short or [("abc " * low)[: max(low, 1)][:high]], "its length"
    fitting = [text for text in known if low <= len(text) <= high]
    if not fitting:
        raise NoSample(f"{where}: no text is known for {what} and {low} to {high} characters")
    return fitting


def _numbers(schema: Mapping[str, Any], depth: int, where: str, *, whole: bool) -> list[Any]:
    low, high = _bounds(schema)
    step = schema.get("multipleOf")
    step = step if isinstance(step, int | float) and step > 0 else None
    own = [*_WHOLE] if whole else [*_REAL]
    edges = [edge for edge in (low, high) if math.isfinite(edge)]
    if edges:
        near = edges[0]
        unit = 1 if whole else 0.5
        own += [near, near + unit, near - unit, near + 2 * unit, sum(edges) / len(edges), edges[-1]]
    if step is not None:
        base = math.ceil(low / step) if math.isfinite(low) else 0
        own = [(base + i) * step for i in range(4)]
    made = [int(v) if whole or (isinstance(v, float) and v.is_integer()) else v for v in own]
    open_low, open_high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    fitting = [v for v in made if low <= v <= high and v not in (open_low, open_high)]
    if not fitting:
        raise NoSample(f"{where}: no number from {low} to {high}")
    return fitting


def _bounds(schema: Mapping[str, Any]) -> tuple[float, float]:
    lows = [schema.get("minimum"), schema.get("exclusiveMinimum")]
    highs = [schema.get("maximum"), schema.get("exclusiveMaximum")]
    plain = [[v for v in side if isinstance(v, int | float) and not isinstance(v, bool)] for side in (lows, highs)]
    return max(plain[0], default=-math.inf), min(plain[1], default=math.inf)


def _arrays(schema: Mapping[str, Any], depth: int, where: str) -> list[Any]:
    low, high = _size(schema, "minItems", 0), _size(schema, "maxItems", 100)
    first = [choices(part, depth + 1, f"{where}[{i}]")[0] for i, part in enumerate(schema.get("prefixItems") or ())]
    rest: list[Any] = []
    if depth < _DEPTH and schema.get("items") is not False and high > len(first):
        rest = choices(schema.get("items"), depth + 1, f"{where}[]")
    sizes = [n for n in dict.fromkeys((max(low, len(first), 1), max(low, len(first)), low + 2)) if n <= high]
    made: list[Any] = []
    for size in sizes:
        more = size - len(first)
        if more <= 0:
            made.append(first[:size] if size >= low else first)
        elif rest and (len(rest) >= more or not schema.get("uniqueItems")):
            made.append(first + [rest[i % len(rest)] for i in range(more)])
    if not made:
        if low > 0:
            raise NoSample(f"{where}: no list of {low} to {high} items")
        return [[]]
    return _different(made)


def _objects(schema: Mapping[str, Any], depth: int, where: str) -> list[Any]:
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = list(schema.get("required") or ())
    least, full = {}, {}
    for name, part in properties.items():
        if depth >= _DEPTH and name not in required:
            continue
        try:
            full[name] = choices(part, depth + 1, f"{where}.{name}")[0]
        except NoSample:
            if name in required:
                raise
    least = {name: full[name] for name in required if name in full}
    more = schema.get("additionalProperties")
    if not properties and depth < _DEPTH and more is not False:
        return [{"a": choices(more if isinstance(more, Mapping) else {}, depth + 1, f"{where}.a")[0]}, {}]
    return _different([full, least])


def _size(schema: Mapping[str, Any], key: str, default: int) -> int:
    value = schema.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _different(values: Sequence[Any]) -> list[Any]:
    """Without repetition, the first of equals kept; 1 and True and 1.0 are three values."""
    seen: dict[str, Any] = {}
    for value in values:
        seen.setdefault(json.dumps(value, sort_keys=True, default=repr), value)
    return list(seen.values())


def _merged(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of an `allOf` in one schema."""
    out: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
    for part in schema["allOf"]:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            if key == "properties" and isinstance(value, Mapping):
                out[key] = {**out.get(key, {}), **value}
            elif key == "required" and isinstance(value, list):
                out[key] = [*out.get(key, ()), *value]
            else:
                out[key] = value
    return out


_MAKERS: dict[str, Any] = {
    "string": _texts,
    "integer": lambda schema, depth, where: _numbers(schema, depth, where, whole=True),
    "number": lambda schema, depth, where: _numbers(schema, depth, where, whole=False),
    "boolean": lambda schema, depth, where: [True, False],
    "array": _arrays,
    "object": _objects,
    "null": lambda schema, depth, where: [None],
}
