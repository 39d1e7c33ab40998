"""Dispatcher: starts calls as there is room, stops those whose time is up, and tells when a turn is complete."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.jobs import Batch, Board, Job

LONGEST_NAP = 0.5  # seconds; on Windows a wait cannot be interrupted before it ends
CLOSE_PATIENCE = 2.0  # seconds


class Lane(Protocol):
    """Where jobs run.  Nothing here blocks for long; one thread at a time calls `start`, `stop` and `settle`."""

    def room(self) -> bool: ...
    def start(self, job: Job) -> None: ...
    def stop(self, job: Job) -> None: ...
    def settle(self) -> None: ...
    def abandoned(self) -> int: ...
    def close(self, patience: float) -> None: ...


class Dispatcher:
    """The calls under way of one executor.

    Whoever waits for calls drives them: a thread in `drive`, and, once a turn was submitted that nobody waits for, a
    daemon thread of its own, which also calls each turn's `done`.

    Locks: `_driving` (one thread starts and stops jobs at a time) is taken before `board.wake` (the state of jobs),
    never after it; `done` is called with neither.
    """

    def __init__(self, num_threads: int, num_processes: int, max_abandoned: int) -> None:
        self.board = Board()
        self.failures: list[BaseException] = []  # what `done` raised, until somebody is told
        self._num_threads = num_threads
        self._num_processes = num_processes
        self._max_abandoned = max_abandoned
        self._lanes: dict[str, Lane] = {}
        self._queues: dict[str, deque[Job]] = {}
        self._running: list[Job] = []
        self._driving = threading.RLock()
        self._driver: threading.Thread | None = None
        self._closed = False

    def submit(self, batch: Batch, *, watched: bool) -> None:
        """Queue the calls of a turn, and start those that there is room for.  "inline" ones are the caller's.

        watched: the caller drives them; otherwise this object's own thread does.
        """
        jobs = [job for job in batch.jobs if job.lane != "inline"]
        if not jobs:
            return
        with self.board.wake:
            if self._closed:
                raise RuntimeError("Executor: the executor is closed")
            if not watched and self._driver is None:
                driver = threading.Thread(target=self._main, name="toolstep-dispatch", daemon=True)
                driver.start()
                self._driver = driver
            for job in jobs:
                self._queues.setdefault(job.lane, deque()).append(job)
            self.board.version += 1
            self.board.wake.notify_all()
        # Somebody who drives just now comes round to the new jobs; waiting for them would block the caller.
        if self._driving.acquire(blocking=False):
            try:
                self._fill()
            finally:
                self._driving.release()

    def drive(self, batch: Batch) -> None:
        """Return when the whole batch has results."""
        self._drive(lambda: batch.left == 0)

    def cancel(self, batch: Batch, message: str) -> None:
        """Answer `message` for each call that has no result, and stop it for real where that can be."""
        with self._driving:
            stopped = set()
            for job in batch.jobs:
                if job.result is None:
                    started = job.deadline is not None
                    job.fail(f"{job.tool.name} {message}")
                    if started:
                        self._lanes[job.lane].stop(job)
                        stopped.add(job.lane)
            for name in stopped:
                self._lanes[name].settle()

    def abandoned(self) -> int:
        """Threads that tools past their deadline still occupy."""
        return sum(lane.abandoned() for lane in list(self._lanes.values()))

    def close(self) -> None:
        """Cancel what is under way, call every `done` that is due, end all threads and processes."""
        with self.board.wake:
            self._closed = True
            self.board.version += 1
            self.board.wake.notify_all()
        with self._driving:
            with self.board.wake:
                under_way = [job for queue in self._queues.values() for job in queue] + self._running
                self._queues.clear()
            for job in under_way:
                if job.result is None:
                    job.fail(f"{job.tool.name} was cancelled: the environment was closed")
            for lane in list(self._lanes.values()):
                lane.close(CLOSE_PATIENCE)
        driver = self._driver
        if driver is not None and driver is not threading.current_thread():
            driver.join(CLOSE_PATIENCE)
        self._deliver()  # what a driver that hangs in somebody's `done` leaves behind

    # ---------------------------------------------------------------- driving
    def _main(self) -> None:
        self._drive(lambda: self._closed and not self.board.complete and not self._running, self._deliver)

    def _drive(self, finished: Callable[[], bool], then: Callable[[], None] = lambda: None) -> None:
        board = self.board
        while True:
            with board.wake:
                seen = board.version
                if finished():
                    return
            self._tick()
            then()
            with board.wake:
                if board.version == seen and not finished():
                    board.wake.wait(self._nap())

    def _tick(self) -> None:
        """Stop what is overdue, start what there is room for."""
        with self._driving:
            now = time.monotonic()
            with self.board.wake:
                self._running = [job for job in self._running if job.result is None]
                overdue = [job for job in self._running if job.deadline is not None and job.deadline <= now]
            for job in overdue:
                job.expire()
                self._lanes[job.lane].stop(job)
            for name in {job.lane for job in overdue}:
                self._lanes[name].settle()
            self._fill()

    def _fill(self) -> None:
        """Start what there is room for, first come, first served; calls to one object one after the other."""
        with self.board.wake:
            for name, queue in self._queues.items():
                lane = self._lane(name) if queue else None
                held: list[Job] = []
                while queue and lane is not None and lane.room():
                    job = queue.popleft()
                    if job.result is not None:
                        continue  # cancelled while it waited
                    if job.held():
                        held.append(job)
                        continue
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
                        self._running.append(job)
                queue.extendleft(reversed(held))
            self.board.queued = any(self._queues.values())

    def _nap(self) -> float | None:
        """Seconds until there may be something to do; None: until somebody says so."""
        if not self._running and not self.board.queued:
            return None
        first = min((job.deadline for job in self._running if job.deadline is not None), default=float("inf"))
        return min(max(0.0, first - time.monotonic()), LONGEST_NAP)

    def _deliver(self) -> None:
        """Call `done` of every complete turn, each exactly once; what it raises is kept for the executor's user."""
        while True:
            try:
                batch = self.board.complete.popleft()
            except IndexError:
                return
            done, batch.done = batch.done, None
            if done is not None:
                try:
                    done(batch.results())
                except BaseException as error:
                    self.failures.append(error)
            del batch, done  # an idle thread must not keep results alive

    def _lane(self, name: str) -> Lane:
        if name not in self._lanes:
            if name == "thread":
                from toolstep.envs.tools.threads import ThreadLane

                self._lanes[name] = ThreadLane(self._num_threads, self.board.wake)
            elif name == "process":
                from toolstep.envs.tools.process import ProcessLane

                self._lanes[name] = ProcessLane(self._num_processes, self.board.wake)
            else:
                from toolstep.envs.tools.loop import LoopLane

                self._lanes[name] = LoopLane()
        return self._lanes[name]
