"""Calls on daemon threads of our own.

The pools of `concurrent.futures` join their threads when the interpreter exits, so that one hanging tool would keep the
process from ever ending; these do not.
"""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

from toolstep.envs.tools.jobs import Job, invoke
from toolstep.envs.types import ToolResult


class Slot:
    """A thread that runs one job after the other."""

    def __init__(self, lane: ThreadLane) -> None:
        self.lane = lane
        self.inbox: SimpleQueue[Job | None] = SimpleQueue()
        self.abandoned = False
        self.thread = threading.Thread(target=self._run, name="toolstep-tool", daemon=True)

    def _run(self) -> None:
        try:
            while (job := self.inbox.get()) is not None:
                result = self.work(job)
                keep = self.lane.release(self, job, result)
                del job, result  # an idle thread must not keep arguments and results alive
                if not keep:
                    break
                self.rest()
        finally:
            self.end()

    def work(self, job: Job) -> ToolResult:
        """The result of the job; never raises."""
        return invoke(job.tool, job.arguments)

    def interrupt(self) -> bool:
        """Stop the running job from another thread; False where that is impossible."""
        return False

    def rest(self) -> None:
        """Get ready for the next job; the last one has its result already."""

    def end(self) -> None:
        """Free what the slot holds; runs on its own thread."""


class ThreadLane:
    """At most `limit` jobs at once, each on a thread; threads start when they are first needed and are used again.

    A job that overruns keeps its thread: the thread is abandoned, another takes its place, and it ends when its tool
    returns.
    """

    slot_type: type[Slot] = Slot
    GRACE = 1.0  # seconds in which a slot whose job was stopped has to come back

    def __init__(self, limit: int, wake: threading.Condition) -> None:
        self._limit = limit
        self._wake = wake
        self._idle: list[Slot] = []
        self._busy: dict[Job, Slot] = {}
        self._stopped: dict[Job, float] = {}
        self._abandoned: list[Slot] = []
        self._closed = False

    def room(self) -> bool:
        """Whether a job can start now."""
        with self._wake:
            now = time.monotonic()
            for job in [job for job, since in self._stopped.items() if now - since > self.GRACE]:
                self._abandon(job)
            return len(self._busy) < self._limit

    def start(self, job: Job) -> None:
        """Run the job; raises RuntimeError where the system gives no more threads."""
        with self._wake:
            slot = self._idle.pop() if self._idle else self.slot_type(self)
            if not slot.thread.is_alive():
                slot.thread.start()
            self._busy[job] = slot
            self.clock(job)
            slot.inbox.put(job)

    def clock(self, job: Job) -> None:
        """Start the job's clock: it has a thread."""
        job.begin()

    def release(self, slot: Slot, job: Job, result: ToolResult) -> bool:
        """A slot has finished: its result is there and it is free, in one step.  False: it is not needed any more."""
        with self._wake:
            self._stopped.pop(job, None)
            keep = self._busy.pop(job, None) is slot and not self._closed
            if keep:
                self._idle.append(slot)
            job.finish(result)
            return keep

    def stop(self, job: Job) -> None:
        """Stop a job whose time is up, or leave it behind where nothing can stop it."""
        with self._wake:
            slot = self._busy.get(job)
            if slot is None:
                return
            if slot.interrupt():
                self._stopped[job] = time.monotonic()
            else:
                self._abandon(job)

    def settle(self) -> None:
        """Nothing to do after jobs were stopped."""

    def _abandon(self, job: Job) -> None:
        self._stopped.pop(job, None)
        slot = self._busy.pop(job, None)
        if slot is not None:
            slot.abandoned = True
            self._abandoned.append(slot)

    def abandoned(self) -> int:
        """Threads that were left behind and still run."""
        with self._wake:
            self._abandoned = [slot for slot in self._abandoned if slot.thread.is_alive()]
            return len(self._abandoned)

    def close(self, patience: float) -> None:
        """Stop everything and wait at most `patience` seconds for the threads to end."""
        with self._wake:
            self._closed = True
            leaving = [*self._idle, *self._busy.values()]
            for job in list(self._busy):
                self.stop(job)
            self._idle.clear()
        for slot in leaving:
            slot.inbox.put(None)
        until = time.monotonic() + patience
        for slot in leaving:
            if not slot.abandoned and slot.thread.is_alive() and slot.thread is not threading.current_thread():
                slot.thread.join(max(0.0, until - time.monotonic()))
