"""Stream: turns of single rows, without a barrier.  While the tools of one row run, others are sent and received."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import error
from numpy.typing import NDArray

from toolstep.envs.episode import Outcome
from toolstep.envs.rows import Rows, reset_samples
from toolstep.envs.tools import Executor
from toolstep.envs.types import ToolResult

LONGEST_NAP = 0.5  # seconds; on Windows a wait cannot be interrupted before it ends
WORKER_START = 30.0  # seconds that a worker process may take until it is ready (envs.tools.process)


class Received(NamedTuple):
    """What `recv` returns; item k of each belongs to row `rows[k]`.

    observations and infos: as a single env would return them.  rewards: f64[K].  terminations, truncations: bool[K].
    """

    rows: list[int]
    observations: list[Any]
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    infos: list[dict[str, Any]]


class Stream:
    """`send`, `recv`, `begin` and `cancel` over `Rows`; see `ToolUseVectorEnv` for what they mean.

    Episodes are touched by the caller's thread alone; threads of the executor only hand results over.  Calls may come
    from different threads, but not from two at once.
    """

    def __init__(self, rows: Rows, executor: Executor):
        self._rows = rows
        self._executor = executor
        self._arrival = threading.Condition()
        self._arrived: deque[tuple[int, list[ToolResult] | Exception]] = deque()  # in order of completion
        self._finished: deque[tuple[int, Outcome]] = deque()  # not yet handed out
        self._batches: dict[int, Any] = {}  # by pending row: its calls under way, None where it has none

    @property
    def pending(self) -> int:
        """Rows that were sent and not yet received."""
        return len(self._batches)

    @property
    def turn_timeout(self) -> float:
        """Seconds within which at least one pending row comes back, on a machine that is not overloaded.

        The calls of the oldest turn never wait for those of younger ones.
        """
        limits = self._rows.config.limits
        rounds = math.ceil(limits.max_calls / min(self._executor.num_threads, self._executor.num_processes))
        # Calls to one object run one after the other.
        return rounds * WORKER_START + limits.max_calls * limits.tool_timeout

    def refuse_if_pending(self, method: str) -> None:
        """AlreadyPendingCallError where a call of `method` would mix with turns under way."""
        if self._batches:
            rows = sorted(self._batches)
            raise error.AlreadyPendingCallError(
                f"{method}() while the turns of rows {rows} are under way: recv() them first", "send"
            )

    def begin(
        self, rows: Sequence[int], seeds: Sequence[int | None], samples: Sequence[int] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Reset these rows, each with its seed (None: its generator goes on)."""
        rows = self._checked_rows(rows, "begin")
        if len(seeds) != len(rows):
            raise ValueError(f"begin: {len(rows)} rows but {len(seeds)} seeds")
        for row, seed in zip(rows, seeds):
            if seed is not None and (isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0):
                raise ValueError(f"begin: the seed of row {row} must be a whole number >= 0 or None, got {seed!r}")
        told = reset_samples(samples, len(rows), "begin: samples")
        infos = [self._rows.reset(r, None if s is None else int(s), n) for r, s, n in zip(rows, seeds, told)]
        return [deepcopy(self._rows.observations[row]) for row in rows], infos

    def send(self, actions: Sequence[Any], rows: Sequence[int]) -> None:
        """Begin the turns of these rows; their tools run in the background."""
        rows = self._checked_rows(rows, "send")
        if not isinstance(actions, (tuple, list, np.ndarray)):  # a str of length K would pass for K one-letter actions
            raise TypeError(f"send: expected a list of {len(rows)} actions, got one {type(actions).__name__}")
        if len(actions) != len(rows):
            raise ValueError(f"send: {len(rows)} rows but {len(actions)} actions")
        for row in rows:
            if self._rows.observations[row] is None:
                raise error.ResetNeeded(f"send: row {row} was never begun: begin([{row}], [seed]) or reset() it first")
            if self._rows.ended[row]:
                raise error.ResetNeeded(
                    f"send: the episode of row {row} is over: begin([{row}], [seed]) the next first"
                )
        checked = [self._rows.check(row, action) for row, action in zip(rows, actions)]
        for row, action in zip(rows, checked):
            self._send(row, action)

    def _send(self, row: int, action: Any) -> None:
        calls = self._rows.begin(row, action)
        self._batches[row] = None
        if isinstance(calls, Exception) or not calls:
            self._arrive(row, calls)
            return
        timeout = self._rows.config.limits.tool_timeout
        try:
            self._batches[row] = self._executor.start(calls, timeout=timeout, done=partial(self._arrive, row))
        except BaseException as e:  # the row comes back in any case: it must not stay pending for ever
            self._arrive(row, e if isinstance(e, Exception) else RuntimeError(f"interrupted: {type(e).__name__}"))
            if not isinstance(e, Exception):
                raise

    def _arrive(self, row: int, results: list[Any] | Exception) -> None:
        """The calls of a row have answered; from any thread."""
        with self._arrival:
            self._arrived.append((row, results))
            self._arrival.notify_all()

    def recv(self, min_rows: int = 1, timeout: float | None = None) -> Received:
        """Rows whose turn is finished, in order of completion: at least `min_rows`, or what there is in time."""
        if not self._batches:
            raise error.NoAsyncCallError("recv() with nothing pending: send() turns first", "recv")
        if isinstance(min_rows, bool) or not isinstance(min_rows, (int, np.integer)) or min_rows < 0:
            raise ValueError(f"recv: min_rows must be a whole number >= 0, got {min_rows!r}")
        if min_rows > self.pending:
            raise ValueError(f"recv: min_rows={min_rows}, but only {self.pending} rows are pending")
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"recv: timeout must be a number of seconds >= 0 or None, got {timeout!r}")
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._finish_arrived()
            with self._arrival:
                left = until - time.monotonic()
                if not self._arrived and (len(self._finished) >= min_rows or left <= 0):
                    break
                if not self._arrived:
                    self._arrival.wait(min(left, LONGEST_NAP))
        return self._hand_out()

    def _finish_arrived(self) -> None:
        # An outcome is kept as soon as it is there: neither an interrupt nor a strict row loses the others.
        while self._arrived:
            row, results = self._arrived[0]
            try:
                if isinstance(results, Exception):
                    outcome = self._rows.fail(row, results)
                else:
                    outcome = self._rows.finish(row, results)
            except Exception:
                self._arrived.popleft()
                self._batches.pop(row, None)
                raise
            self._finished.append((row, outcome))
            self._arrived.popleft()

    def _hand_out(self) -> Received:
        done = [self._finished.popleft() for _ in range(len(self._finished))]
        for row, _ in done:
            self._batches.pop(row, None)
        return Received(
            [row for row, _ in done],
            [deepcopy(out.observation) for _, out in done],
            np.array([out.reward for _, out in done], np.float64),
            np.array([out.terminated for _, out in done], np.bool_),
            np.array([out.truncated for _, out in done], np.bool_),
            [out.info for _, out in done],
        )

    def cancel(self, rows: Sequence[int] | None = None) -> None:
        """Stop the tools of these pending rows (None: of all); they come back by `recv` as always."""
        chosen = list(self._batches) if rows is None else [int(row) for row in rows]
        for row in chosen:
            if row not in self._batches:
                raise ValueError(f"cancel: row {row} is not pending")
        for row in chosen:
            if self._batches[row] is not None:
                self._executor.cancel(self._batches[row])

    def _checked_rows(self, rows: Sequence[int], method: str) -> list[int]:
        out: list[int] = []
        for row in rows:
            if isinstance(row, bool) or not isinstance(row, (int, np.integer)) or not 0 <= row < len(self._rows):
                raise ValueError(f"{method}: a row must be a whole number in [0, {len(self._rows)}), got {row!r}")
            if row in self._batches:
                raise error.AlreadyPendingCallError(
                    f"{method}: the turn of row {row} is under way: recv() it first", "send"
                )
            out.append(int(row))
        if len(set(out)) != len(out):
            twice = next(row for row in out if out.count(row) > 1)
            raise ValueError(f"{method}: row {twice} is listed twice")
        return out
