"""toolstep/ReasoningGym-<task>-v0: puzzles of the package reasoning-gym, with a tool to work them out."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from toolstep.envs.tasks.base import TaskError, nearest
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.families import FAMILIES
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.factory import Offer
from toolstep.envs.types import EpisodeRecord, Task, Turn

_FAMILY = next(family for family in FAMILIES if family.name == "ReasoningGym")
#: What can be worked out with a calculator; everything else needs a program.
_CALCULATED = frozenset(_FAMILY.members[: _FAMILY.members.index("calendar_arithmetic")])
_MOST_CHARACTERS = 10_000  # of an answer


class ReasoningGymMissing(TaskError):
    """The package is not installed; the message says how to install it."""


class ReasoningGymTasks(ProceduralTasks):
    """Problems of one kind from reasoning-gym; the answer is the text in the last <answer> tag, or else all of it.

    config: options of the kind, for instance `{"min_terms": 2, "max_terms": 3}` for chain_sum.

    Only an answer to which reasoning-gym's scorer gives full marks is right: many scorers give a part for anything that
    looks like an answer.  A scorer that raises gives nothing.  Kinds whose scorers run the answer as code, or whose
    problems are not the same in every process, are not on the list.

    Raises:
        TaskError: a kind that is not on the list, or options that it does not have.
        ReasoningGymMissing: the package is not installed.
        SandboxError: the kind needs Python, and there is no sandbox here.
    """

    name: ClassVar[str] = "toolstep/ReasoningGym"
    system = (
        "Solve the problem, with the tool where it helps. Put the final answer, in the form that is asked for and "
        "nothing else, between <answer> and </answer>."
    )
    levels = (1,)

    def __init__(self, kind: str, *, config: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if kind not in _FAMILY.members:
            raise TaskError(f"reasoning-gym: {kind!r} is not on the list; {nearest(kind, _FAMILY.members)}")
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ReasoningGymMissing(f"the tasks of reasoning-gym need a package of 320 MB: {_FAMILY.needs}")
        self.name = _FAMILY.id(kind)  # type: ignore[misc]  # one class, many sets
        self.kind = kind
        self.config = dict(config or {})
        self._tool: Any = None
        if kind in _CALCULATED:
            from toolstep.envs.tools.calculator import calculator_tool

            self._tool = calculator_tool()
        else:
            from toolstep.envs.tools.builtin.python import Python

            self._tool = Python()
        if self.config:
            try:
                self._dataset(0)
            except (TypeError, AssertionError, ValueError) as error:
                raise TaskError(f"{self.name}: config {self.config!r} cannot be used: {error}") from error

    def tools(self, task: Task) -> Sequence[Offer]:
        return [self._tool]

    def close(self) -> None:
        if self.kind not in _CALCULATED:
            self._tool.close()

    def score(self, record: EpisodeRecord) -> float:
        answer = final_answer(record.answer)
        if not answer or len(answer) > _MOST_CHARACTERS:
            return 0.0
        try:
            # What two answers differ by can be a millionth of the score (time_intervals): full marks, and no less.
            return float(self._dataset(0).score_answer(answer, record.task.data) >= 1.0)
        except Exception:  # of the scorer, over an answer that it did not expect
            return 0.0

    def oracle(self, record: EpisodeRecord) -> Turn:
        return Turn(f"<answer>{record.task.answer}</answer>")

    def draw(self, draw: Draw, level: int) -> Problem:
        # Dataset s begins with the second item of dataset s - 1: neighbouring seeds would be nearly the same tasks.
        entry = self._dataset(draw.integer(0, 2**32 - 1))[0]
        return Problem(
            key=f"{self.name}:{entry['question']}", prompt=entry["question"], answer=entry["answer"], data=entry
        )

    def _task(self, seed: int, part: Literal["example", "test", "train"]) -> Task:
        return replace(super()._task(seed, part), tags={})  # there are no levels

    def _dataset(self, seed: int) -> Any:
        import reasoning_gym

        return reasoning_gym.create_dataset(self.kind, size=1, seed=seed, **self.config)


def final_answer(text: str) -> str:
    """What stands between the last <answer> and the </answer> behind it (or the end), else all of the text."""
    _, tag, last = text.rpartition("<answer>")
    return (last.partition("</answer>")[0] if tag else text).strip()
