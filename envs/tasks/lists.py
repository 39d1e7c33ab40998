"""Task sets out of what a user already has: a list of problems, or a function that makes them."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from toolstep.envs.tasks.base import NoOracle, Split, TaskError, TaskSet, check_seed, check_split, nearest
from toolstep.envs.tasks.conversation import call, since_task
from toolstep.envs.types import EpisodeRecord, Message, ReferenceCall, Task, Turn

if TYPE_CHECKING:
    from toolstep.envs.rewards import Reward, RewardSpec
    from toolstep.envs.tools.factory import Offer

Score = Callable[[EpisodeRecord], float]
_FIELDS = ("prompt", "messages", "answer", "id", "tags", "data", "tools", "reward", "calls")
_ROLES = ("system", "user", "assistant", "tool")


class _Given(TaskSet):
    """Scoring and tools of task sets that came without code of their own."""

    picks_tools = True

    def __init__(
        self,
        *,
        tools: Sequence[Offer | Callable[..., Any] | str] = (),
        score: Score | RewardSpec | None = None,
        system: str = "",
    ) -> None:
        self._tools = tuple(tools)
        self._offers: Sequence[Offer] | None = None  # made when they are first asked for: schemas need pydantic
        self._rewards: dict[str, Reward] = {}  # by what names them; they are first made here, where a name is checked
        self._score = self._reward(score) if isinstance(score, str | Mapping) else score
        self.system = system

    def tools(self, task: Task) -> Sequence[Offer]:
        from toolstep.envs.tools.factory import as_offer

        if self._offers is None:
            self._offers = [as_offer(t) for t in self._tools]
        return self._offers

    def close(self) -> None:
        from toolstep.envs.rewards import Verifier
        from toolstep.envs.tools.factory import ToolFactory

        for offer in self._offers or ():
            if isinstance(offer, ToolFactory):
                offer.close()
        for reward in (*self._rewards.values(), self._score):
            if isinstance(reward, Verifier):
                reward.close()

    def scored_by(self, score: Score) -> Self:
        other = copy.copy(self)
        other._score = score
        return other

    def score(self, record: EpisodeRecord) -> float:
        return float(self._scorer(record.task)(record))

    def oracle(self, record: EpisodeRecord) -> Turn:
        task = record.task
        made = sum(len(m.tool_calls) for m in since_task(record))
        if task.calls is not None and made < len(task.calls):
            wanted = task.calls[made]
            return call(record, (wanted.name, wanted.arguments))
        if task.answer is None:
            raise NoOracle(f"task {task.id!r} has no answer to give")
        scorer = self._scorer(task)
        write = getattr(scorer, "write", str)  # a function of the user's does not say what is right
        try:
            return Turn(write(task.answer))
        except ValueError as error:
            raise NoOracle(f"task {task.id!r}: {error}") from error

    def _scorer(self, task: Task) -> Score:
        """What scores a task: the reward that it names, else the set's, else how its answer ends."""
        if task.reward is not None:
            return self._reward(task.reward)
        return self._score if self._score is not None else self._reward("stated")

    def _reward(self, spec: RewardSpec) -> Reward:
        from toolstep.envs.rewards import make_reward

        key = spec if isinstance(spec, str) else json.dumps(spec, sort_keys=True, default=repr)
        if key not in self._rewards:
            self._rewards[key] = make_reward(spec, from_data=True)
        return self._rewards[key]


