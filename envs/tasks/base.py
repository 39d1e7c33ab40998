"""What a task set is: problems as a function of a seed, the tools they need, and how an episode is scored."""

from __future__ import annotations

import copy
import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from toolstep.envs.tasks.families import by_family
from toolstep.envs.types import EpisodeRecord, Message, Task, Turn

if TYPE_CHECKING:
    from toolstep.envs.menu import Menu
    from toolstep.envs.tools.factory import Offer

Split = Literal["train", "test"]


class TaskError(ValueError):
    """A task set was asked for something that it cannot give."""


class NoOracle(TaskError):
    """The task set does not know what the right next turn is."""


class NoMenu(TaskError):
    """The task set offers no finite choice of turns."""


class TaskSet(ABC):
    """A family of problems.

    `task` is a pure function of its arguments and of the options that the set was constructed with: the same in every
    process.  The tasks of the two splits must not share content.  `tools` gives fresh objects for one episode, so that
    what a tool remembers stays inside it.  An object of this class holds no episode state: every method may be called
    for any number of episodes at once.
    """

    name: ClassVar[str]
    #: The system prompt that opens each task, "" for none.
    system: str = ""
    #: What an env limits episodes to where it is told nothing else: keywords of `toolstep.envs.limits.Limits`.
    limits: ClassVar[Mapping[str, Any]] = {}
    #: `Task.tools` picks from all tools of an env, built-in ones included, and not only from the set's own.
    picks_tools: bool = False

    @abstractmethod
    def task(self, seed: int, split: Split = "train") -> Task:
        """The problem that belongs to `seed` (an integer >= 0)."""

    @abstractmethod
    def tools(self, task: Task) -> Sequence[Offer]:
        """The tools that `task` offers, bound to one episode, or factories that make them."""

    @abstractmethod
    def score(self, record: EpisodeRecord) -> float:
        """How right a finished episode is, in [0, 1]; 1.0 is success.  Must not raise on any text."""

    def oracle(self, record: EpisodeRecord) -> Turn:
        """The right next turn of the conversation so far.

        Raises NoOracle where the set knows none, which is the default.
        """
        raise NoOracle(f"task set {self.name!r} has no oracle: override {type(self).__name__}.oracle(record) -> Turn")

    def reply(self, record: EpisodeRecord) -> Message | None:
        """A user message that goes on after an answer; None (the default) ends the episode there.

        `record.state` is what the episode's tools have left behind by then.
        """
        return None

    def size(self, split: Split = "train") -> int | None:
        """The number of tasks, where they are a fixed list: then seed i is task i, modulo that.  None: drawn."""
        return None

    def menu(self) -> Menu:
        """The finite choice of turns that `view="menu"` offers, the same for every task.

        Raises NoMenu where the set brings none along, which is the default.
        """
        raise NoMenu(
            f'task set {self.name!r} has no menu, so view="menu" needs one: pass menu=[...] (toolstep.envs.menu), or '
            f"override {type(self).__name__}.menu() -> Menu"
        )

    def close(self) -> None:  # noqa: B027  nothing to free is the rule
        """Free what outlives episodes; an env calls it when it is closed.  The set may be used again."""

    def scored_by(self, score: Callable[[EpisodeRecord], float]) -> Self:
        """The same problems with another score; this set stays as it is.

        Raises TaskError where the set knows that a problem's answer cannot be scored so.
        """
        other = copy.copy(self)
        other.score = score  # type: ignore[assignment, method-assign]
        return other

    def example(self, seed: int) -> Task:
        """The problem of one worked example, of the training split; `example_messages` solves it.

        The default takes a seed from the top of the 32-bit range.  Override it to keep examples apart by content.
        """
        return self.task(2**32 - 1 - check_seed(seed), "train")


def check_seed(seed: int) -> int:
    """`seed` as a Python int.  Raises TaskError for anything that is not an integer >= 0."""
    try:
        value = int(seed.__index__())
    except (AttributeError, TypeError):
        raise TaskError(f"a task seed must be an integer >= 0, got {seed!r}") from None
    if value < 0:
        raise TaskError(f"a task seed must be an integer >= 0, got {value}")
    return value


def check_split(split: str) -> Split:
    """`split` itself.  Raises TaskError unless it is "train" or "test"."""
    if split == "train":
        return "train"
    if split == "test":
        return "test"
    raise TaskError(f"a split must be 'train' or 'test', got {split!r}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the nearest of `known` names, and all of them, a family's as one."""
    names = sorted(known)
    folded = {n.casefold(): n for n in names}
    close = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.5)
    hint = f"did you mean {folded[close[0]]!r}? " if close else ""
    return f"{hint}Known: {', '.join(by_family(names)) if names else 'none'}"
