"""The thread that owns the engine: requests come in from any thread, chunks go out to the event loop."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from toolstep.agents.base import Completion
from toolstep.agents.engine import Engine, RowFailed
from toolstep.agents.text import StopWatch
from toolstep.rollout.serve.errors import APIError, BadRequest, EngineFailed, Overloaded, ShuttingDown
from toolstep.rollout.serve.generation import Chunk, Generation
from toolstep.rollout.serve.kept import KeptContexts

_MARGIN = 64  # tokens a sequence: what a step may add, and the cells that a last block leaves empty


class Gauges(NamedTuple):
    """The engine as of its last step; counters since the start, but for kv_tokens, kept_contexts and kept_tokens."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    fed_tokens: int = 0
    shared_tokens: int = 0
    forwards: int = 0
    preemptions: int = 0
    kv_tokens: int = 0
    kept_contexts: int = 0
    kept_tokens: int = 0
    queue_seconds: float = 0.0
    first_tokens: int = 0  # generations that `first_token_seconds` adds up; streamed ones alone are known
    first_token_seconds: float = 0.0


class Worker:
    """Continuous batching over all requests, first come, first served.

    max_running: generations that are sampled at a time.  max_queue: generations that may wait; more are refused.
    kv_tokens: the engine's budget, None where it has none.  cache_tokens: most tokens of finished contexts to keep.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        max_running: int,
        max_queue: int,
        kv_tokens: int | None = None,
        cache_tokens: int = 0,
    ) -> None:
        self.engine, self._tokenizer = engine, tokenizer
        self.max_running, self.max_queue, self._kv_tokens = max_running, max_queue, kv_tokens
        self.gauges = Gauges()
        self._kept = KeptContexts(engine, cache_tokens)
        self._rows = itertools.count()
        self._wake = threading.Condition()
        self._waiting: deque[Generation] = deque()
        self._cancelled: list[Generation] = []
        self._running: dict[int, Generation] = {}  # by row; changed by the engine's thread alone
        self._deadline: float | None = None  # set: nothing new is taken, and what runs then is cancelled
        self._out: list[tuple[Generation, Chunk | Exception]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="toolstep-engine", daemon=True)

    # ------------------------------------------------------------------ for any thread
    @property
    def running(self) -> int:
        """Generations in the engine."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Generations that are not there yet."""
        return len(self._waiting)

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and self._deadline is None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; events are put into their queues in `loop`."""
        self._loop = loop
        self._thread.start()

    def submit(self, generations: Sequence[Generation]) -> None:
        """Queue the generations of a request, all or none.  Raises Overloaded, ShuttingDown, BadRequest."""
        if len(generations) > self.max_running + self.max_queue:
            raise BadRequest(
                f"the request asks for {len(generations)} completions, but the server takes "
                f"{self.max_running + self.max_queue} at a time"
            )
        with self._wake:
            if self._deadline is not None:
                raise ShuttingDown("the server is shutting down")
            free = max(0, self.max_running - self.running)
            if self.waiting + len(generations) > self.max_queue + free:
                raise Overloaded(
                    f"{self.running} completions run and {self.waiting} wait, of {self.max_running} and "
                    f"{self.max_queue} that may; try again later"
                )
            self._waiting += generations
            self._wake.notify()

    def cancel(self, generations: Sequence[Generation]) -> None:
        """Nobody waits for these any more; finished ones are fine."""
        with self._wake:
            self._cancelled += generations
            self._wake.notify()

    def drain(self, seconds: float) -> None:
        """Take nothing new, refuse what waits, finish what runs within so many seconds and cancel the rest."""
        with self._wake:
            deadline = time.monotonic() + seconds
            self._deadline = deadline if self._deadline is None else min(deadline, self._deadline)
            self._wake.notify()

    def close(self) -> None:
        """Cancel everything and end the thread."""
        self.drain(0)
        self._thread.join()

    # ------------------------------------------------------------------ the engine's thread
    def _run(self) -> None:
        while self._next():
            try:
                self._make_room(self._admit())
                if self.engine.busy:
                    self._step()
            except Exception as error:  # the thread must live, and nobody may wait for ever
                self._fail(error)
            self._tell()
        self._kept.clear()
        self._tell()

    def _next(self) -> bool:
        """Wait for something to do; cancel what is to be cancelled.  False: it is over."""
        with self._wake:
            while not (self._waiting or self._cancelled or self._running or self._deadline is not None):
                self._wake.wait()
            cancelled, self._cancelled = self._cancelled, []
            refused: list[Generation] = []
            if self._deadline is not None:
                refused, self._waiting = list(self._waiting), deque()
            gone = set(cancelled)
            if gone & set(self._waiting):
                self._waiting = deque(g for g in self._waiting if g not in gone)
        for generation in cancelled:
            self._stop(generation)
        for generation in refused:
            self._out.append((generation, ShuttingDown("the server is shutting down")))
        if self._deadline is None:
            return True
        if time.monotonic() >= self._deadline:
            for generation in list(self._running.values()):
                self._stop(generation)
                self._out.append((generation, ShuttingDown("the server is shutting down and could not wait longer")))
        return bool(self._running)

    def _admit(self) -> int:
        """Move generations from the queue into the engine; returns the tokens of their prompts."""
        tokens = 0
        while self._deadline is None and self.running < self.max_running:
            with self._wake:
                if not self._waiting:
                    break
                generation = self._waiting.popleft()
                generation.row = next(self._rows)
                self._running[generation.row] = generation
            try:
                self._enter(generation)
            except ValueError as error:
                self._stop(generation)
                self._out.append((generation, BadRequest(str(error))))
            else:
                tokens += len(generation.prompt_ids)
        return tokens

    def _enter(self, generation: Generation) -> None:
        self._kept.touch(generation.prompt_ids)
        until = None
        if generation.stop_strings:
            until = StopWatch(self._tokenizer, generation.stop_strings, generation.hidden)
        self.engine.start(generation.row, generation.seed)
        generation.ticket = self.engine.submit(
            generation.row,
            generation.prompt_ids,
            generation.sampling,
            generation.stop_ids,
            allow=generation.allow,
            until=until,
        )
        g = self.gauges
        self.gauges = g._replace(
            prompt_tokens=g.prompt_tokens + len(generation.prompt_ids),
            queue_seconds=g.queue_seconds + time.monotonic() - generation.submitted,
        )

    def _make_room(self, fresh: int) -> None:
        """Give up kept contexts, the oldest first, before the engine has to (which would begin with the youngest).

        fresh: tokens that are still to be computed for new prompts, at most.
        """
        while self._kv_tokens is not None and len(self._kept):
            margin = _MARGIN * (self.running + len(self._kept))
            if self.engine.live_tokens + fresh + margin <= self._kv_tokens:
                return
            self._kept.drop_oldest()

    def _step(self) -> None:
        for _, row, completion in self.engine.step():
            generation = self._running.pop(row)
            self._out.append((generation, _rest(generation, completion)))
            self._kept.add(row)
        for generation in self._running.values():
            if generation.stream:
                ids, logprobs, top = self.engine.partial(generation.ticket, generation.sent)
                if ids:
                    self._first(generation)
                    generation.sent += len(ids)
                    self._out.append((generation, Chunk(ids, logprobs, top, None)))

    def _fail(self, error: Exception) -> None:
        """A step failed: on account of one generation, or of all that run."""
        traceback.print_exception(error, file=sys.stderr)
        blamed = [g for g in self._running.values() if isinstance(error, RowFailed) and g.row == error.row]
        for generation in blamed or list(self._running.values()):
            self._stop(generation)
            self._out.append((generation, EngineFailed(f"the engine failed: {error}")))
        if not blamed:
            self._kept.clear()

    def _stop(self, generation: Generation) -> None:
        if self._running.pop(generation.row, None) is not None:
            self.engine.release(generation.row)

    def _first(self, generation: Generation) -> None:
        if not generation.sent:
            g = self.gauges
            seconds = g.first_token_seconds + time.monotonic() - generation.submitted
            self.gauges = g._replace(first_tokens=g.first_tokens + 1, first_token_seconds=seconds)

    def _tell(self) -> None:
        """Send what happened, once a step."""
        stats = self.engine.stats
        self.gauges = self.gauges._replace(
            sampled_tokens=stats.sampled,
            fed_tokens=stats.fed,
            shared_tokens=stats.shared,
            forwards=stats.forwards,
            preemptions=stats.preemptions,
            kv_tokens=self.engine.live_tokens,
            kept_contexts=len(self._kept),
            kept_tokens=self._kept.tokens,
        )
        out, self._out = self._out, []
        if out and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_deliver, out)


def _deliver(out: list[tuple[Generation, Chunk | Exception]]) -> None:
    for generation, event in out:
        generation.events.put_nowait((generation.index, event))


def _rest(generation: Generation, completion: Completion) -> Chunk | APIError:
    """What of a finished turn was not sent yet."""
    if completion.finish_reason == "abort":
        return EngineFailed("the engine gave the completion up")
    first = generation.sent
    return Chunk(
        completion.token_ids[first:].tolist(),
        completion.logprobs[first:].tolist(),
        [list(best) for best in completion.top[first:]],
        completion.finish_reason,
    )
