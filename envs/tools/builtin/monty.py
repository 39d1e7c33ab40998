"""Code in pydantic-monty: an interpreter of a part of Python, in worker processes that it watches itself.

Values of the sandbox never come out of it: turning one into an object of ours could take any time and memory (a list
that holds itself twice, thirty times over).  What is to be seen is printed inside.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import weakref
from dataclasses import replace
from datetime import datetime
from typing import Any

from toolstep.envs.tools.builtin.last_value import showing
from toolstep.envs.tools.builtin.report import cut, describe_error
from toolstep.envs.tools.builtin.sandbox import Ran

MAX_SESSIONS = 1024  # the pool's own default is the number of cores, beyond which a checkout waits for ever
MAX_PRINTED = 1 << 20  # bytes of one call; beyond it the call fails
START_LIMIT = 30.0  # seconds until a worker is there
GRACE = 0.25  # seconds after which a worker that does not stop by itself is killed

FORKED = "pydantic-monty was used before this process was forked, and does not work in it: start workers by 'spawn'"

_started_by: dict[str, int] = {}  # the process that the threads of pydantic-monty live in

DESCRIPTION = """Run Python code. Shows what it prints, and the value of its last line if that is an expression. \
Variables and functions stay for later calls. It is a sandboxed part of Python: no packages, files or network, no \
generators (yield), class inheritance or del. Modules: asyncio, base64, bisect, collections, copy, csv, dataclasses, \
datetime, decimal, functools, hashlib, itertools, json, math, random, re, time, typing, unicodedata."""


def missing() -> str:
    """Why this can't be used here; "" if it can."""
    if importlib.util.find_spec("pydantic_monty") is None:
        return "pydantic-monty is not installed (pip install 'toolstep[sandbox]')"
    return ""


class MontyPool:
    """Worker processes for any number of sessions; the first one starts them, and they end with `close`.

    A session that is open when the pool is closed keeps it running until it ends.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may end a session while this thread holds it
        self._pool: Any = None
        self._finalizer: Any = None  # of the pool: without it a worker would stay as a zombie
        self._sessions = 0
        self._closing = False

    def checkout(self, **options: Any) -> Any:
        """A new session, with a worker of its own.  Raises MontyError or TimeoutError where none can be had."""
        import pydantic_monty

        with self._lock:
            if self._pool is None:
                self._pool = pydantic_monty.Monty(
                    max_processes=MAX_SESSIONS,
                    min_processes=0,
                    checkout_timeout=START_LIMIT,
                    feed_duration_limit_grace=GRACE,
                )
                self._pool.__enter__()
                self._finalizer = weakref.finalize(self, _leave, self._pool, os.getpid())
            self._closing = False
            self._sessions += 1
            pool = self._pool
        try:
            session = pool.checkout(**options)
            session.__enter__()
        except BaseException:
            self._returned()
            raise
        return session

    def give_back(self, session: Any) -> None:
        try:
            session.__exit__(None, None, None)
        finally:
            self._returned()

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._end_if_idle()

    def _returned(self) -> None:
        with self._lock:
            self._sessions -= 1
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        with self._lock:
            finish = self._finalizer if self._closing and self._sessions <= 0 else None
            if finish is not None:
                self._pool = self._finalizer = None
        if finish is not None:
            finish()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        MontyPool.__init__(self)


def _leave(pool: Any, process_id: int) -> None:
    if os.getpid() == process_id:  # a forked child has a copy of the object, but not of the workers
        pool.__exit__(None, None, None)


class MontyInterpreter:
    """One session: started by the first call, given back by `close`, begun anew after a call that was stopped."""

    def __init__(self, pool: MontyPool, seconds: float, memory: int, now: datetime, seed: int) -> None:
        self._pool = pool
        self._options = {
            "limits": {"max_feed_duration_secs": seconds, "max_memory": memory, "max_suspensions": 100_000},
            "os_policy": {"datetime": now, "sleep": "zero", "random_start": {"seed": seed}},
        }
        self._seconds = seconds
        self._lock = threading.Lock()  # held by whoever uses the session
        self._session: Any = None
        self._finalizer: Any = None  # of the session
        self._closed = False

    def run(self, code: str) -> Ran:
        with self._lock:
            try:
                return self._run(code)
            finally:
                if self._closed:
                    self._end()

    def _run(self, code: str) -> Ran:
        import pydantic_monty as monty

        if self._closed:
            return Ran("", "the interpreter was closed")
        if _started_by.setdefault("process", os.getpid()) != os.getpid():
            return Ran("", FORKED)
        began = self._session is not None
        fresh = self._session is None
        try:
            if fresh:
                self._session = self._pool.checkout(**self._options)
                self._finalizer = weakref.finalize(self, self._pool.give_back, self._session)
        except (monty.MontyError, OSError, RuntimeError) as error:
            return Ran("", f"the interpreter could not be started: {error}", started=False)
        try:
            ran = self._tried(code)
        except RuntimeError as error:  # the session had ended by itself, after the last call
            self._end()
            return Ran("", str(error), lost=True) if fresh else replace(self._run(code), lost=True)
        return replace(ran, lost=True) if began and fresh else ran

    def _tried(self, code: str) -> Ran:
        import pydantic_monty as monty

        shown = showing(code)
        try:
            try:
                return self._feed(shown if shown is not None else _silent(code))
            except monty.MontySyntaxError:
                if shown is None:
                    raise
                return self._feed(_silent(code))  # the error of the code as it was written, or no error at all
        except monty.MontySyntaxError as error:
            frames = [(f.line, "<module>", f.source_line or "") for f in error.traceback()]
            return Ran("", describe_error("SyntaxError", str(error), frames[-1:]))
        except monty.MontyError as error:
            self._end()
            return Ran("", str(error) or "the interpreter died", lost=True)

    def _feed(self, code: str) -> Ran:
        import pydantic_monty as monty

        printed = monty.CollectString(max_bytes=MAX_PRINTED)
        try:
            self._session.feed_run(code, print_callback=printed)
        except monty.MontyRuntimeError as error:
            kind, _, message = error.display("type-msg").partition(": ")
            frames = [(f.line, f.function_name or "<module>", _source(f.source_line)) for f in error.traceback()]
            if "feed time limit exceeded" in message:  # the heap may be in any state
                self._end()
                return Ran(printed.output, timed_out=True, lost=True)
            if "memory limit and was terminated" in message:
                self._end()
                return Ran(printed.output, "MemoryError: the memory limit was exceeded", lost=True)
            if not frames and len(printed.output.encode()) > MAX_PRINTED // 2 and kind == "MemoryError":
                message = f"more than {MAX_PRINTED} bytes were printed"
            return Ran(printed.output, describe_error(kind, message, frames))
        except monty.MontyCrashedError as error:
            self._end()
            timed_out = bool(getattr(error, "timed_out", False)) or "time" in str(error)
            return Ran(printed.output, cut(str(error), 300), timed_out=timed_out, lost=True)
        return Ran(printed.output)

    def _end(self) -> None:
        finish, self._session, self._finalizer = self._finalizer, None, None
        if finish is not None:
            finish()

    def close(self) -> None:
        """Give the worker back: at once, or, while a call is running, when that ends at its limit."""
        self._closed = True
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()


def _silent(code: str) -> str:
    return f"{code}\nNone"


def _source(line: str | None) -> str:
    return (line or "").replace("_ = (", "", 1)