class TaskList(_Given):
    """Problems in a list: seed i is item i, modulo their number, so that seeds 0..n-1 are each item once.

    tasks: `Task`s, or dicts with "prompt" (text) or "messages" (role and content), "answer", and optionally "id",
        "tags", "data", "tools" (names of those on offer; built-in ones need no `tools=`), "reward" (the name of what
        scores it, or {"name": ..., options}; see `toolstep.envs.rewards`) and "calls" (those of a reference solution:
        {"name": ..., "arguments": {...}}).
    test: the items of the split "test"; without them that split does not exist.  An item with the opening
        messages of a training item is refused.
    examples: items that `example_messages` shows, solved by their "calls" and their answer; they are in neither list.
    tools: functions, Tools or factories that every task offers, as in `ToolUseEnv(tools=)`.
    score: how a finished episode is scored: a function, or a reward's name; by default the answer's last number or last
        words must be the expected ones (`answers.states`).
    """

    name: ClassVar[str] = "list"

    def __init__(
        self,
        tasks: Sequence[Task | Mapping[str, Any]],
        *,
        test: Sequence[Task | Mapping[str, Any]] = (),
        examples: Sequence[Task | Mapping[str, Any]] = (),
        tools: Sequence[Offer | Callable[..., Any] | str] = (),
        score: Score | RewardSpec | None = None,
        system: str = "",
    ) -> None:
        super().__init__(tools=tools, score=score, system=system)
        parts = {"train": tasks, "test": test, "example": examples}
        self._fill({p: {f"{p}/{i}": to_task(x, f"{p}/{i}", system) for i, x in enumerate(parts[p])} for p in parts})

    def _fill(self, parts: Mapping[str, Mapping[str, Task]]) -> None:
        """parts: the tasks of each part, by where they stand, which errors tell."""
        self._items = {part: list(tasks.values()) for part, tasks in parts.items()}
        self._places = [(place, task) for tasks in parts.values() for place, task in tasks.items()]
        seen: dict[tuple[Message, ...], str] = {}
        for part, tasks in parts.items():
            for place, task in tasks.items():
                other = seen.setdefault(task.messages, part)
                if other != part:
                    raise TaskError(f"task {place} of {part!r} has the same messages as one of {other!r}")
        if not self._items["train"]:
            raise TaskError("the list of tasks is empty")
        self._check_answers()

    def _check_answers(self) -> None:
        from toolstep.envs.rewards import Verifier

        for place, task in self._places:
            try:
                scorer = self._scorer(task)
            except (ValueError, ImportError, RuntimeError) as error:  # no such reward, or what it needs is not there
                raise TaskError(f"task {place}: 'reward': {error}") from error
            if isinstance(scorer, Verifier):
                try:
                    scorer.check(task.answer)
                except ValueError as error:
                    raise TaskError(f"task {place}: 'answer' (reward {scorer.name!r}): {error}") from error

    def scored_by(self, score: Score) -> Self:
        other = super().scored_by(score)
        other._check_answers()
        return other

    def check_tools(self, extra: Sequence[Offer]) -> None:
        """TaskError where a task names a tool, or calls one, that is neither in this set, nor in `extra`, nor built in.

        Nothing is found out where a factory stands in them that tells its tools only when it makes them.
        """
        from toolstep.envs.tools.builtin import builtin_names

        if not any(task.tools or task.calls for _, task in self._places):
            return
        offers = [*self.tools(self._items["train"][0]), *extra]
        known = {*builtin_names(), *(offer.name for offer in offers)}
        if "" in known:
            return
        for place, task in self._places:
            for name in task.tools or ():
                if name not in known:
                    raise TaskError(f"task {place}: 'tools': there is no tool {name!r}; {nearest(name, known)}")

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
        score: Score | RewardSpec | None = None,
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
        given = item["messages"]
        if not isinstance(given, list | tuple) or not given:
            raise TaskError(f"task {name}: 'messages' must be a list of messages, got {given!r:.80}")
        messages = tuple(_message(m, name) for m in given)
    if system and (not messages or messages[0].role != "system"):
        messages = (Message("system", system), *messages)
    return Task(
        id=str(item.get("id", name)),
        messages=messages,
        answer=item.get("answer"),
        tags=_tags(item.get("tags"), name),
        data=item.get("data"),
        tools=_names(item.get("tools"), name),
        reward=item.get("reward"),
        calls=_calls(item.get("calls"), name),
    )


def _tags(given: Any, name: str) -> dict[str, str]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TaskError(f'task {name}: \'tags\' must be an object like {{"level": "1"}}, got {given!r:.80}')
    return {str(key): str(value) for key, value in given.items()}


def _names(given: Any, name: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list | tuple) or not all(isinstance(x, str) and x for x in given):
        raise TaskError(f"task {name}: 'tools' must be a list of names, got {given!r:.80}")
    return tuple(dict.fromkeys(given))


def _calls(given: Any, name: str) -> tuple[ReferenceCall, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list | tuple):
        raise TaskError(f"task {name}: 'calls' must be a list of calls, got {given!r:.80}")
    for item in given:
        fits = isinstance(item, Mapping) and isinstance(item.get("name"), str) and item.keys() <= {"name", "arguments"}
        if not fits or not isinstance(item.get("arguments", {}), Mapping):
            raise TaskError(f'task {name}: a call is {{"name": ..., "arguments": {{...}}}}, got {item!r:.80}')
    return tuple(ReferenceCall(item["name"], dict(item.get("arguments", {}))) for item in given)


def _message(item: Any, name: str) -> Message:
    if isinstance(item, Message):
        return item
    if not isinstance(item, Mapping) or item.get("role") not in _ROLES or not isinstance(item.get("content"), str):
        raise TaskError(f"task {name}: a message needs a role of {_ROLES} and text as content, got {item!r:.80}")
    return Message(item["role"], item["content"])
