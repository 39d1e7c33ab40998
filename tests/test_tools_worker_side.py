"""Functions that `test_tools_process.py` runs in worker processes.

A module of its own, without pytest, so that workers start quickly.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def double(x: int) -> int:
    return 2 * x


def spin() -> None:
    while True:
        try:
            while True:
                pass
        except BaseException:  # catches everything that can be caught
            pass


def backtrack() -> bool:
    return bool(re.match(r"(a+)+$", "a" * 60 + "b"))  # holds the interpreter's lock until the end of time


def with_child(path: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(f"{os.getpid()} {child.pid}")
    child.wait()


def leave(how: str) -> Any:
    print("not an answer")
    if how == "exit":
        sys.exit(3)
    elif how == "_exit":
        os._exit(4)
    elif how == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "interrupt":
        raise KeyboardInterrupt
    elif how == "object":
        return object()
    elif how == "raise":
        raise ValueError("no such city")
    elif how == "surrogate":
        return "\ud800"
    elif how == "end":
        from toolstep.envs.types import ToolResult

        return ToolResult("bye", terminate=True, reward=0.5)
    elif how == "close":
        os.closerange(3, 50)
    return how * 10_000_000


def where() -> int:
    return os.getpid()


async def coroutine(x: int) -> int:
    return x


def plain(x: int) -> int:
    return x
