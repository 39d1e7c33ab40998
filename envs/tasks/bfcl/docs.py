"""Tools out of the leaderboard's docs of functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolstep.envs.tools.foreign import PassedOn
from toolstep.envs.tools.tool import Tool


def tool_name(name: str) -> str:
    """The name under which a function is on offer: vendors' formats take no dots (the official checker knows)."""
    return name.replace(".", "_")


def doc_tool(doc: Mapping[str, Any], function: Callable[..., Any]) -> Tool:
    """The tool that a doc describes.

    Arguments are passed on as they are: what is wrong with them is part of what is measured.
    """
    signature = PassedOn(json_schema(doc["parameters"]))
    return Tool(
        tool_name(doc["name"]), doc.get("description", ""), signature.schema, "inline", None, function, signature
    )


def json_schema(doc: Mapping[str, Any]) -> dict[str, Any]:
    """A doc of parameters as JSON schema: its types are those of Python, Java and JavaScript."""
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI

    made = {key: value for key, value in doc.items() if key not in ("optional", "required") or isinstance(value, list)}
    if isinstance(doc.get("type"), str):
        made["type"] = GORILLA_TO_OPENAPI.get(doc["type"], "string")
    if isinstance(doc.get("properties"), Mapping):
        made["properties"] = {name: json_schema(inner) for name, inner in doc["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(doc.get(key), Mapping):
            made[key] = json_schema(doc[key])
    return made
