"""Tasks as a function of a seed: the same for the same seed, well formed, and of one split only."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.checker.bench import Bench, Broken, generators_state, global_generators
from toolstep.envs.checker.observe import CONTROL
from toolstep.envs.checker.report import Report
from toolstep.envs.tasks.base import Split, TaskError, TaskSet
from toolstep.envs.tasks.lists import TaskList
from toolstep.envs.tools.encode import NotJSONError, encode, shorten
from toolstep.envs.types import Message, Task

# An env draws the seeds of its tasks from all of 63 bits.
LARGE = (2**32, 2**63 - 1)
_ROLES = ("system", "user", "assistant", "tool")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def draw(
    tasks: TaskSet, split: Split, seeds: Sequence[int], bench: Bench, timeout: float, report: Report
) -> list[Task]:
    """The tasks of these seeds, each drawn twice; [] where there is no such split."""
    found: list[Task] = []
    for seed in seeds:
        title = f"task({seed}, {split!r})"
        try:
            task = _one(tasks, seed, split, title, bench, timeout, report)
        except Broken as broken:
            if isinstance(broken.error, TaskError) and seed == seeds[0]:
                fix = "Without one, evaluations are made on training tasks." if split == "test" else ""
                report.add(f"no-{split}-split", "note", f"split {split!r}", f"There is none: {broken.error}", fix)
                return []
            code = "hangs" if broken.hangs else "raises"
            fix = "task() must work for any seed from 0 to 2**63 - 1."
            if seed in LARGE:
                fix += " numpy's and other generators take 32 bits: give them seed % 2**32, or random.Random(seed)."
            report.add(code, "error", f"task, split {split!r}", str(broken), fix, title)
            if broken.hangs:
                break
            continue
        if task is not None:
            found.append(task)
    return found


def _one(
    tasks: TaskSet, seed: int, split: Split, title: str, bench: Bench, timeout: float, report: Report
) -> Task | None:
    def drawn() -> tuple[Any, bool]:
        before = generators_state()
        return tasks.task(seed, split), generators_state() != before

    # Other generators of the process for each seed, so that a task which draws from them is seen to change.
    with global_generators(2 * seed % 2**32):
        task, moved = bench.run(title, drawn, timeout)
    if not isinstance(task, Task):
        what = f"{title} is a {type(task).__name__}, not a Task: {shorten(repr(task), 80)}"
        report.add("bad-task", "error", "task", what, "Return toolstep.envs.Task(id, messages, answer).", title)
        return None
    with global_generators((2 * seed + 1) % 2**32):
        again, _ = bench.run(title, drawn, timeout)
    if difference := _difference(task, again):
        with global_generators(2 * seed % 2**32):
            third, _ = bench.run(title, drawn, timeout)
        shared = moved and not _difference(task, third)
        report.add(
            "global-random" if shared else "nondeterministic",
            "error",
            f"task, split {split!r}",
            f"The same seed gives another task the second time: {difference}. "
            + ("It draws from the generator that the whole process shares." if shared else ""),
            "Draw everything from random.Random(seed) or numpy.random.default_rng(seed), sort sets, and read no clock.",
            title,
        )
    elif moved:
        report.add(
            "global-random",
            "error",
            f"task, split {split!r}",
            "It seeds or draws from the generator that the whole process shares, so that it changes what other rows "
            "and other programs draw.",
            "Draw from random.Random(seed) or numpy.random.default_rng(seed).",
            title,
        )
    return task


def _difference(a: Task, b: Task) -> str:
    """In which field two tasks differ, and how; "" where they are the same."""
    for name in ("id", "messages", "answer", "tools", "tags", "data"):
        one, two = getattr(a, name), getattr(b, name)
        if not _same(one, two):
            return f"{name} is {shorten(repr(one), 120)} and then {shorten(repr(two), 120)}"
    return ""


def _same(a: Any, b: Any) -> bool:
    try:
        if bool(a == b):
            return True
    except Exception as error:  # arrays have no single truth
        del error
    try:
        return pickle.dumps(a) == pickle.dumps(b)
    except Exception:
        return _ADDRESS.sub("", repr(a)) == _ADDRESS.sub("", repr(b))


def check_form(tasks: Sequence[Task], report: Report) -> None:
    """Each task can be shown, written as JSON, and told from others."""
    ids: dict[str, Task] = {}
    for task in tasks:
        where = f"task {task.id!r:.60}"
        for what, fix in _flaws(task):
            report.add("bad-task", "error", where, what, fix)
        other = ids.setdefault(str(task.id), task)
        if other.messages != task.messages or not _same(other.answer, task.answer):
            report.add(
                "same-id",
                "error",
                where,
                f"Two different tasks have this id: {_asked(other)!r:.80} and {_asked(task)!r:.80}.",
                "Put the seed, or a hash of the content, into the id.",
            )
        marks = sorted(
            {mark for m in task.messages if isinstance(m, Message) for mark in CONTROL.findall(str(m.content))}
        )
        if marks:
            report.add(
                "control-tokens",
                "warning",
                where,
                f"Its messages hold what chat templates write between messages: {', '.join(map(repr, marks[:5]))}. "
                "They stay text here; other programs are not so careful.",
                "Strip such marks.",
            )


def _flaws(task: Task) -> list[tuple[str, str]]:
    """(what is wrong, how to mend it)."""
    out = []
    if not isinstance(task.id, str) or not task.id:
        out.append((f"its id must be a text, found {task.id!r:.60}", "Give it one that tells it from the others."))
    if not task.messages or not all(isinstance(m, Message) for m in task.messages):
        out.append(("its messages must be toolstep.envs.Message objects, at least one", "Message('user', '...')"))
        return out
    for m in task.messages:
        if m.role not in _ROLES or not isinstance(m.content, str):
            out.append((f"a message needs a role of {_ROLES} and text, found {m!r:.120}", "Message('user', '...')"))
    last = task.messages[-1]
    if last.role not in ("user", "tool"):
        out.append((f"an agent acts next, but the last message is from {last.role!r}", "End with the user's message."))
    elif not str(last.content).strip():
        out.append(("its last message is empty", "Ask something."))
    if not isinstance(task.tags, Mapping) or not all(isinstance(x, str) for pair in task.tags.items() for x in pair):
        out.append((f"its tags must be text: {task.tags!r:.80}", "tags={'level': '1'}"))
    try:
        encode(task.answer)
    except NotJSONError as error:
        out.append((f"its answer cannot be written as JSON: {error}", "Keep it as text, numbers, lists and dicts."))
    return out


def check_splits(train: Sequence[Task], test: Sequence[Task], report: Report) -> None:
    """No problem is in both splits, as far as the drawn ones tell."""
    known = {_asked(task): task for task in train}
    shared = [(known[_asked(task)], task) for task in test if _asked(task) in known]
    if shared:
        one, two = shared[0]
        report.add(
            "splits-overlap",
            "error",
            "splits",
            f"{len(shared)} of {len(test)} test tasks are training tasks as well, such as {one.id!r} and {two.id!r}: "
            f"{shorten(_asked(one), 120)!r}. Evaluations would measure memory.",
            "Split by content: draw again until hash(problem) % 16 falls into the part that was asked for "
            "(toolstep.envs.tasks.ProceduralTasks does so).",
        )


def check_variety(tasks: TaskSet, train: Sequence[Task], report: Report) -> None:
    """Different seeds give different problems, but for lists."""
    different = len({_asked(task) for task in train})
    report.checks[-1].detail += f", {different} different" if train else ""
    if not isinstance(tasks, TaskList) and len(train) > 3 and different == 1:
        report.add(
            "one-task",
            "warning",
            "task",
            f"{len(train)} seeds all gave the same problem: {shorten(_asked(train[0]), 120)!r}.",
            "Draw from random.Random(seed).",
        )


def _asked(task: Task) -> str:
    """What the agent is asked, blanks and case aside."""
    return " ".join(" ".join(str(m.content) for m in task.messages if m.role != "system").casefold().split())


def digest(tasks: TaskSet, seeds: Sequence[int]) -> list[str]:
    """What a model would see of the training tasks of these seeds, to be compared with another process."""
    drawn = [tasks.task(seed, "train") for seed in seeds]
    return [encode([t.id, [m.to_dict() for m in t.messages], t.answer, dict(t.tags)]) for t in drawn]
