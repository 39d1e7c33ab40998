"""`MCP`: the tools of a server, for any number of episodes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.mcp.spec import Scope, ServerSpec
from toolstep.envs.tools.tool import Tool


class MCP(ToolFactory):
    """The tools of a Model Context Protocol server (needs the extra `mcp`).

    >>> ToolUseEnv(tasks, tools=MCP("python -m my_server"))
    >>> ToolUseEnv(tasks, tools=[MCP("https://host.example/mcp", headers={"Authorization": "Bearer ..."}), my_function])

    server: a command (a string, split as a shell would, or a list of arguments; no shell runs it), the `http(s)://`
        address of a streamable HTTP server, or a function that makes a server of the Python SDK, which then runs in
        this process.
    scope: "episode": each episode has a server of its own, so that nothing that it remembers reaches another.  "kept":
        a server that an episode has used serves the next one, for servers that start slowly and remember nothing.
        "shared": one for all rows; then what one row does, others may see.  (Of an HTTP server these are sessions; what
        it shares between sessions is its own affair.)
    tools: names of the tools on offer; None: all that the server lists.  prefix: put before each name.
    env: environment variables of the command beside PATH, HOME, LOGNAME, SHELL, TERM and USER; nothing else is passed
        on.  cwd: its working directory.  headers: of HTTP requests.  `{folder}` in the command or in a value of `env`
        stands for an empty folder that this server alone is given, and that goes with it: what a server keeps in files
        would outlive it otherwise.
    start_timeout: seconds until a server has answered and listed its tools.  call_timeout: seconds a call may take;
        None: the env's `tool_timeout`.  stop_timeout: seconds a server has to end by itself when it is not needed any
        more; then it and all that it started are killed.

    The first server is started when the env is made, the others when their episodes begin; their tools are called when
    they are ready.  The calls of one turn run one after the other, in the order in which they were made.  A server that
    stops is started again for the next call; one that then does not start ends the episode with status "env_error".
    What servers write to stderr goes to the log "toolstep.mcp".

    Raises ValueError for what cannot work.
    """

    external: ClassVar[bool] = True

    def __init__(
        self,
        server: Any,
        *,
        scope: Scope = "episode",
        tools: Collection[str] | None = None,
        prefix: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        start_timeout: float = 60.0,
        call_timeout: float | None = None,
        stop_timeout: float = 2.0,
    ) -> None:
        self.spec = ServerSpec(
            server, scope, tools, prefix, env, cwd, headers, start_timeout, call_timeout, stop_timeout
        )
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._servers: Any = None

    def open(self) -> None:
        """Start the first server, so that what is wrong with it is known at once.

        Raises ToolBackendError where it does not start, ImportError without the extra.
        """
        self._running().open()

    def make(self, episode: EpisodeInfo) -> Sequence[Tool]:
        """The tools of an episode; a server for it starts in the background."""
        tools: Sequence[Tool] = self._running().lease()
        return tools

    def close(self) -> None:
        """End the servers that no episode uses; returns when they are gone."""
        if self._servers is not None:
            self._servers.close()

    def _running(self) -> Any:
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise ImportError("MCP servers need the SDK: pip install 'toolstep[mcp]'") from error
        from toolstep.envs.tools.mcp.servers import Servers

        with self._lock:
            if self._servers is None or self._servers.process_id != os.getpid():  # a forked child begins anew
                self._servers = Servers(self.spec)
                weakref.finalize(self, Servers.abandon, self._servers)
            return self._servers

    def __getstate__(self) -> ServerSpec:
        return self.spec

    def __setstate__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._begin()

    def __repr__(self) -> str:
        return f"MCP({self.spec.who})"
