"""From what a server lists to `Tool`s."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from toolstep.envs.tools.errors import ToolBackendError, ToolSchemaError
from toolstep.envs.tools.tool import Tool

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

MAX_TOOLS = 1_000
MAX_SCHEMA = 256 << 10  # characters of one tool's schema as JSON
_BAD = re.compile(r"[^\w.\-/]")


class ListedTools:
    """The tools of one listing, not yet bound to a session.

    tools: what the model is offered; calling one of them is an error until it is bound.
    names: what the server calls each of them.
    """

    def __init__(self, listed: Sequence[ListedTool], *, wanted: Collection[str] | None, prefix: str, who: str) -> None:
        self.tools: list[Tool] = []
        self.names: dict[str, str] = {}
        known = [tool.name for tool in listed]
        for name in wanted or ():
            if name not in known:
                raise ToolBackendError(f"{who} has no tool {name!r}; it has {', '.join(known) or 'none'}")
        for tool in listed:
            if wanted is None or tool.name in wanted:
                self._add(tool, prefix, who)

    def _add(self, tool: ListedTool, prefix: str, who: str) -> None:
        name = valid_name(prefix + tool.name, self.names)
        try:
            check_schema(tool.input_schema)
            made = Tool.from_schema(
                _unbound, name=name, parameters=tool.input_schema, description=tool.description or tool.title or ""
            )
        except (ToolSchemaError, ValueError) as error:
            raise ToolBackendError(
                f"{who}: the schema of tool {tool.name!r} cannot be used: {error}; name the tools that you want with "
                "tools=[...]"
            ) from error
        self.tools.append(made)
        self.names[name] = tool.name

    def same_as(self, other: ListedTools) -> bool:
        """Whether a model would be offered the same."""
        return [t.schema for t in self.tools] == [t.schema for t in other.tools]


async def _unbound(**_: Any) -> None:
    raise RuntimeError("the tool is not connected to a server")


def valid_name(name: str, taken: Collection[str]) -> str:
    """`name` with characters that no tool's name may have replaced, and a number where it is taken."""
    clean = _BAD.sub("_", name)[:120] or "tool"
    number, candidate = 1, clean
    while candidate in taken:
        number += 1
        candidate = f"{clean}_{number}"
    return candidate


def check_schema(schema: Any) -> None:
    """ValueError for what is no JSON schema (draft 2020-12, or the one that it names), or too large to be shown."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    size = len(json.dumps(schema))
    if size > MAX_SCHEMA:
        raise ValueError(f"it has {size} characters, at most {MAX_SCHEMA} are taken")
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"at {error.json_path}: {error.message[:300]}") from None
