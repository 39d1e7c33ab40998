"""The calls of the oracle: for each argument the first value that the leaderboard accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolstep.envs.tasks.bfcl.data import Entry
from toolstep.envs.tasks.bfcl.docs import tool_name


def first_calls(entry: Entry) -> list[tuple[str, dict[str, Any]]]:
    """(name, arguments) of each call; optional arguments without a value of their own are left out."""
    calls = []
    for wanted in entry.truth:
        name, acceptable = next(iter(wanted.items()))
        doc = next(d for d in entry.functions if d["name"] == name)
        required = doc["parameters"]["required"]
        docs = doc["parameters"]["properties"]
        arguments = {
            parameter: _first(docs[parameter], values)
            for parameter, values in acceptable.items()
            if parameter in docs and (parameter in required or any(v != "" for v in values))
        }
        calls.append((tool_name(name), arguments))
    return calls


def _first(doc: Mapping[str, Any], acceptable: list[Any]) -> Any:
    value = next((v for v in acceptable if v != ""), "")
    if doc["type"] == "dict" and isinstance(value, dict):
        return _of(value)
    if doc["type"] in ("array", "tuple") and doc["items"]["type"] == "dict" and isinstance(value, list):
        return [_of(item) if isinstance(item, dict) else item for item in value]
    return value


def _of(option: Mapping[str, Any]) -> dict[str, Any]:
    """A dict of the first value of each key that can't be left out."""
    return {key: values[0] for key, values in option.items() if "" not in values}
