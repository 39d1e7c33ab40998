"""Schemas of OpenAPI documents as plain JSON schemas without references."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolstep.envs.tools.inline import inline

# Words for people and programs that generate code; a model's context is too dear for them.
_NOISE = ("example", "examples", "xml", "externalDocs", "discriminator", "deprecated", "writeOnly", "readOnly")
_MAPS = ("properties", "patternProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "not")


def plain_schema(schema: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with its references written out (recursive ones twice) in the words of JSON Schema.

    `nullable` becomes a type, the boolean bounds of version 3.0 become numbers, properties that only the server may
    write are left out, and so is what says nothing to a model.
    """
    if not isinstance(schema, Mapping):
        return {}
    translated = _translate(inline(schema, document))
    return translated if isinstance(translated, dict) else {}


def _translate(node: Any) -> Any:
    if not isinstance(node, Mapping):
        return node if isinstance(node, bool) else {}
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in _NOISE or key == "nullable" or key.startswith("x-"):
            continue
        if key in _MAPS and isinstance(value, Mapping):
            out[key] = {name: _translate(child) for name, child in value.items() if not _read_only(child)}
        elif key in _LISTS and isinstance(value, list):
            out[key] = [_translate(child) for child in value]
        elif key in _SINGLES:
            out[key] = _translate(value)
        else:
            out[key] = value
    if isinstance(out.get("required"), list) and isinstance(node.get("properties"), Mapping):
        gone = {name for name, child in node["properties"].items() if _read_only(child)}
        out["required"] = [name for name in out["required"] if name not in gone]
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(out.get(bound), bool):
            exclusive = out.pop(bound)
            if exclusive and limit in out:
                out[bound] = out.pop(limit)
    return _nullable(out) if node.get("nullable") is True else out


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"]}
    if any(key in schema for key in _LISTS):
        about: dict[str, Any] = {key: schema.pop(key) for key in ("description", "default") if key in schema}
        return {**about, "anyOf": [schema, {"type": "null"}]}
    return schema


def _read_only(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("readOnly") is True


def merged(schema: Mapping[str, Any]) -> dict[str, Any]:
    """`schema` with an `allOf` of objects (inheritance, in these documents) made one object; else as it is."""
    parts = schema.get("allOf")
    if not isinstance(parts, list):
        return dict(schema)
    own = {key: value for key, value in schema.items() if key != "allOf"}
    pieces = [merged(part) for part in parts if isinstance(part, Mapping)]
    if len(pieces) != len(parts) or not all(_is_object(piece) for piece in (*pieces, {"type": "object", **own})):
        return dict(schema)
    out: dict[str, Any] = {"type": "object", "properties": {}, "required": []}
    for piece in (*pieces, own):
        out["properties"].update(piece.get("properties") or {})
        out["required"] += [name for name in piece.get("required") or () if name not in out["required"]]
        out.update({k: v for k, v in piece.items() if k not in ("type", "properties", "required")})
    return out


def _is_object(schema: Mapping[str, Any]) -> bool:
    plain = schema.get("type", "object") == "object" and isinstance(schema.get("properties", {}), Mapping)
    return plain and not any(key in schema for key in ("anyOf", "oneOf", "allOf", "not", "enum", "const"))
