"""From what a server lists to `Tool`s."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from toolstep.envs.tools.errors import ToolBackendError, ToolSchemaError
from toolstep.envs.tools.names import valid_name
from toolstep.envs.tools.schema_check import check_schema
from toolstep.envs.tools.tool import Tool

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

MAX_TOOLS = 1_000


class ListedTools:
    """The tools of one listing, not yet bound to a session.

    tools: what the model is offered; calling one of them is an error until it is bound.
    names: what the server calls each of them.
    """

    def __init__(self, listed: Sequence[ListedTool], *, wanted: Collection[str] | None, prefix: str, who: str) -> None:
        self.tools: list[Tool] = []
        self.names: dict[str, str] = {}
        if len(listed) > MAX_TOOLS:
            raise ToolBackendError(f"{who} lists {len(listed)} tools; at most {MAX_TOOLS} are taken")
        known = [tool.name for tool in listed]
        for name in wanted or ():
            if name not in known:
                raise ToolBackendError(f"{who} has no tool {name!r}; it has {', '.join(known) or 'none'}")
        for tool in listed:
            if wanted is None or tool.name in wanted:
                self._add(tool, prefix, who)

    def _add(self, tool: ListedTool, prefix: str, who: str) -> None:
        name = valid_name(prefix + tool.name, self.names, also="./")
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
