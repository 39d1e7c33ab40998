"""Generated task sets: levels, and splits that are disjoint on content."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from toolstep.envs.tasks.base import Split, TaskError, TaskSet, check_seed, check_split
from toolstep.envs.tasks.draw import Draw, content_hash
from toolstep.envs.types import Message, Task

# Sixteenths of all problems, by the hash of their content: worked examples are kept apart from what is asked.
_SLICES: dict[str, range] = {"example": range(1), "test": range(1, 4), "train": range(4, 16)}
_MAX_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Problem:
    """One generated problem.  Two with the same `key` are the same problem, whatever their wording."""

    key: str
    prompt: str
    answer: Any
    data: Any = None
    tools: tuple[str, ...] | None = None


def slice_of(key: str) -> Literal["example", "test", "train"]:
    """The part of a generated set that the problem `key` belongs to, whatever the seed and the options."""
    part = content_hash(key) % 16
    return "example" if part in _SLICES["example"] else "test" if part in _SLICES["test"] else "train"


class ProceduralTasks(TaskSet):
    """A task set that draws its problems.

    `level` is 1, 2 or 3, or None for a level drawn for each seed.  The hash of a problem's key decides its split and
    the draw is repeated until it falls into the one that was asked for: the splits cannot overlap, whatever the seeds.
    """

    levels: tuple[int, ...] = (1, 2, 3)

    def __init__(self, *, level: int | None = None) -> None:
        if level is not None and (isinstance(level, bool) or level not in self.levels):
            known = ", ".join(map(str, self.levels))
            raise TaskError(f"{self.name}: level must be one of {known}, or None for a mixture; got {level!r}")
        self.level = level

    @abstractmethod
    def draw(self, draw: Draw, level: int) -> Problem:
        """One problem of `level`, a pure function of the stream `draw`."""

    def task(self, seed: int, split: Split = "train") -> Task:
        return self._task(check_seed(seed), check_split(split))

    def example(self, seed: int) -> Task:
        return self._task(check_seed(seed), "example")

    def _task(self, seed: int, part: Literal["example", "test", "train"]) -> Task:
        draw = Draw(seed, f"{self.name} {self.level} {part}")
        level = self.level if self.level is not None else draw.choice(self.levels)
        for _ in range(_MAX_DRAWS):
            problem = self.draw(draw, level)
            if slice_of(problem.key) == part:
                break
        else:
            raise TaskError(
                f"{self.name}: {_MAX_DRAWS} draws at level {level} gave no problem of the part {part!r}; "
                f"the generator has too few different problems"
            )
        system = (Message("system", self.system),) if self.system else ()
        mixed = "" if self.level is None else f"level{self.level}/"
        return Task(
            id=f"{self.name}/{mixed}{part}/{seed}",
            messages=(*system, Message("user", problem.prompt)),
            answer=problem.answer,
            tools=problem.tools,
            tags={"level": str(level)},
            data=problem.data,
        )
