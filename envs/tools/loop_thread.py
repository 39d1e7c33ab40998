"""An event loop on a thread of its own, for tools whose connections outlive a call and an executor's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("toolstep.tools")


class LoopThread:
    """A daemon thread that runs an event loop from `start` to `close`.

    at_start: awaited in the loop before anything else.
    """

    def __init__(self, name: str, at_start: Callable[[], Awaitable[None]] | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        # What a connection leaves behind is for the log; asyncio would write it to stderr.
        self.loop.set_exception_handler(lambda _, context: log.debug("%s", context.get("message"), exc_info=True))
        self._at_start = at_start
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop, from any thread.  Raises RuntimeError after `close`."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:
            coroutine.close()
            raise

    def stop(self) -> None:
        """End the thread as soon as the loop comes round to it; from any thread, without waiting."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self.loop.call_soon_threadsafe(self._stop.set)

    def close(self, patience: float) -> bool:
        """`stop`, and wait for it; False where a tool blocks the loop.  (Nothing can end such a thread.)"""
        self.stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(patience)
        return not self._thread.is_alive()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        # One task from beginning to end: threads that anyio starts in this loop end with it.
        main = self.loop.create_task(self._until_stopped())
        try:
            while not main.done():
                # A tool in some task of the loop may raise SystemExit through it.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self.loop.run_until_complete(main)
        finally:
            with contextlib.suppress(Exception):
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            with contextlib.suppress(Exception):
                self.loop.close()

    async def _until_stopped(self) -> None:
        if self._at_start is not None:
            await self._at_start()
        await self._stop.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
