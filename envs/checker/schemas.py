"""What can be wrong with a tool before it is called: its name, its words, its schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolstep.envs.checker.report import Report
from toolstep.envs.tools.check import kinds
from toolstep.envs.tools.schema_check import MAX_SCHEMA, check_schema
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import Message

MOST_SHOWN = 8_192  # characters of one schema: each prompt of each episode shows it
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TYPES = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


def check_words(tool: Tool, report: Report) -> bool:
    """Name, description and schema of a tool; False where the schema cannot be used at all."""
    if not _NAME.fullmatch(tool.name):
        report.add(
            "name",
            "warning",
            tool.name,
            f"The name {tool.name!r} is none that APIs of models take: 1 to 64 letters, digits, _ and -.",
            "Give it another one: tool(fn, name='...').",
        )
    if not tool.description.strip():
        report.add(
            "no-description",
            "warning",
            tool.name,
            "A model is not told what this tool is for: it has no description.",
            "Write a docstring, or pass description=.",
        )
    try:
        size = len(json.dumps(tool.parameters, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        report.add(
            "bad-schema",
            "error",
            tool.name,
            f"Its parameters cannot be written as JSON, so that no chat template can show them: {error}",
            "Build the schema of dicts, lists, text, numbers, booleans and None only.",
        )
        return False
    problems = list(_problems(tool.parameters, "parameters"))
    if not problems:
        problems = _by_library(tool.parameters, size)
    for where, what in problems:
        report.add(
            "bad-schema", "error", f"{tool.name}, {where}", what, "Write it as JSON schema (draft 2020-12) does."
        )
    if size > MOST_SHOWN:
        report.add(
            "large-schema",
            "warning",
            tool.name,
            f"Its schema has {size:,} characters, which each prompt shows; {MOST_SHOWN:,} are much already.",
            "Take simpler types, shorter descriptions, or split the tool.",
        )
    _parameters(tool, report)
    _shown(tool, report)
    return not problems


def _parameters(tool: Tool, report: Report) -> None:
    for name, part in (tool.parameters.get("properties") or {}).items():
        schema = part if isinstance(part, Mapping) else {}
        if not str(schema.get("description") or "").strip():
            report.add(
                "no-parameter-description",
                "warning",
                f"{tool.name}, parameter {name!r}",
                f"The parameter {name!r} has no description: a model has to guess what it wants from its name.",
                f'Describe it in the docstring ("Args:", then "{name}: ...") or by Annotated[..., "..."].',
            )
        if kinds(schema) is None and not any(k in schema for k in ("anyOf", "oneOf", "allOf", "enum", "const")):
            report.add(
                "untyped-parameter",
                "warning",
                f"{tool.name}, parameter {name!r}",
                f"The parameter {name!r} has no type, so that anything a model writes reaches the tool.",
                f"Annotate it: {name}: str, say.",
            )


def _shown(tool: Tool, report: Report) -> None:
    from toolstep.envs.chat import ChatTemplate

    try:
        text = ChatTemplate().prompt([Message("user", "?")], [tool.schema]).text
    except Exception as error:
        report.add(
            "bad-schema",
            "error",
            tool.name,
            f"The built-in chat template cannot show it: {type(error).__name__}: {error}",
            "Keep to plain JSON in names, descriptions and schema.",
        )
        return
    if tool.name not in text:
        report.add("bad-schema", "error", tool.name, "The prompt does not show the tool.", "Give it a plain name.")


def _problems(schema: Any, where: str) -> Iterator[tuple[str, str]]:
    """(place, what is wrong) for slips that validators only find when it is too late."""
    if not isinstance(schema, Mapping):
        return
    kind = schema.get("type")
    for name in [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []:
        if name not in _TYPES:
            yield where, f"there is no JSON type {name!r}; expected one of {', '.join(sorted(_TYPES))}"
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        for name in schema.get("required") or ():
            if name not in properties and schema.get("additionalProperties") is False:
                yield where, f"{name!r} is required and is no property, so that no arguments can be right"
        for name, part in properties.items():
            yield from _problems(part, f"{where}.{name}")
    if schema.get("enum") == []:
        yield where, "its enum is empty, so that no value can be right"
    for low, high in (("minimum", "maximum"), ("minLength", "maxLength"), ("minItems", "maxItems")):
        a, b = schema.get(low), schema.get(high)
        if isinstance(a, int | float) and isinstance(b, int | float) and a > b:
            yield where, f"{low} {a} is above {high} {b}, so that no value can be right"
    for key in ("items", "additionalProperties"):
        yield from _problems(schema.get(key), f"{where}.{key}")
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for i, part in enumerate(schema.get(key) or ()):
            yield from _problems(part, f"{where}.{key}[{i}]")


def _by_library(schema: Mapping[str, Any], size: int) -> list[tuple[str, str]]:
    """What jsonschema says, where it is installed (it comes with the extras `mcp` and `openapi`)."""
    if size > MAX_SCHEMA:
        return [("parameters", f"it has {size:,} characters; at most {MAX_SCHEMA:,} can be shown")]
    try:
        check_schema(dict(schema))
    except ImportError:
        return []
    except ValueError as error:
        return [("parameters", str(error))]
    return []
