"""Coroutine tools on one event loop of our own, on one thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.jobs import Job, timed
from toolstep.envs.tools.result import error_result, to_result
from toolstep.envs.types import CallStatus

CANCELS = 20  # how often a task that swallows its cancellation is cancelled again
AGAIN = 0.1  # seconds between two of them


class LoopLane:
    """Every coroutine tool starts at once; at its deadline its task is cancelled.

    A tool that blocks the loop itself (`time.sleep` in a coroutine) cannot be cancelled: the calls that run beside it
    run into their deadlines as well.  Then the loop is left behind, its thread counts as abandoned, and calls that it
    had no time to begin begin on a new one, with their whole time.
    """

    PATIENCE = 0.2  # seconds that a loop may take to answer before it counts as blocked

    def __init__(self) -> None:
        self._host: _Host | None = None
        self._abandoned: list[_Host] = []

    def room(self) -> bool:
        return True

    def start(self, job: Job) -> None:
        job.begin()
        if self._host is None:
            self._host = _Host()
        self._host.waiting[job] = None
        self._host.post(self._host.launch, job)

    def stop(self, job: Job) -> None:
        for host in (self._host, *self._abandoned):
            if host is not None:
                host.post(host.cancel, job, CANCELS)

    def settle(self) -> None:
        """Leave a loop behind that does not answer."""
        host = self._host
        if host is not None and not host.answers(self.PATIENCE):
            host.retire()
            self._abandoned.append(host)
            self._host = None
            for job in list(host.waiting):
                if host.take(job) and job.result is None:
                    self.start(job)

    def abandoned(self) -> int:
        self._abandoned = [host for host in self._abandoned if host.thread.is_alive()]
        return len(self._abandoned)

    def close(self, patience: float) -> None:
        host, self._host = self._host, None
        if host is not None:
            host.retire()
            host.thread.join(patience)
            if host.thread.is_alive():
                self._abandoned.append(host)


class _Host:
    """One event loop, its thread and its tasks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[Job, asyncio.Task[None]] = {}
        self.waiting: dict[Job, None] = {}  # started, but the loop has not come round to them yet
        self._retired = False
        self.thread = threading.Thread(target=self._main, name="toolstep-loop", daemon=True)
        self.thread.start()

    def post(self, function: Any, *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing to start or to stop
            self._loop.call_soon_threadsafe(function, *args)

    def answers(self, patience: float) -> bool:
        answered = threading.Event()
        self.post(answered.set)
        return answered.wait(patience)

    def retire(self) -> None:
        """Cancel everything and end the thread, as soon as the loop comes round to it."""
        self._retired = True
        self.post(self._loop.stop)

    def take(self, job: Job) -> bool:
        """Whether a waiting job is the caller's from now on; true for exactly one of them."""
        return self.waiting.pop(job, job) is None

    def launch(self, job: Job) -> None:
        if self.take(job):
            self._tasks[job] = self._loop.create_task(self._run(job))

    def cancel(self, job: Job, tries: int) -> None:
        task = self._tasks.get(job)
        if task is not None and not task.done():
            task.cancel()
            if tries > 1:
                self._loop.call_later(AGAIN, self.cancel, job, tries - 1)

    async def _run(self, job: Job) -> None:
        began = time.perf_counter()
        # SystemExit and KeyboardInterrupt would end the loop; here they end with the tool that raised them.
        try:
            value = job.tool.call(**job.arguments)
            result = to_result(await value)
        except BaseException as error:
            result = error_result(CallStatus.TOOL_ERROR, describe_exception(error))
        self._tasks.pop(job, None)
        job.finish(timed(result, began))

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_default_executor(_DaemonThreads(max_workers=1))
        try:
            while not self._retired:
                # A background task of a tool may raise SystemExit through the loop.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()
            self._finish(asyncio.all_tasks(self._loop))
        finally:
            with contextlib.suppress(Exception):
                self._loop.close()

    def _finish(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            self._quietly(asyncio.wait(tasks, timeout=0.5))
        self._quietly(self._loop.shutdown_asyncgens())

    def _quietly(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(BaseException):
            self._loop.run_until_complete(coroutine)
        coroutine.close()


class _DaemonThreads(ThreadPoolExecutor):
    """What `asyncio.to_thread` runs on: a daemon thread for each call.

    asyncio's own pool has few threads, so that calls would queue, and the interpreter waits for them when it exits.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        call = functools.partial(fn, *args, **kwargs)
        threading.Thread(target=_settle, args=(future, call), name="toolstep-to-thread", daemon=True).start()
        return future


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:
        future.set_exception(error)
