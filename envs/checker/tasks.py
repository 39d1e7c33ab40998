"""`check_task`: whether a task set can be learnt from and measured with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

from toolstep.envs.checker.answers import GARBAGE, HOSTILE, canary
from toolstep.envs.checker.bench import Bench, Broken
from toolstep.envs.checker.drawn import LARGE, check_form, check_splits, check_variety, draw
from toolstep.envs.checker.playing import MOST_TURNS, check_oracle
from toolstep.envs.checker.report import Report, finished
from toolstep.envs.checker.shop import MAKE_LIMIT
from toolstep.envs.tasks import load_tasks
from toolstep.envs.tasks.base import Split, TaskSet
from toolstep.envs.tools.encode import shorten
from toolstep.envs.tools.factory import EpisodeInfo, Offer, Toolbox, as_offer
from toolstep.envs.tools.owner import SharedStateError
from toolstep.envs.types import EpisodeRecord, Message, StopReason, Task

_SCORED = 8  # tasks whose score function is tried


def check_task(
    tasks: Any,
    *,
    tools: Sequence[Any] = (),
    seeds: int = 40,
    episodes: int = 5,
    timeout: float = 10.0,
    quiet: bool = False,
    raises: bool = False,
    bench: Bench | None = None,
    **options: Any,
) -> Report:
    """Look at a task set: its tasks, its splits, its tools, its oracle and its score function.

    Args:
        tasks: what `tasks=` of an env takes: a TaskSet, a list of tasks, a function of a seed, a registered name, or
            a *.jsonl file.
        tools: offered in addition to the set's own, as in `ToolUseEnv(tools=)`.
        seeds: tasks that are drawn of each split.  episodes: that the oracle plays of each split.
        timeout: seconds for a task to be drawn, or an answer to be scored.
        quiet: print nothing.  raises: raise CheckFailed where there is an error.
        bench: where the set's code is run; for those who run several checks.
        **options: of the task set, where it is named.

    What is checked: the same seed gives the same task, for any seed, without the generators that the process shares;
    tasks are well formed and told apart by their ids; no task is in both splits; each episode gets tools of its own;
    the oracle, where there is one, reaches a score of 1; wrong answers get 0; no text makes the score function raise,
    hang, leave [0, 1], or run it as a program.
    """
    own = bench or Bench()
    report = Report("task", _subject(tasks), told=own.journal)
    try:
        _look(tasks, tools, options, seeds, episodes, timeout, own, report)
    finally:
        if bench is None:
            own.close()
    return finished(report, quiet=quiet, raises=raises)


def _look(
    given: Any,
    tools: Sequence[Any],
    options: dict[str, Any],
    seeds: int,
    episodes: int,
    timeout: float,
    bench: Bench,
    report: Report,
) -> None:
    report.begin("it is a task set")
    try:
        tasks = bench.run("making the task set", lambda: load_tasks(given, **options), MAKE_LIMIT)
        offers = bench.run("making its tools", lambda: [as_offer(t) for t in tools], MAKE_LIMIT)
    except Broken as broken:
        report.add(
            "hangs" if broken.hangs else "not-a-task-set", "error", report.subject, str(broken), "See what it names."
        )
        return
    report.checks[-1].detail = type(tasks).__name__
    report.begin("tasks")
    train = draw(tasks, "train", [*range(seeds), *LARGE], bench, timeout, report)
    test = [] if bench.left_behind else draw(tasks, "test", [*range(seeds), *LARGE], bench, timeout, report)
    some = train or test
    report.checks[-1].detail = f"{len(train)} of training, {len(test)} of test"
    check_form([*train, *test], report)
    check_variety(tasks, some, report)
    if not some and report.ok:
        report.add("no-tasks", "error", report.subject, "It has no task in either split.", "See what the notes say.")
    report.begin("splits")
    check_splits(train, test, report)
    if not some or bench.left_behind:
        return
    report.begin("tools")
    report.checks[-1].detail = _tools(tasks, offers, some[0], timeout, bench, report)
    report.begin("oracle")
    if {"raises", "hangs", "shared-state"} & set(report.codes):
        report.checks[-1].detail = "not looked at: not every episode can begin"
    else:
        drawn: tuple[tuple[Split, list[Task]], ...] = (("train", train), ("test", test))
        splits = [split for split, found in drawn if found]
        played = [len(_episodes(tasks, tools, split, episodes, bench, report)) for split in splits]
        report.checks[-1].detail = f"{sum(played)} episodes" if any(played) else "none"
    report.begin("score")
    report.checks[-1].detail = _scores(tasks, offers, some[:_SCORED], timeout, bench, report)


def _tools(tasks: TaskSet, extra: Sequence[Offer], task: Task, timeout: float, bench: Bench, report: Report) -> str:
    """Two episodes of one task at the same time have tools of their own, and all that the task names."""

    def both() -> list[str]:
        boxes = []
        try:
            for _ in range(2):
                boxes.append(Toolbox(tasks.tools(task), extra, EpisodeInfo(task, 0, timeout, tasks.picks_tools)))
            return list(boxes[0].tools)
        finally:
            for box in boxes:
                box.close()

    try:
        names = bench.run(f"tools({task.id!r})", both, MAKE_LIMIT)
    except Broken as broken:
        if isinstance(broken.error, SharedStateError):
            fix = "Make new objects in tools(task), or return a factory: per_episode(Basket)."
            report.add("shared-state", "error", "tools", str(broken.error), fix)
        else:
            code = "hangs" if broken.hangs else "raises"
            report.add(code, "error", "tools", str(broken), "tools(task) must work for every task.", task.id)
        return "none"
    missing = [name for name in task.tools or () if name not in names]
    if missing:
        own = f"tools(task) gives {', '.join(names) or 'none'}"
        what = f"Task {task.id!r} names the tools {', '.join(missing)}, which are not on offer: {own}."
        report.add("unknown-tool", "error", "tools", what, "Spell Task.tools as the tools are named, or leave it None.")
    return ", ".join(names) or "none"


def _episodes(tasks: TaskSet, tools: Sequence[Any], split: Split, n: int, bench: Bench, report: Report) -> list[Any]:
    from toolstep.envs.tool_use import ToolUseEnv

    where = f"oracle, split {split!r}"
    try:
        env = bench.run(
            "making an env", lambda: ToolUseEnv(tasks, list(tools), split=split, max_turns=MOST_TURNS), MAKE_LIMIT
        )
    except Broken as broken:
        report.add("env-error", "error", where, str(broken), "See what the message names.")
        return []
    found = check_oracle(env, range(n), bench, report, where)
    bench.run("close()", env.close, MAKE_LIMIT)
    return found


# ---------------------------------------------------------------------------------------------------- scoring
def _scores(
    tasks: TaskSet, extra: Sequence[Offer], some: Sequence[Task], timeout: float, bench: Bench, report: Report
) -> str:
    judge = _Judge(tasks, extra, timeout, bench, report)
    try:
        judge.wrong(some)
        for task in some[:2]:
            judge.hostile(task)
    except Broken:  # told already; what hangs once is not asked again
        pass
    return f"{judge.count} answers"


class _Judge:
    """Scores answers of episodes in which nothing else was done."""

    def __init__(self, tasks: TaskSet, extra: Sequence[Offer], timeout: float, bench: Bench, report: Report) -> None:
        self.tasks, self.extra, self.timeout, self.bench, self.report = tasks, extra, timeout, bench, report
        self.count = 0
        self._states: dict[str, Any] = {}

    def score(self, task: Task, answer: str) -> float | None:
        """None for a score that is none; it is told then.  Raises Broken where scoring hangs."""
        self.count += 1
        record = EpisodeRecord(
            task, (*task.messages, Message("assistant", answer)), StopReason.ANSWERED, 1, state=self._state(task)
        )
        shown = f"answer {shorten(repr(answer), 80)} to {shorten(task.id, 60)}"
        try:
            value = self.bench.run("score()", lambda: self.tasks.score(record), self.timeout)
        except Broken as broken:
            if broken.hangs:
                fix = "Bound what it computes: never evaluate an answer, and limit its length before parsing."
                self.report.add("score-hangs", "error", "score", str(broken), fix, shown)
                raise
            fix = "A score function must stand any text: what it cannot read is wrong, and scores 0.0."
            self.report.add("score-raises", "error", "score", str(broken), fix, shown)
            return None
        if not isinstance(value, Real) or not math.isfinite(value) or not 0 <= float(value) <= 1:
            what = f"score() gave {value!r:.60}; expected a number in [0, 1]"
            self.report.add("score-range", "error", "score", what, "Return 1.0 for right, 0.0 for wrong.", shown)
            return None
        return float(value)

    def wrong(self, some: Sequence[Task]) -> None:
        """Answers that are wrong for a task."""
        echoed = passed = asked = 0
        for task in some:
            for answer in GARBAGE:
                if answer.casefold() != str(task.answer).casefold():
                    self._is_zero(task, answer)
            echoed += self.score(task, task.messages[-1].content) == 1.0
            others = [t for t in some if str(t.answer) != str(task.answer) and t.answer is not None]
            for other in others[:2]:
                asked += 1
                passed += self.score(task, str(other.answer)) == 1.0
        if len(some) > 1 and echoed == len(some) and "wrong-answer-scores" not in self.report.codes:
            self.report.add(
                "echo-scores",
                "warning",
                "score",
                f"Repeating the question counts as a right answer in all of {len(some)} tasks.",
                "Look for the answer where an answer states it (its last number, its last words), not anywhere in it.",
            )
        if asked > 2 and passed > asked / 2:
            self.report.add(
                "wrong-answer-scores",
                "error",
                "score",
                f"The right answer of another task was right in {passed} of {asked} cases.",
                "Compare with task.answer, not with the form of an answer.",
            )

    def _is_zero(self, task: Task, answer: str) -> None:
        score = self.score(task, answer)
        if score is None or score == 0:
            return
        full = score >= 1
        self.report.add(
            "wrong-answer-scores" if full else "garbage-scores",
            "error" if full else "warning",
            "score",
            f"The answer {answer!r} scores {score:g} where {shorten(repr(task.answer), 80)} is expected.",
            "A wrong answer scores 0.0: what is learnt from this is to say nothing."
            if full
            else "Give nothing for garbage: a learner that cannot solve the task learns to collect it.",
            f"answer {answer!r} to {task.id}",
        )

    def hostile(self, task: Task) -> None:
        """Texts that are meant to do harm.  Where programs are run, no further ones are tried: some would never end."""
        with canary() as bird:
            for answer in bird.answers:
                self.score(task, answer)
                if bird.sang():
                    self.report.add(
                        "evaluates-answers",
                        "error",
                        "score",
                        "It runs the answer of the model as a program (eval, exec, sympy.parse_expr or the like).",
                        "Parse answers: float(), json.loads(), ast.literal_eval() of a short text; never eval.",
                        f"answer {shorten(answer, 60)!r}",
                    )
                    return
        for answer in HOSTILE:
            self.score(task, answer)

    def _state(self, task: Task) -> Any:
        """What untouched tools leave behind."""
        if task.id not in self._states:
            self._states[task.id] = self.bench.run("snapshot()", lambda: self._snapshot(task), MAKE_LIMIT)
        return self._states[task.id]

    def _snapshot(self, task: Task) -> Any:
        try:
            info = EpisodeInfo(task, 0, self.timeout, self.tasks.picks_tools)
            box = Toolbox(self.tasks.tools(task), self.extra, info)
        except Exception:  # told by the check of the tools
            return {}
        try:
            return box.snapshot()
        finally:
            box.close()


def _subject(tasks: Any) -> str:
    if isinstance(tasks, str):
        return tasks
    if isinstance(tasks, list | tuple):
        return f"list of {len(tasks)} tasks"
    return str(getattr(tasks, "__name__", "") or type(tasks).__name__)
