"""A server as a child process: in a session of its own, and gone with everything it started when it is not wanted."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MAX_LAST_WORDS = 4_000  # characters of a server's stderr that are kept
POLL = 0.01  # seconds between two looks whether a process has ended

log = logging.getLogger("toolstep.mcp")


class ServerProcess:
    """A running program, its pipes, and its process group.

    Its leader is not reaped before `reap`, so that the number of the group stays ours to kill.  Where this process ends
    without a word (SIGKILL), Linux kills the group; elsewhere the server sees the end of its input.  A server that
    starts something in yet another session is beyond reach.

    Raises OSError where the program cannot be started.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str | Path | None) -> None:
        self.command = list(command)
        self._lock = threading.Lock()
        self._last_words = ""
        line = _Lifeline()
        try:
            self._process = subprocess.Popen(  # noqa: S603  a list of arguments, no shell
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env),
                cwd=cwd,
                bufsize=0,
                start_new_session=True,
                pass_fds=line.inherited,
            )
        except BaseException:
            line.close()
            raise
        line.tie(self._process.pid)
        self._lifeline = line
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdin, self.stdout, self.stderr = self._process.stdin, self._process.stdout, self._process.stderr

    @property
    def pid(self) -> int:
        """Number of the process, and of its group."""
        return self._process.pid

    def hear(self, text: str) -> None:
        """Keep what the server wrote to stderr: the end of it, and all of it in the log at level DEBUG."""
        self._last_words = (self._last_words + text)[-MAX_LAST_WORDS:]
        for line in text.splitlines():
            log.debug("%s[%d]: %s", Path(self.command[0]).name, self.pid, line)

    def last_words(self) -> str:
        """The last lines of its stderr, for an error message; "" if there are none."""
        lines = [line.strip() for line in self._last_words.splitlines() if line.strip()]
        return " | ".join(lines[-5:])

    def ended(self) -> bool:
        """Whether the leader has ended; it is not reaped by asking."""
        if self._process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):
            return self._process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """Kill the whole group at once, without waiting; from any thread, any number of times."""
        with self._lock:
            if self._process.returncode is None:
                _signal(self._process, hard=True)

    def terminate(self) -> None:
        """Ask the group to end (SIGTERM)."""
        with self._lock:
            if self._process.returncode is None:
                _signal(self._process, hard=False)

    def reap(self, patience: float = 2.0) -> int | None:
        """Kill what is left of the group, collect the leader's exit code, close our ends.  None: it will not die."""
        until = time.monotonic() + patience
        self.kill()
        while not self.ended() and time.monotonic() < until:
            time.sleep(POLL)
        with self._lock:
            code = self._process.poll() if self.ended() else None
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                pipe.close()
        self._lifeline.close()
        return code


def how_it_ended(code: int | None) -> str:
    """ "exit code 3", "signal SIGKILL"."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _signal(process: subprocess.Popen[bytes], *, hard: bool) -> None:
    if sys.platform == "win32":
        command = ["taskkill", "/T", "/PID", str(process.pid), *(["/F"] if hard else [])]
        subprocess.run(command, capture_output=True, check=False)  # noqa: S603  a number of our own
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL if hard else signal.SIGTERM)


class _Lifeline:
    """A pipe of which this process alone holds the writing end, whatever happens to it.

    The server inherits the reading end, and Linux sends SIGKILL to the server's group when the writing end closes.
    """

    def __init__(self) -> None:
        self.inherited: tuple[int, ...] = ()
        self._ours = -1
        if sys.platform == "linux":
            read, self._ours = os.pipe()  # not inheritable; `pass_fds` makes the reading end so for the child alone
            self.inherited = (read,)

    def tie(self, group: int) -> None:
        if sys.platform == "linux":
            import fcntl

            (read,) = self.inherited
            fcntl.fcntl(read, fcntl.F_SETOWN, -group)
            fcntl.fcntl(read, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | fcntl.FASYNC)
            os.close(read)
            self.inherited = ()

    def close(self) -> None:
        for descriptor in (*self.inherited, self._ours):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.inherited, self._ours = (), -1
