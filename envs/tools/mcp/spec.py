"""Which server, and how it is reached."""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import urlsplit

from toolstep.envs.tools.errors import ToolBackendError

if TYPE_CHECKING:
    from toolstep.envs.tools.mcp.process import ServerProcess

FOLDER = "{folder}"
Scope = Literal["episode", "kept", "shared"]


@dataclass(frozen=True, eq=False)
class ServerSpec:
    """What `MCP` was told, checked; its fields are explained there.  It holds nothing that is running."""

    server: Any
    scope: Scope = "episode"
    tools: Collection[str] | None = None
    prefix: str = ""
    env: Mapping[str, str] | None = None
    cwd: str | Path | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    start_timeout: float = 60.0
    call_timeout: float | None = None
    stop_timeout: float = 2.0

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"MCP: scope must be one of {get_args(Scope)}, got {self.scope!r}")
        if isinstance(self.tools, str):
            raise ValueError(f"MCP: tools must be a list of names, got the text {self.tools!r}")
        for name in ("start_timeout", "call_timeout", "stop_timeout"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"MCP: {name} must be a finite number of seconds > 0, got {value!r}")
        if self.command is not None and not self.command:
            raise ValueError("MCP: the command of the server is empty")
        if self.command is None and self.address is None and not callable(self.server) and not self._is_server():
            raise ValueError(
                "MCP: server must be a command, an http(s):// address or a function that makes a server of the "
                f"Python SDK, got {self.server!r:.200}"
            )
        if self._is_server() and self.scope != "shared":
            raise ValueError(
                "MCP: one server object would be shared by all rows and episodes; pass a function that makes a server, "
                'or scope="shared" if that is what you want'
            )

    @property
    def address(self) -> str | None:
        """The address of an HTTP server; None for others."""
        found = isinstance(self.server, str) and self.server.lower().startswith(("http://", "https://"))
        return self.server if found else None

    @property
    def command(self) -> list[str] | None:
        """The arguments of the command; None where the server is reached in another way."""
        if isinstance(self.server, str) and self.address is None:
            return shlex.split(self.server)
        if isinstance(self.server, Sequence) and not isinstance(self.server, str | bytes):
            return [str(part) for part in self.server]
        return None

    @property
    def who(self) -> str:
        """The server's name in error messages."""
        if self.address is not None:
            parts = urlsplit(self.address)  # without a password and a query, which may be a secret
            return f"MCP server '{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}'"
        if self.command is not None:
            return f"MCP server {shlex.join(self.command)!r}"
        made_by = getattr(self.server, "__qualname__", None) or getattr(self.server, "name", None)
        return f"MCP server {made_by or type(self.server).__name__!r}"

    async def connect(
        self,
        stack: AsyncExitStack,
        started: Callable[[ServerProcess], Callable[[str], None]],
        grace: Callable[[], float],
    ) -> Any:
        """What the SDK's `Client` takes.  `started` is told of a process and gives whom to tell that it is lost."""
        if self.address is not None:
            import httpx2
            from mcp.client.streamable_http import streamable_http_client

            from toolstep.envs.tools.mcp.stdio import MAX_MESSAGE

            # The deadlines of calls are the executor's; a read may last as long as a call.
            timeout = httpx2.Timeout(self.start_timeout, read=None)
            client = httpx2.AsyncClient(headers=dict(self.headers or {}), timeout=timeout)
            await stack.enter_async_context(client)
            return streamable_http_client(self.address, http_client=client, max_sse_event_size=MAX_MESSAGE)
        if self.command is not None:
            from mcp.client.stdio import get_default_environment

            from toolstep.envs.tools.mcp.process import ServerProcess
            from toolstep.envs.tools.mcp.stdio import stdio_streams

            if self.cwd is not None and not Path(self.cwd).is_dir():
                raise ToolBackendError(f"its working directory {str(self.cwd)!r} is not there")
            command, env = self.command, dict(self.env or {})
            if any(FOLDER in text for text in (*command, *env.values())):
                folder = stack.enter_context(TemporaryDirectory(prefix="toolstep-mcp-", ignore_cleanup_errors=True))
                command = [part.replace(FOLDER, folder) for part in command]
                env = {name: value.replace(FOLDER, folder) for name, value in env.items()}
            process = ServerProcess(command, env={**get_default_environment(), **env}, cwd=self.cwd)
            return stdio_streams(process, grace=grace, lost=started(process))
        return self.server if self._is_server() else _make_quietly(self.server)

    def _is_server(self) -> bool:
        # Told by its class, so that the SDK is not imported for a description.
        return any(base.__module__.startswith("mcp.server") for base in type(self.server).__mro__)


def _make_quietly(make: Callable[[], Any]) -> Any:
    """A server of the SDK sets up the logging of the whole program when it is made; that is not its place here."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        return make()
    finally:
        root.setLevel(level)
        for handler in [h for h in root.handlers if h not in handlers]:
            root.removeHandler(handler)
