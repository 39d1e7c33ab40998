"""The calls of a whole vector step, all at once, each under its own deadline; or turn by turn, without waiting."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

from toolstep.envs.tools.dispatch import Dispatcher
from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.jobs import Batch, Done, Job, timed
from toolstep.envs.tools.owner import owner_of
from toolstep.envs.tools.result import error_result, to_result
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import CallStatus, ToolResult


class Executor:
    """Runs tool calls.  Nothing is started before it is needed, and `close` leaves nothing behind.

    num_threads: how many "thread" tools run at once (at most 256).
    num_processes: how many "process" tools run at once; None: as many as the machine has cores, 4 at least,
        and not more than num_threads.
    max_abandoned: how many threads may be left behind by tools that overran; beyond it every call to a
        "thread" tool fails at once with `tool_error`, until some of them have ended.

    How long a step can take: a call that waits for a free thread or process starts its clock when it starts.  So a step
    of n thread calls takes at most ceil(n / num_threads) x timeout; the same holds for processes, plus their start.
    Calls to tools of one object that may remember something (`owner_of`) run in their order, one after the other.
    "inline" tools run in the caller and have no deadline, because nothing can stop them.

    One executor may be used from several threads; their calls share the room, first come, first served.  After a fork
    the child starts anew.
    """

    def __init__(self, num_threads: int, *, num_processes: int | None = None, max_abandoned: int = 64) -> None:
        for name, value in (("num_threads", num_threads), ("num_processes", num_processes)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"Executor: {name} must be an integer >= 1, got {value!r}")
        self.num_threads = min(256, num_threads)
        self.num_processes = num_processes or min(self.num_threads, max(4, os.cpu_count() or 1))
        self._max_abandoned = max_abandoned
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._process_id = os.getpid()
        self._dispatcher = Dispatcher(self.num_threads, self.num_processes, self._max_abandoned)
        self._finalizer = weakref.finalize(self, _close, self._dispatcher, self._process_id)

    @property
    def abandoned_threads(self) -> int:
        """Threads that tools past their deadline still occupy."""
        return self._dispatcher.abandoned()

    def run(self, calls: Sequence[BoundCall], *, timeout: float) -> list[ToolResult]:
        """Result i answers call i, whatever finishes first.

        Each call has min(tool.timeout, timeout) seconds from its start; one that overruns answers TOOL_TIMEOUT, and
        everything else that goes wrong in it TOOL_ERROR.  Never raises for what a tool does.  Ctrl-C while waiting
        raises KeyboardInterrupt after every call has been stopped; the executor can be used again.
        """
        batch = self._batch(calls, timeout, "run")
        try:
            self._begin(batch, watched=True)
            self._dispatcher.drive(batch)
        except BaseException:
            self._dispatcher.cancel(batch, "was cancelled")
            raise
        return batch.results()

    def start(self, calls: Sequence[BoundCall], *, timeout: float, done: Done) -> Batch:
        """Begin the calls of a turn and return; `done(results)` is called exactly once when all have answered.

        Results and deadlines are those of `run`.  "inline" calls run here and now.  Where nothing else is left by then,
        `done` is called before this returns, by the caller's thread, and what it raises is raised here.  Otherwise it
        is called by a thread of the executor, which watches the deadlines too: it should be quick.  What it raises
        there is raised, chained, by the next `start`, `run` or `close`.

        Where this raises by itself (a closed executor, Ctrl-C in an inline tool) `done` is never called.
        Returns what `cancel` takes.
        """
        batch = self._batch(calls, timeout, "start")
        try:
            self._begin(batch, watched=False)
            with batch.board.wake:
                if batch.left:
                    batch.done = done
                    return batch
        except BaseException:
            self._dispatcher.cancel(batch, "was cancelled")
            raise
        done(batch.results())
        return batch

    def cancel(self, batch: Batch) -> None:
        """Stop the calls of a started turn as at their deadlines.

        Those without a result answer TOOL_ERROR; `done` is called as always.  A turn that is complete stays as it is.
        """
        if batch.board is self._dispatcher.board:
            self._dispatcher.cancel(batch, "was cancelled")

    def _batch(self, calls: Sequence[BoundCall], timeout: float, method: str) -> Batch:
        if not timeout > 0 or not math.isfinite(timeout):
            raise ValueError(f"Executor.{method}: timeout must be a finite number of seconds > 0, got {timeout!r}")
        if os.getpid() != self._process_id:
            self._finalizer.detach()
            self._reset()
        if self._closed:
            raise RuntimeError(f"Executor.{method}: the executor is closed")
        self._raise_failures()
        batch = Batch(self._dispatcher.board)
        last: dict[int, Job] = {}  # of each object that remembers something
        for call in calls:
            owner = owner_of(call.tool)
            limit = min(call.tool.timeout or timeout, timeout)
            job = Job(call.tool, call.arguments, limit, batch, last.get(id(owner)) if owner is not None else None)
            if owner is not None:
                last[id(owner)] = job
        return batch

    def _begin(self, batch: Batch, *, watched: bool) -> None:
        self._dispatcher.submit(batch, watched=watched)
        inline = [job for job in batch.jobs if job.lane == "inline"]
        if inline:
            with _Interrupts() as interrupts:
                for job in inline:
                    job.finish(_run_inline(job, interrupts))

    def _raise_failures(self) -> None:
        failures = self._dispatcher.failures
        if failures:
            found = [failures.pop(0) for _ in range(len(failures))]
            first = f"{type(found[0]).__name__}: {found[0]}"
            cause = found[0] if len(found) == 1 else BaseExceptionGroup("raised by `done`", found)
            raise RuntimeError(f"Executor: `done` of {len(found)} started turn(s) failed, first: {first}") from cause

    def close(self) -> None:
        """Stop all threads, the event loop and all processes; may be called again.  Takes at most a few seconds.

        Calls under way answer TOOL_ERROR, and `done` of their turns has been called when this returns.  A thread whose
        tool still hangs cannot be ended; it is a daemon and never keeps the interpreter from exiting.
        """
        self._closed = True
        self._finalizer()
        self._raise_failures()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(dispatcher: Dispatcher, process_id: int) -> None:
    if os.getpid() == process_id:  # a forked child has copies of the objects, but not of the threads
        dispatcher.close()


class _Interrupts:
    """Tells a Ctrl-C of the user from a KeyboardInterrupt that an inline tool raises by itself."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                self._before = before
                signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.seen = True
        handler: Callable[[int, FrameType | None], Any] = self._before
        handler(number, frame)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def _run_inline(job: Job, interrupts: _Interrupts) -> ToolResult:
    began = time.perf_counter()
    try:
        result = to_result(job.tool.call(**job.arguments))
    except BaseException as error:
        if interrupts.seen and isinstance(error, KeyboardInterrupt):
            raise
        result = error_result(CallStatus.TOOL_ERROR, describe_exception(error))
    return timed(result, began)
