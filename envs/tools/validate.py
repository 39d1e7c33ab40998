"""A parsed call against the tools on offer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolstep.envs.tools.encode import shorten, well_formed
from toolstep.envs.tools.errors import ArgumentError
from toolstep.envs.tools.problems import MAX_SHOWN, listing, nearest
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import CallStatus, ToolCall


@dataclass(frozen=True, slots=True)
class BoundCall:
    """A call that is ready to run: its tool, and the validated arguments as Python values."""

    call: ToolCall
    tool: Tool
    arguments: dict[str, Any]


def resolve(call: ToolCall, tools: Mapping[str, Tool]) -> tuple[ToolCall, BoundCall | None]:
    """`call` with its status and error, and what to run; None where it cannot be run.

    A malformed call (its status is not OK) comes back as it is.  Never raises, whatever the arguments are.  A mismatch
    is one of UNKNOWN_TOOL, MISSING_ARGUMENT, UNEXPECTED_ARGUMENT and WRONG_TYPE (ARGUMENTS_NOT_OBJECT for a call
    without decoded arguments), with a message for the model.
    """
    if call.status is not CallStatus.OK:
        return call, None
    tool = tools.get(call.name)
    if tool is None:
        return _failed(call, CallStatus.UNKNOWN_TOOL, _unknown(call.name, list(tools))), None
    if not isinstance(call.parsed, Mapping):
        message = f"{call.name}: the arguments must be a JSON object"
        return _failed(call, CallStatus.ARGUMENTS_NOT_OBJECT, message), None
    try:
        return call, BoundCall(call, tool, tool.bind(call.parsed))
    except ArgumentError as error:
        return _failed(call, error.status, error.message), None


def _failed(call: ToolCall, status: CallStatus, message: str) -> ToolCall:
    return dataclasses.replace(call, status=status, error=message)


def _unknown(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    hint = f"; did you mean {near!r}?" if near else "."
    offer = f" Tools on offer: {listing(known)}" if known else " No tools are on offer here"
    return well_formed(f"there is no tool {shorten(name, MAX_SHOWN)!r}{hint}{offer}")
