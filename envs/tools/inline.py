"""JSON schemas without `$ref`: chat templates show them to a model as they are, and none resolves references."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
MAX_REPEATS = 2  # how often a recursive definition is written out within itself
MAX_REFERENCES = 300  # written out in one schema; definitions that refer to each other would grow without end
_MAPS = ("properties", "patternProperties", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "not", "contains", "propertyNames")
_DEFINITIONS = ("$defs", "definitions")


def inline(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A copy of `schema` with each local `$ref` written out and every `title` (a keyword, not a property) removed.

    A definition that contains itself is written out MAX_REPEATS times; below that stands only its type (or {} where it
    has none) and its description, and so does every reference beyond the first MAX_REFERENCES.  A reference that leads
    nowhere, or out of the document, becomes {}: anything goes.  root: the document that references lead into, where it
    is not the schema itself.
    """
    result = _Inliner(schema if root is None else root).walk(schema, ())
    return result if isinstance(result, dict) else {}


class _Inliner:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = MAX_REFERENCES

    def walk(self, node: Any, within: tuple[str, ...]) -> Any:
        """`node` written out; `within` are the references that it stands in."""
        if not isinstance(node, Mapping):  # `true` or `false`
            return node
        if isinstance(node.get("$ref"), str):
            return self._resolve(node, within)
        result: dict[str, Any] = {}
        for key, value in node.items():
            if key in _DEFINITIONS or key == "discriminator" or (key == "title" and isinstance(value, str)):
                continue
            if key in _MAPS and isinstance(value, Mapping):
                result[key] = {name: self.walk(child, within) for name, child in value.items()}
            elif key in _LISTS and isinstance(value, list):
                result[key] = [self.walk(child, within) for child in value]
            elif key in _SINGLES:
                result[key] = self.walk(value, within)
            else:
                result[key] = copy.deepcopy(value)
        return result

    def _resolve(self, node: Mapping[str, Any], within: tuple[str, ...]) -> Any:
        reference = node["$ref"]
        beside = self.walk({key: value for key, value in node.items() if key != "$ref"}, within)
        target = look_up(reference, self._root)
        if not isinstance(target, Mapping):
            return beside
        if within.count(reference) >= MAX_REPEATS or self._left <= 0:
            return {**{key: target[key] for key in ("type", "description") if key in target}, **beside}
        self._left -= 1
        return {**self.walk(target, (*within, reference)), **beside}


def look_up(reference: str, root: Any) -> Any:
    """What a reference within a document (a JSON pointer behind "#", RFC 6901) leads to; None where that is nothing."""
    if reference != "#" and not reference.startswith("#/"):
        return None
    node = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and name in node:
            node = node[name]
        elif isinstance(node, list) and _INDEX.fullmatch(name) and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node
