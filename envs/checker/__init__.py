"""Checks of users' own tools, task sets and envs: what breaks, what shows it, and how to mend it.

    check_tool(add)
    check_task(MyTasks())
    check_env("my/Env-v0")

Each prints a report and returns it; `raises=True` raises where something is wrong.  On the command line, in a process
of its own: `toolstep check MODULE:OBJECT`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.envs.checker.env import check_env as check_env
    from toolstep.envs.checker.report import Check as Check
    from toolstep.envs.checker.report import CheckFailed as CheckFailed
    from toolstep.envs.checker.report import Finding as Finding
    from toolstep.envs.checker.report import Report as Report
    from toolstep.envs.checker.tasks import check_task as check_task
    from toolstep.envs.checker.tools import check_tool as check_tool

# Imported where they are first used: a worker process loads the observer alone.
_NAMES = {
    "Check": "report",
    "CheckFailed": "report",
    "Finding": "report",
    "Report": "report",
    "check_env": "env",
    "check_task": "tasks",
    "check_tool": "tools",
}
__all__ = ["Check", "CheckFailed", "Finding", "Report", "check_env", "check_task", "check_tool"]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_NAMES[name]}"), name)
