"""The calls of a whole vector step, all at once, each under its own deadline."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, Protocol

from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.jobs import Batch, Job, timed
from toolstep.envs.tools.result import error_result, to_result
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import CallStatus, ToolResult

LONGEST_NAP = 0.5  # seconds; on Windows a wait cannot be interrupted before it ends
CLOSE_PATIENCE = 2.0  # seconds


class Lane(Protocol):
    """Where jobs run.  None of these blocks for long; all are called by the thread that runs the step."""

    def room(self) -> bool: ...
    def start(self, job: Job) -> None: ...
    def stop(self, job: Job) -> None: ...
    def settle(self) -> None: ...
    def abandoned(self) -> int: ...
    def close(self, patience: float) -> None: ...


class Executor:
    """Runs tool calls.  Nothing is started before it is needed, and `close` leaves nothing behind.

    num_threads: how many "thread" tools run at once (at most 256).
    num_processes: how many "process" tools run at once; None: as many as the machine has cores, 4 at least,
        and not more than num_threads.
    max_abandoned: how many threads may be left behind by tools that overran; beyond it every call to a
        "thread" tool fails at once with `tool_error`, until some of them have ended.

    How long a step can take: a call that waits for a free thread or process starts its clock when it starts.
    So a step of n thread calls takes at most ceil(n / num_threads) x timeout; the same holds for processes,
    plus their start.  "inline" tools run in the caller and have no deadline, because nothing can stop them.

    One executor may be used from several threads; they take turns.  After a fork the child starts anew.
    """

    def __init__(self, num_threads: int, *, num_processes: int | None = None, max_abandoned: int = 64) -> None:
        for name, value in (("num_threads", num_threads), ("num_processes", num_processes)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"Executor: {name} must be an integer >= 1, got {value!r}")
        self._num_threads = min(256, num_threads)
        self._num_processes = num_processes or min(self._num_threads, max(4, os.cpu_count() or 1))
        self._max_abandoned = max_abandoned
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._process_id = os.getpid()
        self._turn = threading.RLock()
        self._wake = threading.Condition()
        self._lanes: dict[str, Lane] = {}
        self._finalizer = weakref.finalize(self, _close_lanes, self._lanes, self._process_id)

    @property
    def abandoned_threads(self) -> int:
        """Threads that tools past their deadline still occupy."""
        return sum(lane.abandoned() for lane in self._lanes.values())

    def run(self, calls: Sequence[BoundCall], *, timeout: float) -> list[ToolResult]:
        """Result i answers call i, whatever finishes first.

        Each call has min(tool.timeout, timeout) seconds from its start; one that overruns answers
        TOOL_TIMEOUT, and everything else that goes wrong in it TOOL_ERROR.  Never raises for what a tool
        does.  Ctrl-C while waiting raises KeyboardInterrupt after every call has been stopped; the executor
        can be used again.
        """
        if not timeout > 0 or not math.isfinite(timeout):
            raise ValueError(f"Executor.run: timeout must be a finite number of seconds > 0, got {timeout!r}")
        if os.getpid() != self._process_id:
            self._finalizer.detach()
            self._reset()
        if self._closed:
            raise RuntimeError("Executor.run: the executor is closed")
        with self._turn:
            batch = Batch(self._wake)
            jobs = [Job(c.tool, c.arguments, min(c.tool.timeout or timeout, timeout), batch) for c in calls]
            try:
                self._drive(jobs, batch)
            except BaseException:
                for job in jobs:
                    if job.result is None and job.deadline is not None:
                        self._lanes[job.tool.run_in].stop(job)
                raise
            return [job.result for job in jobs if job.result is not None]

    def _drive(self, jobs: list[Job], batch: Batch) -> None:
        queues: dict[str, deque[Job]] = {}
        inline: list[Job] = []
        for job in jobs:
            if job.tool.run_in == "inline":
                inline.append(job)
            else:
                queues.setdefault(job.tool.run_in, deque()).append(job)
        running: list[Job] = []
        if queues:
            self._start(queues, running)
        if inline:
            with _Interrupts() as interrupts:
                for job in inline:
                    job.finish(_run_inline(job, interrupts))
        while batch.left:
            overdue = self._wait(queues, running, batch)
            for job in overdue:
                job.expire()
                self._lanes[job.tool.run_in].stop(job)
            for name in {job.tool.run_in for job in overdue}:
                self._lanes[name].settle()

    def _wait(self, queues: dict[str, deque[Job]], running: list[Job], batch: Batch) -> list[Job]:
        """Sleep until there is something to do; returns the jobs whose time is up."""
        with self._wake:
            self._start(queues, running)
            running[:] = [job for job in running if job.result is None]
            batch.queued = any(queues.values())
            if not batch.left:
                return []
            now = time.monotonic()
            first = min((job.deadline for job in running if job.deadline is not None), default=now + LONGEST_NAP)
            if first > now:
                self._wake.wait(min(first - now, LONGEST_NAP))
            now = time.monotonic()
            return [j for j in running if j.result is None and j.deadline is not None and j.deadline <= now]

    def _start(self, queues: dict[str, deque[Job]], running: list[Job]) -> None:
        """Start what there is room for."""
        for name, queue in queues.items():
            lane = self._lane(name) if queue else None
            while queue and lane is not None and lane.room():
                job = queue.popleft()
                if name == "thread" and lane.abandoned() >= self._max_abandoned:
                    job.fail(
                        f"{job.tool.name} was not run: {self._max_abandoned} threads are busy with tools "
                        "that overran their deadline (run such tools in 'process')"
                    )
                    continue
                try:
                    lane.start(job)
                except (RuntimeError, OSError) as error:
                    job.fail(f"{job.tool.name} could not be started: {describe_exception(error)}")
                else:
                    running.append(job)

    def _lane(self, name: str) -> Lane:
        if name not in self._lanes:
            if name == "thread":
                from toolstep.envs.tools.threads import ThreadLane

                self._lanes[name] = ThreadLane(self._num_threads, self._wake)
            elif name == "process":
                from toolstep.envs.tools.process import ProcessLane

                self._lanes[name] = ProcessLane(self._num_processes, self._wake)
            else:
                from toolstep.envs.tools.loop import LoopLane

                self._lanes[name] = LoopLane()
        return self._lanes[name]

    def close(self) -> None:
        """Stop all threads, the event loop and all processes; may be called again.  Takes at most a few
        seconds.

        A thread whose tool still hangs cannot be ended; it is a daemon and never keeps the interpreter from
        exiting.
        """
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_lanes(lanes: dict[str, Lane], process_id: int) -> None:
    if os.getpid() == process_id:  # a forked child has copies of the objects, but not of the threads
        for lane in lanes.values():
            lane.close(CLOSE_PATIENCE)


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
