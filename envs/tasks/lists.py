"""Task sets out of what a user already has: a list of problems, or a function that makes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolstep.envs.tasks.answers import states
from toolstep.envs.tasks.base import NoOracle, Split, TaskError, TaskSet, check_seed, check_split, nearest
from toolstep.envs.types import EpisodeRecord, Message, Task, Turn

if TYPE_CHECKING:
    from toolstep.envs.tools.factory import Offer

Score = Callable[[EpisodeRecord], float]
_FIELDS = ("prompt", "messages", "answer", "id", "tags", "data")
_ROLES = ("system", "user", "assistant", "tool")


class _Given(TaskSet):
    """Scoring and tools of task sets that came without code of their own."""

    def __init__(
        self, *, tools: Sequence[Offer | Callable[..., Any] | str] = (), score: Score | None = None, system: str = ""
    ) -> None:
        self._tools = tuple(tools)
        self._offers: Sequence[Offer] | None = None  # made when they are first asked for: schemas need pydantic
        self._score = score
        self.system = system

    def tools(self, task: Task) -> Sequence[Offer]:
        from toolstep.envs.tools.factory import as_offer

        if self._offers is None:
            self._offers = [as_offer(t) for t in self._tools]
        return self._offers

    def close(self) -> None:
        from toolstep.envs.tools.factory import ToolFactory

        for offer in self._offers or ():
            if isinstance(offer, ToolFactory):
                offer.close()

    def score(self, record: EpisodeRecord) -> float:
        if self._score is not None:
            return float(self._score(record))
        return 1.0 if states(record.answer, record.task.answer) else 0.0

    def oracle(self, record: EpisodeRecord) -> Turn:
        if record.task.answer is None:
            raise NoOracle(f"task {record.task.id!r} has no answer to give")
        return Turn(str(record.task.answer))


class TaskList(_Given):
    """Problems in a list: seed i is item i, modulo their number, so that seeds 0..n-1 are each item once.

    tasks: `Task`s, or dicts with "prompt" (text) or "messages" (role and content), "answer", and
        optionally "id", "tags" and "data".
    test: the items of the split "test"; without them that split does not exist.  An item with the opening
        messages of a training item is refused.
    examples: items that `example_messages` shows, answered but without calls; they are in neither list.
    tools: functions, Tools or factories that every task offers, as in `ToolUseEnv(tools=)`.
    score: how a finished episode is scored; by default the answer's last number or last words must be the
        expected ones (`answers.states`).
    """

    name: ClassVar[str] = "list"

    def __init__(
        self,
        tasks: Sequence[Task | Mapping[str, Any]],
        *,
        test: Sequence[Task | Mapping[str, Any]] = (),
        examples: Sequence[Task | Mapping[str, Any]] = (),
        tools: Sequence[Offer | Callable[..., Any] | str] = (),
        score: Score | None = None,
        system: str = "",
    ) -> None:
        super().__init__(tools=tools, score=score, system=system)
        self._items: dict[str, list[Task]] = {}
        seen: dict[tuple[Message, ...], str] = {}
        for part, items in (("train", tasks), ("test", test), ("example", examples)):
            self._items[part] = [to_task(x, f"{part}/{i}", system) for i, x in enumerate(items)]
            for task in self._items[part]:
                other = seen.setdefault(task.messages, part)
                if other != part:
                    raise TaskError(f"task {task.id!r} of {part!r} has the same messages as one of {other!r}")
        if not self._items["train"]:
            raise TaskError("the list of tasks is empty")

    def __len__(self) -> int:
        return len(self._items["train"])

    def size(self, split: Split = "train") -> int:
        """The number of items in a split."""
        return len(self._items[check_split(split)])

    def task(self, seed: int, split: Split = "train") -> Task:
        items = self._items[check_split(split)]
        if not items:
            raise TaskError("this list of tasks has no test split: give one with TaskList(tasks, test=[...])")
        return items[check_seed(seed) % len(items)]

    def example(self, seed: int) -> Task:
        items = self._items["example"]
        if not items:
            raise TaskError("this list of tasks has no examples: give them with TaskList(tasks, examples=[...])")
        return items[check_seed(seed) % len(items)]


class FunctionTasks(_Given):
    """Problems made by a function of the seed, or of (seed, split): Tasks, or dicts as in `TaskList`."""

    name: ClassVar[str] = "function"

    def __init__(
        self,
        function: Callable[..., Task | Mapping[str, Any]],
        *,
        tools: Sequence[Offer | Callable[..., Any] | str] = (),
        score: Score | None = None,
        system: str = "",
    ) -> None:
        super().__init__(tools=tools, score=score, system=system)
        self._function = function
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):  # a builtin without a signature
            parameters = {}.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self._takes_split = len(positional) > 1 and positional[1].name == "split"

    def task(self, seed: int, split: Split = "train") -> Task:
        seed, split = check_seed(seed), check_split(split)
        if self._takes_split:
            return to_task(self._function(seed, split), f"{split}/{seed}", self.system)
        if split == "test":
            raise TaskError(
                "this task function takes only a seed, so it has no test split: "
                "let it take (seed, split) and return other problems where split is 'test'"
            )
        return to_task(self._function(seed), f"train/{seed}", self.system)


def to_task(item: Task | Mapping[str, Any], name: str, system: str = "") -> Task:
    """`item` as a Task.  `name` is its id where it has none, and says in errors where it stands.

    Raises:
        TaskError: a field that is missing, unknown, or of the wrong kind.
    """
    if isinstance(item, Task):
        return item
    if not isinstance(item, Mapping):
        raise TaskError(f"task {name}: expected a Task or a dict with 'prompt' and 'answer', got {item!r:.80}")
    for key in item:
        if key not in _FIELDS:
            raise TaskError(f"task {name}: unknown field {key!r}; {nearest(str(key), _FIELDS)}")
    if ("prompt" in item) == ("messages" in item):
        raise TaskError(f"task {name}: give either 'prompt' or 'messages'; found the fields {sorted(item)}")
    if "prompt" in item:
        if not isinstance(item["prompt"], str):
            raise TaskError(f"task {name}: 'prompt' must be text, got {item['prompt']!r:.80}")
        messages: tuple[Message, ...] = (Message("user", item["prompt"]),)
    else:
        messages = tuple(_message(m, name) for m in item["messages"])
    if system and (not messages or messages[0].role != "system"):
        messages = (Message("system", system), *messages)
    return Task(
        id=str(item.get("id", name)),
        messages=messages,
        answer=item.get("answer"),
        tags=dict(item.get("tags", {})),
        data=item.get("data"),
    )


def _message(item: Any, name: str) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping) or item.get("role") not in _ROLES or not isinstance(item.get("content"), str):
        raise TaskError(f"task {name}: a message needs a role of {_ROLES} and text as content, got {item!r:.80}")
    return Message(item["role"], item["content"])
