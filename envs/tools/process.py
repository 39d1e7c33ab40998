"""Calls in worker processes, which a deadline kills for real, together with everything that they started."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.jobs import Job
from toolstep.envs.tools.result import error_result, to_result
from toolstep.envs.tools.threads import Slot, ThreadLane
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import CallStatus, ToolResult

START_LIMIT = 30.0  # seconds for a worker to start and to import the tool; not counted as the tool's own
MAX_ANSWER = 64 << 20  # bytes


class WorkerError(RuntimeError):
    """A worker that ended, or that does not keep to the protocol; the message is for the model."""


class Worker:
    """One Python process in a session of its own.  It serves one call after the other, until it is killed.

    A plain child process, not a `multiprocessing` one: no server process stays behind, the main script is not run
    again, and the process group is ours to kill.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed = False
        self._number = 0
        self.main: str | None = None  # the script that it has imported

    def start(self, main: str | None) -> None:
        self.main = main
        if not sys.executable:
            raise WorkerError("worker processes need a Python executable, and sys.executable is empty")
        process = subprocess.Popen(  # noqa: S603  our own program, no shell
            [sys.executable, "-P", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        with self._lock:
            self._process = process
            killed = self._killed
        if killed:
            self.kill()
        package = sys.modules.get("toolstep")
        by_hand = package is not None and package.__spec__ is None
        setup = {
            "path": [str(Path(path).absolute()) for path in sys.path],
            "package": list(package.__path__) if package is not None and by_hand else None,
            "main": main,
        }
        self._send(json.dumps(setup).encode())

    def alive(self) -> bool:
        return self._process is not None and not self._killed and not _has_exited(self._process)

    def call(self, request: bytes, job: Job) -> dict[str, Any]:
        """The answer to a pickled request; starts the job's clock when the tool is loaded.  Raises WorkerError."""
        self._number += 1
        self._send(struct.pack(">Q", self._number) + request)
        answer = self._receive()
        if answer.get("ready"):
            job.begin()
            answer = self._receive()
        return answer

    def load(self, request: bytes) -> None:
        """Let the worker import a function; it does not answer."""
        self._send(struct.pack(">Q", 0) + request)

    def _send(self, body: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(struct.pack(">Q", len(body)) + body)
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise WorkerError(self._end()) from None

    def _receive(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        head = _read(self._process.stdout, 8)
        size = struct.unpack(">Q", head)[0] if len(head) == 8 else None
        if size is None:
            raise WorkerError(self._end())
        if size > MAX_ANSWER:
            self._end()
            raise WorkerError(f"the result has {size} bytes; at most {MAX_ANSWER} are taken")
        body = _read(self._process.stdout, size)
        if len(body) < size:
            raise WorkerError(self._end())
        try:
            answer = json.loads(body)
            if answer["id"] != self._number:
                raise ValueError("out of step")
        except (ValueError, KeyError, TypeError):
            self._end()
            raise WorkerError("the tool wrote into the pipe of its worker process") from None
        return dict(answer)

    def kill(self) -> None:
        """Kill the whole group at once; from any thread, any number of times."""
        with self._lock:
            self._killed = True
            process = self._process
            # While the leader is not reaped its number cannot belong to anything else.
            if process is None or process.returncode is not None:
                return
            if sys.platform == "win32":
                command = ["taskkill", "/F", "/T", "/PID", str(process.pid)]
                subprocess.run(command, capture_output=True, check=False)  # noqa: S603  a number of our own
                process.kill()
            else:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)

    def _end(self) -> str:
        """Kill, reap and close; says how the process ended."""
        process = self._process
        if process is None:
            return "the worker process did not start"
        # A process that exits closes its pipes a moment before it can be reaped: let it have its own exit
        # code.
        until = time.monotonic() + 0.2
        while not self._killed and not _has_exited(process) and time.monotonic() < until:
            time.sleep(0.002)
        # Reaping comes last, because it frees the number of the group that is killed here.
        self.kill()
        with self._lock, contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        code = process.returncode
        if code is not None and code < 0:
            return f"the tool's process was killed by signal {-code} ({_signal_name(-code)})"
        return f"the tool ended its process with exit code {code}"

    def close(self) -> None:
        """Kill the process and free its pipes."""
        self.kill()
        self._end()


class ProcessSlot(Slot):
    """A thread that drives one worker; after a kill the next call gets a fresh one."""

    worker: Worker | None = None
    target: bytes | None = None  # the function of the last call, pickled
    main: str | None = None

    def work(self, job: Job) -> ToolResult:
        try:
            request, self.target = pickle_call(job.tool, job.arguments)
            self.main = _main_file() if b"__main__" in self.target else None
            result = _result(self._ready_worker(self.main).call(request, job))
        except WorkerError as error:
            result = error_result(CallStatus.TOOL_ERROR, str(error))
        except OSError as error:
            message = f"no worker process for {job.tool.name}: {error}"
            result = error_result(CallStatus.TOOL_ERROR, message)
        except BaseException as error:
            result = error_result(CallStatus.TOOL_ERROR, describe_exception(error))
        finally:
            if self.worker is not None and not self.worker.alive():
                self.worker.close()
                self.worker = None
        return replace(result, seconds=job.seconds())

    def _ready_worker(self, main: str | None) -> Worker:
        worker = self.worker
        if worker is None or not worker.alive() or (main is not None and worker.main is None):
            if worker is not None:
                worker.close()
            worker = self.worker = Worker()
            worker.start(main)
        return worker

    def rest(self) -> None:
        # The worker was killed: the next one starts and imports the tool while nobody waits for it.
        if self.worker is None and self.target is not None:
            with contextlib.suppress(WorkerError, OSError):
                self._ready_worker(self.main).load(self.target)

    def interrupt(self) -> bool:
        worker = self.worker
        if worker is not None:
            worker.kill()
        return worker is not None

    def end(self) -> None:
        if self.worker is not None:
            self.worker.close()


class ProcessLane(ThreadLane):
    """At most `limit` worker processes, each with a thread that waits for it; both start when they are needed."""

    slot_type = ProcessSlot

    def clock(self, job: Job) -> None:
        job.begin(START_LIMIT)


def pickle_call(tool: Tool, arguments: dict[str, Any]) -> tuple[bytes, bytes]:
    """The call for a worker, and its function alone.

    Raises WorkerError where the function or an argument cannot travel.
    """
    positional, keywords = tool.signature.spread(arguments)
    function: Any = tool.function
    reduced = tool.__reduce__()
    # The name of a decorated function means the tool: pickle would refuse the function behind it.
    target = reduced[1] if reduced[0].__name__ == "_look_up" else function
    try:
        alone = pickle.dumps((target, None, None))
    except Exception as error:
        where = getattr(function, "__qualname__", type(function).__qualname__)
        raise WorkerError(
            f"{tool.name} runs in a process, so its function must be importable (defined at the top of a "
            f"module), and {where} is not: {describe_exception(error)}"
        ) from None
    try:
        return pickle.dumps((target, positional, keywords)), alone
    except Exception as error:
        raise WorkerError(
            f"{tool.name} runs in a process, where an argument cannot be sent: {describe_exception(error)}"
        ) from None


def _result(answer: dict[str, Any]) -> ToolResult:
    if isinstance(answer.get("failed"), str):
        return error_result(CallStatus.TOOL_ERROR, answer["failed"])
    text, error = answer.get("text"), answer.get("error")
    if not isinstance(text, str):
        raise WorkerError("the worker process sent no result")
    status = CallStatus(error) if error is not None else None
    reward = float(answer.get("reward", 0.0))
    said = answer.get("answer")
    ended = answer.get("terminate") is True
    return to_result(ToolResult(text, status, ended, reward, answer=said if isinstance(said, str) else None))


def _main_file() -> str:
    """The script that this process runs; a worker imports it under another name."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    if path is None:
        raise WorkerError(
            "the tool is defined in an interactive session, where a worker process cannot import it; "
            "move its function to a module"
        )
    return str(Path(path).absolute())


def _read(stream: IO[bytes], size: int) -> bytes:
    """Up to `size` bytes; fewer only where the stream ends."""
    try:
        return stream.read(size)
    except (OSError, ValueError):
        return b""


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has, without reaping it where the system can tell: its group may still have to be killed."""
    if process.returncode is not None:
        return True
    if sys.platform == "win32" or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
