"""What pydantic has to say about arguments, as `Problem`s."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolstep.envs.tools.check import kind_of, kinds
from toolstep.envs.tools.encode import shorten
from toolstep.envs.tools.problems import Path, Problem, describe, missing, show, unexpected, wrong

if TYPE_CHECKING:
    from pydantic import ValidationError

# Kinds of error of which our own description of the schema says all.
_PLAIN = (
    "_type", "int_parsing", "int_parsing_size", "float_parsing", "bool_parsing", "int_from_float", "enum",
    "literal_error", "none_required", "greater_than", "greater_than_equal", "less_than", "less_than_equal",
    "multiple_of", "string_too_short", "string_too_long", "too_short", "too_long", "string_pattern_mismatch",
)  # fmt: skip


def problems_of(error: ValidationError, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Problem]:
    """One problem for each place in `arguments`; the alternatives of a union are told together."""
    found: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False, include_context=False):
        kind, path = detail["type"], _path(detail["loc"], arguments)
        if kind in ("missing", "missing_argument"):
            last = detail["loc"][-1]
            path = (*path, last if isinstance(last, int) else str(last))
            found.setdefault(path, missing(path))
        elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
            holder = _at(schema, path[:-1]) or {}
            found.setdefault(path, unexpected(path, list(holder.get("properties") or {}), len(found)))
        else:
            found.setdefault(path, _wrong(path, kind, detail["msg"], detail["input"], _at(schema, path)))
    return list(found.values())


def _wrong(path: Path, kind: str, message: str, value: Any, schema: Mapping[str, Any] | None) -> Problem:
    if kind in ("value_error", "assertion_error"):  # the tool author's own words
        return Problem(path, "wrong", f"{shorten(message.partition(', ')[2] or message)}, got {show(value)}")
    if schema and (kind.endswith(_PLAIN) or kind_of(value) not in (kinds(schema) or {kind_of(value)})):
        return wrong(path, describe(schema), value)
    expected = message.removeprefix("Input should be ")
    return wrong(path, shorten(expected) if expected != message else f"a valid value ({shorten(message)})", value)


def _path(location: tuple[int | str, ...], arguments: Any) -> Path:
    """Where the error is in the arguments; pydantic's locations name models and alternatives as well."""
    path: list[str | int] = []
    node = arguments
    for part in location:
        try:
            node = node[part]
        except (KeyError, IndexError, TypeError):
            continue
        path.append(part)
    return tuple(path)


def _at(schema: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    """The part of `schema` for the value at `path`; None where it cannot be told."""
    node: Any = schema
    for part in path:
        options = [node, *(node.get("anyOf") or ()), *(node.get("oneOf") or ())] if isinstance(node, Mapping) else []
        found = [child for option in options if (child := _child(option, part)) is not None]
        if len(found) != 1:
            return None
        node = found[0]
    return node if isinstance(node, Mapping) else None


def _child(schema: Any, part: str | int) -> Any:
    if not isinstance(schema, Mapping):
        return None
    if isinstance(part, int):
        first = schema.get("prefixItems") or ()
        return first[part] if part < len(first) else schema.get("items")
    return (schema.get("properties") or {}).get(part, schema.get("additionalProperties"))
