"""Arguments that are written as plain text: their types come from the tools' schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.chat.formats.scan import BadJSON, has_surrogate, read_whole

_JSON_TYPES: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),  # before int, of which it is one
    (str, ("string",)),
    (int, ("integer", "number")),
    (float, ("number",)),
    (dict, ("object",)),
    (list, ("array",)),
    (type(None), ("null",)),
)


class Parameters:
    """The parameters of the tools on offer.

    tools: OpenAI-style schemas, `{"type": "function", "function": {...}}` or the inner part alone.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]):
        self._tools = tools
        self._functions: dict[str, Mapping[str, Any]] | None = None

    def read(self, tool: str, name: str, text: str) -> Any:
        """The value of an argument from its text.

        A string stays as it was written ('007').  All other types are read as JSON, and kept as text if they are none;
        so is a parameter that no schema describes.  Raises BadJSON for text that is no Unicode.
        """
        types = self._types(tool, name)
        if types != {"string"}:
            try:
                value = read_whole(text).value
            except BadJSON:
                pass
            else:
                if "string" not in types or _type_names(value) & (types - {"string"}):
                    return value
        if has_surrogate(text):
            raise BadJSON("a lone surrogate is not text")
        return text

    def write(self, tool: str, name: str, value: Any) -> str:
        """The text from which `read` makes `value`, if there is one."""
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        try:
            plain: Any = self.read(tool, name, value)
        except BadJSON:
            return value
        return value if plain == value and isinstance(plain, str) else json.dumps(value, ensure_ascii=False)

    def _types(self, tool: str, name: str) -> frozenset[str]:
        if self._functions is None:
            functions = [t.get("function", t) for t in self._tools if isinstance(t, Mapping)]
            self._functions = {str(f.get("name")): f for f in functions if isinstance(f, Mapping)}
        root = self._functions.get(tool, {}).get("parameters")
        properties = root.get("properties") if isinstance(root, Mapping) else None
        schema = properties.get(name) if isinstance(properties, Mapping) else None
        return frozenset() if not isinstance(root, Mapping) else frozenset(_declared(schema, root, 0))


def _declared(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    """Names of the JSON types that a schema admits, as far as it says so."""
    if not isinstance(schema, Mapping) or depth > 10:
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, (list, tuple)):
        return {k for k in kind if isinstance(k, str)}
    if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/"):
        target: Any = root
        for part in ref[2:].split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        return _declared(target, root, depth + 1)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, (list, tuple)):
        return set().union(*(_type_names(v) for v in values))
    options = [s for k in ("anyOf", "oneOf", "allOf") for s in schema.get(k) or ()]
    return set().union(*(_declared(s, root, depth + 1) for s in options))


def _type_names(value: Any) -> set[str]:
    return next((set(names) for cls, names in _JSON_TYPES if isinstance(value, cls)), set())
