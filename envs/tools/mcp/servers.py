"""The servers of one `MCP`: started, lent to episodes, and ended, on a loop and a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from toolstep.envs.tools.errors import ToolBackendError
from toolstep.envs.tools.loop_thread import LoopThread
from toolstep.envs.tools.mcp.listing import ListedTools
from toolstep.envs.tools.mcp.process import ServerProcess
from toolstep.envs.tools.mcp.session import Session
from toolstep.envs.tools.mcp.spec import ServerSpec

if TYPE_CHECKING:
    from mcp.types import Tool as ListedTool

    from toolstep.envs.tools.mcp.episode import EpisodeTools

SLACK = 5.0  # seconds that the loop itself may be behind
END_PATIENCE = 0.5  # seconds that a garbage collection or the end of the interpreter may be held up
MAX_THREADS = 256  # of servers in this process: as many as the executor has
MAX_LISTINGS = 16  # kept: servers list the same tools again and again, and a listing costs milliseconds
T = TypeVar("T")

log = logging.getLogger("toolstep.mcp")


class Slot:
    """A place for one session; what is lost there is replaced.  Episodes and `Servers` hold it, its session does not.

    listed: the tools that its session, or the last one, had.
    """

    def __init__(self, servers: Servers) -> None:
        self.users: set[object] = set()  # a token for each episode
        self.listed: ListedTools | None = None
        self.session: Session | None = None
        self._servers = servers
        self._listed_by: Session | None = None

    async def live(self) -> Session:
        """Its session when it is ready; a new one where there is none, or the old one is lost.  ToolBackendError."""
        session = self.session
        if session is None or session.lost:
            if session is not None:
                log.info("%s %s; it is started again", self._servers.spec.who, session.lost)
                self._servers.end(session)
            session = self.session = self._servers.start()
        # Several episodes may wait for one session: what ends the wait of one must not reach the others.
        tools = await asyncio.shield(session.ready)
        if self._listed_by is not session:
            self.listed = self._servers.listed(tools)
            self._listed_by = session
        return session


class Servers:
    """All servers of one `MCP`.

    `take_back` and `abandon` may be called by a garbage collection, in any thread, this object's own included: they
    wait for nothing and take no lock.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.process_id = os.getpid()
        self._lock = threading.Lock()  # one thread at a time starts the first server, lends one, or closes
        self._thread: LoopThread | None = None
        self._known: ListedTools | None = None  # what the first server has listed
        self._idle: list[Slot] = []  # ready for the next episode
        self._shared: Slot | None = None
        self._sessions: set[Session] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._processes: set[ServerProcess] = set()
        self._listings: dict[str, ListedTools] = {}

    # ------------------------------------------------------------------------------------------- from outside the loop
    def open(self) -> None:
        """Start the first server, where none was yet.  Raises ToolBackendError."""
        with self._lock:
            self._open()

    def _open(self) -> ListedTools:
        if self._known is None:
            slot = Slot(self)
            self.wait(self.submit(slot.live()))
            self._known = slot.listed
            if self.spec.scope == "shared":
                self._shared = slot
            else:
                self._idle.append(slot)
        assert self._known is not None
        return self._known

    def lease(self) -> EpisodeTools:
        """The tools of one episode, and a server for it, which may still be starting.  Raises ToolBackendError."""
        from toolstep.envs.tools.mcp.episode import EpisodeTools

        with self._lock:
            known = self._open()
            if self.spec.scope == "shared":
                slot = self._shared = self._shared or Slot(self)
            else:
                slot = self._idle.pop() if self._idle else Slot(self)
            token = object()
            slot.users.add(token)
            return EpisodeTools(self, slot, token, slot.listed or known, self.submit(slot.live()))

    def take_back(self, slot: Slot, token: object) -> None:
        """An episode is over."""
        slot.users.discard(token)
        if self.spec.scope == "kept":
            self._idle.append(slot)
        elif self.spec.scope == "episode":
            self._post(self._end_slot(slot))

    def close(self) -> None:
        """End the servers that no episode uses, wait until they are gone, and end the thread with the last of them."""
        with self._lock:
            idle, self._idle = self._idle, []
            if self._shared is not None and not self._shared.users:
                idle, self._shared = [*idle, self._shared], None
            if self._thread is None:
                return
            for slot in idle:
                self._post(self._end_slot(slot))
            try:
                with contextlib.suppress(TimeoutError):
                    self.submit(self._ended()).result(self.spec.stop_timeout + SLACK)
            finally:
                if not self._sessions:
                    self.abandon(SLACK)

    def abandon(self, patience: float = END_PATIENCE) -> None:
        """Kill everything at once: what nobody has closed, or all, when the interpreter ends."""
        if os.getpid() != self.process_id:  # a forked child has copies of the objects, but the servers are not its own
            return
        for process in list(self._processes):
            process.kill()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(patience)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        if self._thread is None:
            self._thread = LoopThread("toolstep-mcp", _more_threads)
        return self._thread.submit(coroutine)

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine of the loop in another one."""
        return await asyncio.wrap_future(self.submit(coroutine))

    def wait(self, started: Future[T]) -> T:
        """The result of what starts a server, or ToolBackendError."""
        try:
            return started.result(self.spec.start_timeout + self.spec.stop_timeout + SLACK)
        except TimeoutError:
            raise ToolBackendError(f"{self.spec.who}: the loop that serves it is blocked") from None

    def _post(self, coroutine: Coroutine[Any, Any, None]) -> None:
        thread = self._thread
        if thread is None:
            coroutine.close()
            return
        with contextlib.suppress(RuntimeError):  # the thread has ended, and its servers with it
            thread.submit(coroutine)

    # --------------------------------------------------------------------------------------------------- in the loop
    def start(self) -> Session:
        session = Session(self.spec, self._note)
        self._sessions.add(session)
        return session

    def end(self, session: Session) -> None:
        """Begin to end a session."""
        self._sessions.discard(session)
        task = session.close()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_slot(self, slot: Slot) -> None:
        if slot.session is not None:
            self.end(slot.session)
            slot.session = None

    async def _ended(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending)

    def listed(self, tools: list[ListedTool]) -> ListedTools:
        """Raises ToolBackendError where a tool cannot be used."""
        key = json.dumps([tool.model_dump(mode="json") for tool in tools])
        if key not in self._listings:
            if len(self._listings) >= MAX_LISTINGS:
                self._listings.clear()
            spec = self.spec
            self._listings[key] = ListedTools(tools, wanted=spec.tools, prefix=spec.prefix, who=spec.who)
        return self._listings[key]

    def _note(self, process: ServerProcess, runs: bool) -> None:
        (self._processes.add if runs else self._processes.discard)(process)


async def _more_threads() -> None:
    import anyio.to_thread

    anyio.to_thread.current_default_thread_limiter().total_tokens = MAX_THREADS
