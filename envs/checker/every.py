"""A target and what it consists of, each checked in its own way."""

from __future__ import annotations

from typing import Any

from toolstep.envs.checker.bench import Bench, Broken
from toolstep.envs.checker.drawn import digest
from toolstep.envs.checker.env import check_env
from toolstep.envs.checker.report import Report
from toolstep.envs.checker.shop import MAKE_LIMIT
from toolstep.envs.checker.target import Target
from toolstep.envs.checker.tasks import check_task
from toolstep.envs.checker.tools import check_tool
from toolstep.envs.tasks import load_tasks, task_names
from toolstep.envs.tasks.base import TaskSet


def check_all(
    target: Target, bench: Bench, *, timeout: float | None = None, tokenizer: str | None = None
) -> list[Report]:
    """The reports of a target: for an env that is made of a registered task set also those of the set and its tools."""
    limits: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    common: dict[str, Any] = {"quiet": True, "bench": bench}
    reports: list[Report] = []
    _tell(bench, target.kind)
    if target.kind == "tool":
        return [check_tool(target.value, **limits, **common)]
    if target.kind == "env":
        reports.append(check_env(target.value, tokenizer=tokenizer, **common))
        if not (isinstance(target.value, str) and target.value in task_names()):
            return reports
        _tell(bench, "task")
    reports.append(check_task(target.value, **limits, **common))
    tasks = _task_set(target, bench)
    if tasks is not None and _has_tools(tasks, bench):
        _tell(bench, "tool")
        reports.append(check_tool(tasks, **limits, **common))
    return reports


def digest_of(target: Target, bench: Bench, count: int) -> list[str] | None:
    """What a model would see of the first tasks; None where the target has none that can be drawn."""
    if target.kind == "tool":
        return None
    tasks = _task_set(target, bench)
    if tasks is None:
        return None
    try:
        return bench.run("drawing tasks", lambda: digest(tasks, range(count)), MAKE_LIMIT)
    except Broken:
        return None


def _tell(bench: Bench, kind: str) -> None:
    if bench.journal is not None:
        bench.journal({"kind": kind})


def _task_set(target: Target, bench: Bench) -> TaskSet | None:
    if target.kind == "env" and not (isinstance(target.value, str) and target.value in task_names()):
        return None
    try:
        return bench.run("making the task set", lambda: load_tasks(target.value), MAKE_LIMIT)
    except Broken:
        return None


def _has_tools(tasks: TaskSet, bench: Bench) -> bool:
    try:
        return bool(bench.run("tools(task(0))", lambda: list(tasks.tools(tasks.task(0))), MAKE_LIMIT))
    except Broken:
        return False
