"""Code in the full CPython, in a process that has locked itself up (`jail.py`); one process for each episode."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import subprocess
import sys
import sysconfig
import threading
import time
import weakref
from datetime import datetime
from pathlib import Path
from typing import Any

from toolstep.envs.tools.builtin import jail
from toolstep.envs.tools.builtin.sandbox import Ran

START_LIMIT = 20.0  # seconds for the interpreter to start and to lock itself up
MAX_ANSWER = 1 << 20  # bytes; an honest answer is far shorter
CPU_SECONDS = 600  # of one process, whatever it does between calls
FORGED = "the code wrote into the pipe of the interpreter"
OWN_MEMORY = 64 << 20  # bytes of address space that an idle interpreter takes

DESCRIPTION = """Run Python code. Shows what it prints, and the value of its last line if that is an expression. \
Variables and functions stay for later calls. It is sandboxed: the standard library{packages}, no files, network or \
other processes."""


def missing() -> str:
    """Why this can't be used here; "" if it can."""
    if not sys.executable:
        return "sys.executable is empty"
    return jail.unsupported()


class _EndedError(Exception):
    """The process is gone, or does not keep to the protocol."""


class JailedInterpreter:
    """One process: started by the first call, killed by `close` and by a call that overruns, then begun anew."""

    def __init__(self, seconds: float, memory: int, now: datetime, seed: int, max_output: int, packages: bool) -> None:
        self._seconds = seconds
        site = [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")] if packages else []
        self._setup = {
            "memory": memory + OWN_MEMORY * (16 if packages else 1),
            "cpu_seconds": CPU_SECONDS,
            "now": now.timestamp(),
            "seed": seed,
            "max_output": max_output,
            "packages": site,
            "readable": [*_standard_library(), *site],
        }
        self._lock = threading.Lock()  # held by whoever uses the pipes
        self._process: _Process | None = None
        self._closed = False

    def run(self, code: str) -> Ran:
        with self._lock:
            try:
                return self._run(code)
            finally:
                if self._closed:
                    self._end()

    def _run(self, code: str) -> Ran:
        used = self._process is not None
        if self._process is not None and not self._process.alive():
            self._end()
        lost = used and self._process is None
        try:
            if self._closed:
                raise _EndedError("the interpreter was closed")
            if self._process is None:
                self._process = _Process(self._setup)
        except (_EndedError, OSError) as error:
            self._end()
            return Ran("", f"the interpreter could not be started: {error}", lost=lost, started=False)
        try:
            answer = self._process.ask({"code": code}, self._seconds)
        except TimeoutError:
            self._end()
            return Ran("", timed_out=True, lost=True)
        except _EndedError as error:
            self._end()
            return Ran("", str(error), lost=True)
        return Ran(_text(answer, "printed"), _text(answer, "error"), lost=lost)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def close(self) -> None:
        """Kill the process; a call that is running returns at once."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._end()


class _Process:
    """The child, its pipes, and what kills it when this object is gone."""

    def __init__(self, setup: dict[str, Any]) -> None:
        lifeline, ours = os.pipe()
        try:
            self._child = subprocess.Popen(  # noqa: S603  our own program, no shell
                [sys.executable, "-s", "-S", "-B", "-P", str(Path(__file__).with_name("cpython_worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(lifeline,),
                start_new_session=True,
                cwd="/",
                env={
                    "PYTHONHASHSEED": "0",
                    "PYTHONUTF8": "1",
                    "TZ": "UTC",
                    "OPENBLAS_NUM_THREADS": "1",
                    "OMP_NUM_THREADS": "1",
                },
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(lifeline)
        self._finalizer = weakref.finalize(self, _finish, self._child, ours)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._requests, self._replies = self._child.stdin.fileno(), self._child.stdout.fileno()
        self._number = 0
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        try:
            answer = self.ask({**setup, "lifeline": lifeline}, START_LIMIT)
        except TimeoutError:
            answer = {"refused": f"it was not ready within {START_LIMIT:g} s"}
        if answer.get("ready") is not True:
            self.close()
            raise _EndedError(_text(answer, "refused")[:500] or "it did not get ready")

    def alive(self) -> bool:
        return self._child.poll() is None

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            TimeoutError: it did not come in time.  _EndedError: it never will, or is none.
        """
        until = time.monotonic() + seconds
        if _ready(self._replies, select.POLLIN, 0):  # nothing was asked
            raise _EndedError(FORGED if self.alive() else self._how())
        self._number += 1
        body = json.dumps({**request, "id": self._number}).encode("ascii")
        data = memoryview(struct.pack(">Q", len(body)) + body)
        while data:
            _wait(self._requests, select.POLLOUT, until)
            try:
                data = data[os.write(self._requests, data) :]
            except BlockingIOError:
                continue
            except OSError:
                raise _EndedError(self._how()) from None
        size = struct.unpack(">Q", self._read(8, until))[0]
        if size > MAX_ANSWER:
            raise _EndedError(FORGED)
        try:
            answer = json.loads(self._read(size, until))
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or answer.get("id") != self._number:
            raise _EndedError(FORGED)
        return answer

    def _read(self, size: int, until: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            _wait(self._replies, select.POLLIN, until)
            try:
                piece = os.read(self._replies, size - len(parts))
            except BlockingIOError:
                continue
            if not piece:
                raise _EndedError(self._how())
            parts += piece
        return bytes(parts)

    def _how(self) -> str:
        """How it ended."""
        try:
            code = self._child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the interpreter closed its pipe"
        if code == -signal.SIGXCPU:
            return "the interpreter used up its CPU time"
        return (
            f"the interpreter was killed by signal {-code}" if code < 0 else f"the code ended the interpreter ({code})"
        )

    def kill(self) -> None:
        """From any thread."""
        with contextlib.suppress(OSError):
            self._child.kill()  # it has no children, and subprocess knows whether it was reaped

    def close(self) -> None:
        self._finalizer()


def _finish(child: subprocess.Popen[bytes], lifeline: int) -> None:
    """Kill, reap, and close our ends of the pipes."""
    with contextlib.suppress(OSError):
        child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    os.close(lifeline)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=5)


def _wait(descriptor: int, event: int, until: float) -> None:
    """TimeoutError where nothing happens at the descriptor until then."""
    while not _ready(descriptor, event, until - time.monotonic()):
        if time.monotonic() >= until:
            raise TimeoutError


def _ready(descriptor: int, event: int, seconds: float) -> bool:
    """Whether something happens at the descriptor; waits for at most so long."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _text(answer: dict[str, Any], key: str) -> str:
    """A text of an answer, which the code may have forged."""
    value = answer.get(key)
    return value if isinstance(value, str) else ""


def _standard_library() -> list[str]:
    """What the interpreter reads while it runs: its own modules, shared libraries, time zones."""
    own = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    lib = str(Path(sys.base_prefix) / "lib")
    dynamic = [str(p) for p in Path(lib).glob("libpython*.so*")]
    shared = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    return [*dict.fromkeys([*own, *dynamic, *shared]), "/usr/share/zoneinfo", "/dev/null", "/dev/urandom"]
