"""What a sandbox for Python code is: something that runs code, keeps its state, and is stopped at a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class SandboxError(RuntimeError):
    """There is no sandbox of that kind here; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one run.

    output: what it printed, the value of its last line included.  error: how it failed, for the model to read; "" if it
    did not.  timed_out: it was stopped at its time limit.  lost: variables of earlier runs are gone.  started: False
    where there was no interpreter to be had, which is not the code's fault.
    """

    output: str
    error: str = ""
    timed_out: bool = False
    lost: bool = False
    started: bool = True


class Interpreter(Protocol):
    """One episode's interpreter.  `run` is called by one thread at a time, `close` by any, also during a run."""

    def run(self, code: str) -> Ran:
        """Run the code and return within the time limit; never raises for what the code does."""

    def close(self) -> None:
        """Free everything; may be called again."""
