"""One session with one server: started, used and ended in one task of one loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from toolstep.envs.tools.encode import describe_exception, shorten
from toolstep.envs.tools.errors import ToolBackendError
from toolstep.envs.tools.mcp.content import result_of
from toolstep.envs.tools.mcp.process import POLL, ServerProcess, how_it_ended
from toolstep.envs.tools.result import error_result
from toolstep.envs.types import CallStatus, ToolResult

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool as ListedTool

    from toolstep.envs.tools.mcp.spec import ServerSpec

MAX_PAGES = 100  # of a listing of tools
SIGN_OF_LIFE = 10.0  # seconds that a server has to answer anything at all, once a call of it timed out

for _name in ("mcp", "client"):  # the SDK's loggers; without a handler Python writes their warnings to stderr
    logging.getLogger(_name).addHandler(logging.NullHandler())


class Session:
    """A server's process or connection, from `start` until it is closed or lost.  To be used in its loop only.

    ready: the listed tools, or ToolBackendError where it could not be started in `spec.start_timeout` seconds.
    lost: "" as long as it can be used; then why it cannot.
    changes: how often the server said that its tools have changed; `relist` gets the new ones.
    """

    def __init__(self, spec: ServerSpec, on_process: Callable[[ServerProcess, bool], None]) -> None:
        self._spec = spec
        self._on_process = on_process  # told of the process when it starts (True) and when it is gone (False)
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[list[ListedTool]] = self._loop.create_future()
        self.ready.add_done_callback(_retrieve)
        self.lost = ""
        self.changes = 0
        self._polite = False  # it is ended in peace: it gets the time to end by itself
        self._stop = asyncio.Event()
        self._client: Client | None = None
        self._process: ServerProcess | None = None
        self._answered = 0.0  # when it last answered a call, of time.monotonic()
        self._probe: asyncio.Task[None] | None = None
        self._task = self._loop.create_task(self._live())

    def close(self) -> asyncio.Task[None]:
        """Begin to end it; returns the task that is done when nothing of it is left."""
        self._polite = True
        self._lose("was closed")
        return self._task

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """The answer to a call by the server's own name of the tool.  Raises only CancelledError."""
        assert self._client is not None
        try:
            answer = await self._client.call_tool(name, arguments)
        except asyncio.CancelledError:
            if not self.lost and self._probe is None:
                self._probe = self._loop.create_task(self._look_for_life())
            raise
        except BaseException as error:
            return error_result(CallStatus.TOOL_ERROR, self._failed_call(error))
        self._answered = time.monotonic()
        return result_of(answer)

    async def relist(self) -> list[ListedTool]:
        """All tools of the server, page by page."""
        assert self._client is not None
        tools: list[ListedTool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="bypass")
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                return tools
        raise ValueError(f"its list of tools has more than {MAX_PAGES} pages")

    # ------------------------------------------------------------------ life
    async def _live(self) -> None:
        stack = AsyncExitStack()
        try:
            async with asyncio.timeout(self._spec.start_timeout):
                client = await self._connect(stack)
                self._client = client
                tools = await self.relist()
                await self._subscribe(client, stack)
            self.ready.set_result(tools)
            await self._stop.wait()
        except BaseException as error:
            self._lose(self._why(error))
        finally:
            self._lose("was closed")
            await self._end(stack)

    async def _connect(self, stack: AsyncExitStack) -> Client:
        from mcp import Client

        target = await self._spec.connect(stack, self._started, lambda: self._spec.stop_timeout * self._polite)
        return await stack.enter_async_context(Client(target, message_handler=self._hear))

    def _started(self, process: ServerProcess) -> Callable[[str], None]:
        self._process = process
        self._on_process(process, True)
        return self._lose

    async def _subscribe(self, client: Client, stack: AsyncExitStack) -> None:
        """Ask to be told when the tools change; servers of older protocols tell it unasked."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        tools = client.server_capabilities.tools
        if tools is not None and tools.list_changed and client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            with contextlib.suppress(Exception):  # a server that says it can and then cannot
                await stack.enter_async_context(client.listen(tools_list_changed=True))

    async def _hear(self, message: Any) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.changes += 1

    async def _look_for_life(self) -> None:
        """End a server that answers nothing any more: what it works on was to be stopped."""
        since = time.monotonic()
        try:
            async with asyncio.timeout(SIGN_OF_LIFE):
                await self.relist()
        except (Exception, asyncio.CancelledError):
            if self._answered < since:
                self._lose(f"did not answer anything for {SIGN_OF_LIFE:g} s, and was stopped")
        finally:
            self._probe = None

    def _lose(self, reason: str) -> None:
        if not self.lost:
            self.lost = reason
        self._stop.set()

    async def _end(self, stack: AsyncExitStack) -> None:
        """Leave everything that was entered, in bounded time, and let no process stay."""
        if self._process is not None and self.lost == "ended":
            # A process that exits closes its pipes a moment before it can be reaped: let it have its own exit code.
            until = time.monotonic() + 0.2
            while not self._process.ended() and time.monotonic() < until:
                await asyncio.sleep(POLL)
        with contextlib.suppress(BaseException):
            async with asyncio.timeout(self._spec.stop_timeout * self._polite + 2.0):
                await stack.aclose()
        process, code = self._process, None
        if process is not None:
            code = process.reap()
            self._on_process(process, False)
            if self.lost == "ended":
                self.lost = f"ended with {how_it_ended(code)}"
        if not self.ready.done():
            words = process.last_words() if process is not None else ""
            told = f"; its last words: {words}" if words else ""
            self.ready.set_exception(ToolBackendError(f"{self._spec.who} could not be started: {self.lost}{told}"))

    # --------------------------------------------------------------- failures
    def _why(self, error: BaseException) -> str:
        from pydantic import ValidationError

        error = _innermost(error)
        if isinstance(error, TimeoutError):
            return f"it did not get ready within {self._spec.start_timeout:g} s"
        if isinstance(error, FileNotFoundError):
            return f"there is no program {error.filename!r}"
        if isinstance(error, ToolBackendError):
            return str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            return f"it does not follow the protocol: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        return describe_exception(error)

    def _failed_call(self, error: BaseException) -> str:
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED
        from pydantic import ValidationError

        error = _innermost(error)
        if isinstance(error, MCPError) and error.code != CONNECTION_CLOSED:
            return error.message or f"the server refused the call with code {error.code}"
        if isinstance(error, MCPError) or self.lost:
            self._lose("closed the connection")
            return (
                "the server of this tool stopped during the call; a new one takes its place, and what the old one kept "
                "in memory is gone"
            )
        if isinstance(error, ValidationError):  # its words are of the SDK's classes
            return "the server's answer does not follow the protocol"
        return f"the server's answer cannot be used: {shorten(str(error).partition(chr(10))[0])}"


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # nobody may come to ask; asyncio would complain
