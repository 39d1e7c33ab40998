"""The tools of one episode, and the server that answers their calls."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from toolstep.envs.tools.bound import BoundTools
from toolstep.envs.tools.errors import ToolBackendError
from toolstep.envs.tools.mcp.listing import ListedTools
from toolstep.envs.tools.mcp.servers import Servers, Slot
from toolstep.envs.tools.mcp.session import Session
from toolstep.envs.tools.result import error_result
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import CallStatus, ToolResult

NEW_SERVER = "[the server of this tool had stopped and was started again; what it kept in memory is gone]"

log = logging.getLogger("toolstep.mcp")


class EpisodeTools(BoundTools):
    """What `MCP.make` gives: a list of tools that all belong to this object, and with it to one episode.

    `ready`, `changes` and `close` are those that `ToolFactory.make` speaks of.
    """

    def __init__(
        self, servers: Servers, slot: Slot, token: object, listed: ListedTools, starting: Future[Session]
    ) -> None:
        self._servers = servers
        self._slot = slot
        self._listed = listed
        self._starting: Future[Session] | None = starting
        self._session: Session | None = None  # that has answered last
        self._told = False  # that it was lost
        self._seen = 0  # changes of its tools that were looked at
        self._changed = False
        self._failure: ToolBackendError | None = None
        self._tools = self._bound()
        self._finalizer = weakref.finalize(self, servers.take_back, slot, token)
        self._finalizer.atexit = False  # the servers end by themselves then

    def ready(self) -> None:
        """Wait until the server can be called; starts it again where it has stopped.  Raises ToolBackendError."""
        starting, self._starting = self._starting, None
        if starting is None and (self._session is None or self._session.lost):
            starting = self._servers.submit(self._slot.live())
        if starting is not None:
            session = self._servers.wait(starting)
            if self._session is None:
                self._session, self._seen = session, session.changes
                self._take(self._slot.listed)

    def changes(self) -> Sequence[Tool] | None:
        """The tools, where they are not those of the last time.  Raises ToolBackendError."""
        if self._failure is not None:
            raise self._failure
        changed, self._changed = self._changed, False
        return self._tools if changed else None

    def close(self) -> None:
        """The episode is over."""
        self._finalizer()

    async def call(self, tool: str, /, **arguments: Any) -> ToolResult:
        """Answer a call; awaited by the executor, on its loop."""
        return await self._servers.call(self._call(tool, arguments))

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        own = self._listed.names.get(name)
        if own is None:  # a call of the turn before this one has changed the tools
            return error_result(CallStatus.TOOL_ERROR, f"the server does not offer {name} any more")
        try:
            session = await self._slot.live()
        except ToolBackendError as error:
            self._failure = error
            return error_result(CallStatus.TOOL_ERROR, "the server of this tool cannot be reached")
        result = await session.call(own, arguments)
        if session is not self._session:
            self._seen = 0
            if not self._told and result.error is None:
                result = replace(result, content=f"{result.content}\n{NEW_SERVER}")
        self._session, self._told = session, bool(session.lost)
        if session.changes != self._seen and not session.lost:
            await self._look_again(session)
        return result

    async def _look_again(self, session: Session) -> None:
        self._seen = session.changes
        try:
            self._slot.listed = self._servers.listed(await session.relist())
        except Exception as error:
            log.info("%s: its new tools cannot be used: %s", self._servers.spec.who, error)
        else:
            self._take(self._slot.listed)

    def _take(self, listed: ListedTools | None) -> None:
        if listed is not None and not listed.same_as(self._listed):
            self._listed, self._changed = listed, True
            self._tools = self._bound()

    def _bound(self) -> list[Tool]:
        timeout = self._servers.spec.call_timeout
        return [
            # A partial of a method of this object: that is how the executor knows which calls belong together.
            replace(tool, function=functools.partial(self.call, tool.name), timeout=timeout)
            for tool in self._listed.tools
        ]
