"""A category of the leaderboard as a fixed list of tasks, and what its splits are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from toolstep.envs.tasks.base import Split, TaskError, TaskSet, check_seed, check_split, nearest
from toolstep.envs.tasks.bfcl.data import Entry, entries
from toolstep.envs.tasks.draw import content_hash
from toolstep.envs.types import Task


class ListedTasks(TaskSet):
    """Seed i is item i, modulo their number, so that seeds 0..n-1 are each item once.

    The leaderboard is a fixed list, made for testing: the split "test" is all of it, and there is no "train".  With
    train=0.5 about half of it, by a hash of the content, is the split "train", and no longer in "test"; items that are
    variants of each other are on the same side in every category.

    Raises:
        TaskError: no such category, or a share that is not in [0, 1).
        BFCLMissing: the package with the questions is not installed.
    """

    categories: ClassVar[tuple[str, ...]]
    limits: ClassVar[Mapping[str, Any]]

    def __init__(self, category: str, *, train: float = 0.0) -> None:
        if category not in self.categories:
            raise TaskError(f"BFCL has no category {category!r} here; {nearest(category, self.categories)}")
        if isinstance(train, bool) or not isinstance(train, int | float) or not 0 <= train < 1:
            raise TaskError(f"BFCL: train must be a share of the tasks, 0 <= train < 1, got {train!r}")
        self.name = f"toolstep/BFCL-{category}-v0"  # type: ignore[misc]  # one class, many sets
        self.category = category
        self.train = float(train)
        self._parts: dict[str, list[int]] = {"train": [], "test": []}
        for i, entry in enumerate(entries(category)):
            share = content_hash(entry.key) / 2.0**64
            self._parts["train" if share < self.train else "test"].append(i)

    @abstractmethod
    def task_of(self, entry: Entry) -> Task:
        """The task that an item of the list is."""

    def size(self, split: Split = "train") -> int:
        return len(self._parts[check_split(split)])

    def task(self, seed: int, split: Split = "train") -> Task:
        part: Sequence[int] = self._parts[check_split(split)]
        if not part:
            raise TaskError(
                f"{self.name} is a benchmark: a fixed list that has no part {split!r}. Use split='test', or keep a "
                f"share of it for training, which is then not in 'test': train=0.5"
            )
        return self.task_of(entries(self.category)[part[check_seed(seed) % len(part)]])
