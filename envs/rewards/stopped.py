"""Verification that is stopped for real: foreign text can hang a pattern, and no thread could stop it."""

from __future__ import annotations

import json
import logging
import pkgutil
from collections.abc import Callable
from typing import Any

from toolstep.envs.rewards.rubric import RewardError
from toolstep.envs.rewards.verifiers import Verifier
from toolstep.envs.tools.process_limits import CPU_SIGNAL, limited_cpu
from toolstep.envs.types import CallStatus, ToolCall, ToolResult

WAIT = 60.0  # seconds on the wall for what has `timeout` seconds of processor time, on a machine that is busy
START_LIMIT = 60.0  # seconds for a process to import what verifies
ATTEMPTS = 3  # at starting one

_logger = logging.getLogger("toolstep")


def judge(where: str, answer: str, expected: Any, seconds: float) -> Any:
    """Call the function at "module:name", in the worker process."""
    function = pkgutil.resolve_name(where)
    with limited_cpu(seconds):
        return function(answer, expected)


class StoppedVerifier(Verifier):
    """A verifier whose work is done by a function in a worker process, which is killed where it overruns.

    timeout: seconds of processor time for one answer, so that a busy machine changes no verdict.

    An answer that takes longer, or that ends the process twice, is not right (the log says so); what could not be
    verified for another reason is a RewardError, which ends the episode with status "env_error".  The process starts
    with the first answer and ends with `close`; one serves all rows, one after the other.
    """

    #: Called in the process with (answer, expected); importable.  Says whether it is right; None: it cannot tell that
    #: from what is expected.
    function: Callable[[str, Any], bool | None]
    #: Arguments that it takes without any trouble.
    harmless: tuple[str, Any]

    def __init__(self, *, timeout: float) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            raise ValueError(f"reward {self.name!r}: timeout must be a finite number of seconds > 0, got {timeout!r}")
        self.timeout = float(timeout)
        self._executor: Any = None
        self._tool: Any = None
        self._warm = False

    def verify(self, answer: str, expected: Any) -> bool:
        for _ in range(2):
            self._warm_up()
            result = self._run(answer, expected, self.timeout)
            self._warm = result.error is None
            if result.error is None:
                right = json.loads(result.content)
                if right is None:
                    raise RewardError(f"reward {self.name!r} cannot read what is expected: {expected!r:.80}")
                return bool(right)
            if result.error is CallStatus.TOOL_TIMEOUT or CPU_SIGNAL in result.content:
                _logger.warning("reward %r: an answer was not verified within %g s: not right", self.name, self.timeout)
                return False
        _logger.warning("reward %r: an answer ended the process that verified it, twice: not right", self.name)
        return False

    def _warm_up(self) -> None:
        """Let a fresh process import what it needs: that is not the answer's time."""
        if self._warm:
            return
        for _ in range(ATTEMPTS):
            result = self._run(*self.harmless, START_LIMIT)
            if result.error is None:
                self._warm = True
                return
        raise RewardError(f"reward {self.name!r} cannot be had: {json.loads(result.content)['message']}")

    def _run(self, answer: str, expected: Any, seconds: float) -> ToolResult:
        from toolstep.envs.tools import BoundCall, Executor, tool

        if self._executor is None:
            self._executor = Executor(1)
            self._tool = tool(judge, run_in="process")
        function = type(self).function
        where = f"{function.__module__}:{function.__qualname__}"
        arguments = {"where": where, "answer": answer, "expected": expected, "seconds": seconds}
        bound = BoundCall(ToolCall("", self.name), self._tool, arguments)
        result: ToolResult = self._executor.run([bound], timeout=seconds + WAIT)[0]
        return result

    def close(self) -> None:
        executor, self._executor, self._warm = self._executor, None, False
        if executor is not None:
            executor.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_executor": None, "_tool": None, "_warm": False}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(timeout={self.timeout:g})"
