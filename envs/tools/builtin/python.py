"""`python`: code that the model writes, in a sandbox; there is no way to run it without one."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Literal

from toolstep.envs.tools.builtin import cpython, monty
from toolstep.envs.tools.builtin.clock import NOW
from toolstep.envs.tools.builtin.report import cut
from toolstep.envs.tools.builtin.sandbox import Interpreter, Ran, SandboxError
from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.result import error_result
from toolstep.envs.tools.tool import tool
from toolstep.envs.types import CallStatus, ToolResult

Backend = Literal["monty", "cpython"]

MAX_CODE = 20_000  # characters
_FENCE = re.compile(r"```[\w.+-]*+[ \t]*+\n")
_LOST = "[the interpreter was started anew: variables and functions of earlier calls are gone]"


class Python(ToolFactory):
    """A tool `python(code)` that runs code in a sandbox and keeps its variables until the episode ends.

    backend: "monty" is pydantic-monty (extra `sandbox`): a part of Python, on every system.  "cpython" is this Python
        with its standard library, in a process locked up by Landlock, seccomp and resource limits: Linux only.
    timeout: seconds of one call; never more than four fifths of the env's `tool_timeout`, so that the sandbox is
        stopped by itself and not given up.
    memory_mb: what the code may take.  max_output: characters of a result; of longer ones the middle is left out.
    packages: the packages that are installed for this Python can be imported, numpy say ("cpython" only).
    now: what the clock shows all the time.  Random numbers are decided by the episode's seed; sleeping takes no time.

    Raises:
        SandboxError: there is no such sandbox here.
    """

    def __init__(
        self,
        backend: Backend = "monty",
        *,
        timeout: float = 5.0,
        memory_mb: int = 256,
        max_output: int = 3_000,
        packages: bool = False,
        now: datetime = NOW,
        name: str = "python",
    ) -> None:
        reasons = {"monty": monty.missing, "cpython": cpython.missing}
        if backend not in reasons:
            raise ValueError(f'Python: backend must be "monty" or "cpython", got {backend!r}')
        if reasons[backend]():
            other = "cpython" if backend == "monty" else "monty"
            hint = reasons[other]()
            way_out = f"Python({other!r}) is not to be had either: {hint}" if hint else f"Python({other!r}) works here"
            raise SandboxError(f"no sandbox for Python code: {backend} can't be used, {reasons[backend]()}; {way_out}")
        if packages and backend != "cpython":
            raise ValueError('Python: packages=True needs backend="cpython"; monty has modules of its own only')
        if now.utcoffset() is None:
            raise ValueError(f"Python: now must have a time zone (tzinfo=UTC, say), got {now!r}")
        for key, value in (("timeout", timeout), ("memory_mb", memory_mb), ("max_output", max_output)):
            if not 0 < value < float("inf"):
                raise ValueError(f"Python: {key} must be a finite number > 0, got {value!r}")
        self.backend = backend
        self.timeout = timeout
        self.memory = memory_mb << 20
        self.max_output = max_output
        self.packages = packages
        self.now = now
        self.name = name
        self._pool = monty.MontyPool()

    def make(self, episode: EpisodeInfo) -> Any:
        session = self.session(episode.seed, seconds=min(self.timeout, 0.8 * episode.tool_timeout))
        description = monty.DESCRIPTION
        if self.backend == "cpython":
            description = cpython.DESCRIPTION.format(packages=" and installed packages" if self.packages else "")
        return tool(session.python, name=self.name, description=description)

    def session(self, seed: int, seconds: float | None = None) -> PythonSession:
        """An interpreter with its state; `close` it.  Task sets run hidden tests in one."""
        limit = self.timeout if seconds is None else seconds
        made: Interpreter
        if self.backend == "monty":
            made = monty.MontyInterpreter(self._pool, limit, self.memory, self.now, seed)
        else:
            made = cpython.JailedInterpreter(limit, self.memory, self.now, seed, self.max_output, self.packages)
        return PythonSession(made, limit, self.max_output)

    def close(self) -> None:
        self._pool.close()


class PythonSession:
    """One episode's interpreter.  `run` gives what happened, `python` what the model reads."""

    def __init__(self, interpreter: Interpreter, seconds: float, max_output: int) -> None:
        self._interpreter = interpreter
        self._seconds = seconds
        self._max_output = max_output

    def run(self, code: str) -> Ran:
        return self._interpreter.run(code)

    def python(self, code: str) -> ToolResult:
        """Run Python code.

        Args:
            code: The code.
        """
        code = unfenced(code)
        if not code.strip():
            return error_result(CallStatus.TOOL_ERROR, "the code is empty")
        if len(code) > MAX_CODE:
            return error_result(
                CallStatus.TOOL_ERROR, f"the code has {len(code)} characters; at most {MAX_CODE} are run"
            )
        return self.told(self.run(code))

    def told(self, ran: Ran) -> ToolResult:
        """What a model reads of a run."""
        parts = [cut(ran.output.removesuffix("\n"), self._max_output)] if ran.output.strip() else []
        if ran.timed_out:
            parts.append(f"TimeoutError: stopped after {self._seconds:g} s")
        if ran.error:
            parts.append(cut(ran.error, self._max_output))
        if ran.lost:
            parts.append(_LOST)
        error = CallStatus.TOOL_TIMEOUT if ran.timed_out else CallStatus.TOOL_ERROR if ran.error else None
        return ToolResult("\n".join(parts) or "(no output: print what you want to see)", error=error)

    def close(self) -> None:
        self._interpreter.close()


def unfenced(code: str) -> str:
    """The code inside a Markdown fence, where it stands in one; in time linear in the text."""
    text = code.strip()
    opening = _FENCE.match(text)
    if opening is None or not text.endswith("```") or len(text) < opening.end() + 3:
        return code
    return text[opening.end() : -3].rstrip(" \t").removesuffix("\n")
