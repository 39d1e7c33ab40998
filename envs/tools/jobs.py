"""One call under way, the turn that it belongs to, and what all calls of an executor share."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.result import error_result, to_result
from toolstep.envs.tools.tool import RunIn, Tool
from toolstep.envs.types import CallStatus, ToolResult

Done = Callable[[list[ToolResult]], None]


class Board:
    """What all calls of an executor share.  Whoever drives them sleeps on `wake`, and is woken only to act."""

    def __init__(self) -> None:
        self.wake = threading.Condition()
        self.version = 0  # goes up with every change, so that none is slept through
        self.queued = False  # calls wait for room, so that each end matters
        self.complete: deque[Batch] = deque()  # turns whose `done` is still to be called


class Batch:
    """The calls of one turn or step.  `done` is called with their results, where there is one."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.jobs: list[Job] = []
        self.left = 0  # calls without a result
        self.done: Done | None = None

    def results(self) -> list[ToolResult]:
        """Result i answers call i; all of them are there when `left` is 0."""
        return [job.result for job in self.jobs if job.result is not None]


class Job:
    """One call under way.  Its first result counts: what a tool returns after its deadline is dropped."""

    __slots__ = ("_batch", "after", "arguments", "deadline", "lane", "limit", "result", "starting", "tool")

    def __init__(
        self, tool: Tool, arguments: dict[str, Any], limit: float, batch: Batch, after: Job | None = None
    ) -> None:
        self.tool = tool
        self.after = after  # the call before this one to the same object: it has to end first
        # An inline call can't wait for another one.
        waits = tool.run_in == "inline" and after is not None and after.lane != "inline"
        self.lane: RunIn = "thread" if waits else tool.run_in
        self.arguments = arguments
        self.limit = limit  # seconds
        self.deadline: float | None = None  # of time.monotonic(); None until it starts
        self.starting = False  # its worker is being made ready: the deadline is the worker's, not the tool's
        self.result: ToolResult | None = None
        self._batch = batch
        batch.jobs.append(self)
        batch.left += 1

    def held(self) -> bool:
        """Whether it has to wait for the call before it."""
        if self.after is not None and self.after.result is not None:
            self.after = None
        return self.after is not None

    def begin(self, allowance: float | None = None) -> None:
        """The clock starts; with an `allowance`, first that of making a worker ready."""
        board = self._batch.board
        with board.wake:
            self.starting = allowance is not None
            self.deadline = time.monotonic() + (self.limit if allowance is None else allowance)
            board.wake.notify_all()

    def seconds(self) -> float:
        """Since the tool itself started; 0.0 where it has not."""
        if self.deadline is None or self.starting:
            return 0.0
        return time.monotonic() - (self.deadline - self.limit)

    def finish(self, result: ToolResult) -> None:
        batch, board = self._batch, self._batch.board
        with board.wake:
            board.version += 1
            if self.result is None:
                self.result = result
                batch.left -= 1
                if batch.left == 0 and batch.done is not None:
                    board.complete.append(batch)
            if batch.left <= 0 or board.queued:
                board.wake.notify_all()

    def expire(self) -> None:
        """Answer for a tool that did not."""
        if self.starting:
            message = f"{self.tool.name}: its worker process did not get ready in time"
            self.finish(error_result(CallStatus.TOOL_ERROR, message))
        else:
            message = f"{self.tool.name} did not finish within {self.limit:g} s"
            self.finish(error_result(CallStatus.TOOL_TIMEOUT, message, seconds=self.limit))

    def fail(self, message: str) -> None:
        self.finish(error_result(CallStatus.TOOL_ERROR, message))


def invoke(tool: Tool, arguments: dict[str, Any]) -> ToolResult:
    """Call the tool here and now; whatever it raises is its error, KeyboardInterrupt and SystemExit included."""
    began = time.perf_counter()
    try:
        result = to_result(tool.call(**arguments))
    except BaseException as error:
        result = error_result(CallStatus.TOOL_ERROR, describe_exception(error))
    return timed(result, began)


def timed(result: ToolResult, began: float) -> ToolResult:
    """`result` with the seconds since `began` (of time.perf_counter())."""
    return replace(result, seconds=time.perf_counter() - began)
