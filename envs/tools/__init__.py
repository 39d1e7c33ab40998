"""Tools: making them, checking what a model passes to them, running them.

Importing this is cheap: pydantic and griffe are loaded with the first tool that is made of a function, the event loop
and worker processes with the first call that needs them.
"""

from toolstep.envs.tools.encode import NotJSONError
from toolstep.envs.tools.errors import ArgumentError, NotRecorded, ToolBackendError, ToolSchemaError
from toolstep.envs.tools.executor import Executor
from toolstep.envs.tools.factory import EpisodeInfo, Offer, Toolbox, ToolFactory, ToolNameError, as_offer, per_episode
from toolstep.envs.tools.mcp import MCP
from toolstep.envs.tools.openapi import OpenAPI, OpenAPIError
from toolstep.envs.tools.owner import SharedStateError
from toolstep.envs.tools.result import error_result, error_text, limit_result, to_result, to_text
from toolstep.envs.tools.tape import Playback, Recording, Tape
from toolstep.envs.tools.tool import RunIn, Tool, as_tool, tool
from toolstep.envs.tools.validate import BoundCall, resolve

__all__ = [
    "MCP",
    "ArgumentError",
    "BoundCall",
    "EpisodeInfo",
    "Executor",
    "NotJSONError",
    "NotRecorded",
    "Offer",
    "OpenAPI",
    "OpenAPIError",
    "Playback",
    "Recording",
    "RunIn",
    "SharedStateError",
    "Tape",
    "Tool",
    "ToolBackendError",
    "ToolFactory",
    "ToolNameError",
    "ToolSchemaError",
    "Toolbox",
    "as_offer",
    "as_tool",
    "error_result",
    "error_text",
    "limit_result",
    "per_episode",
    "resolve",
    "to_result",
    "to_text",
    "tool",
]
