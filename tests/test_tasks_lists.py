"""Task sets made of lists and functions, and loading by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from toolstep.envs.tasks import (
    FunctionTasks,
    NoOracle,
    Split,
    TaskError,
    TaskList,
    TaskOptionError,
    TaskSet,
    example_messages,
    load_tasks,
    register_tasks,
    task_names,
)
from toolstep.envs.tools import Tool
from toolstep.envs.types import EpisodeRecord, Message, StopReason, Task

ITEMS = [{"prompt": "2 + 2?", "answer": 4}, {"prompt": "Capital of France?", "answer": "Paris"}]


def score(tasks: TaskSet, task: Task, text: str) -> float:
    return tasks.score(EpisodeRecord(task, (*task.messages, Message("assistant", text)), StopReason.ANSWERED, 1))


def test_each_item_is_one_seed() -> None:
    tasks = load_tasks(ITEMS)
    assert [tasks.task(s).messages[0].content for s in range(3)] == ["2 + 2?", "Capital of France?", "2 + 2?"]
    assert score(tasks, tasks.task(0), "It is 4.") == 1.0
    assert score(tasks, tasks.task(0), "It is 44.") == 0.0
    assert score(tasks, tasks.task(1), "That would be Paris.") == 1.0
    assert tasks.oracle(EpisodeRecord(tasks.task(0), (), None, 0)).content == "4"


def test_splits_of_a_list_are_given_and_disjoint() -> None:
    tasks = TaskList(ITEMS[:1], test=ITEMS[1:])
    assert tasks.task(7, "test").answer == "Paris"
    assert len(tasks) == 1
    with pytest.raises(TaskError, match="no test split"):
        TaskList(ITEMS).task(0, "test")
    with pytest.raises(TaskError, match="same messages"):
        TaskList(ITEMS, test=ITEMS[:1])
    with pytest.raises(TaskError, match="empty"):
        TaskList([])


def test_examples_of_a_list_are_given() -> None:
    tasks = TaskList(ITEMS[:1], examples=ITEMS[1:])
    assert example_messages(tasks, 1) == (
        Message("user", "Capital of France?"),
        Message("assistant", "Paris"),
    )
    with pytest.raises(TaskError, match="has no examples"):
        example_messages(TaskList(ITEMS), 1)
    with pytest.raises(TaskError, match="2 different examples were asked for, 1 were found"):
        example_messages(tasks, 2)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"promt": "x"}, "unknown field 'promt'; did you mean 'prompt'"),
        ({"answer": 1}, "give either 'prompt' or 'messages'"),
        ({"prompt": 3}, "'prompt' must be text"),
        ({"messages": [{"role": "robot", "content": ""}]}, "a message needs a role"),
        (17, "expected a Task or a dict"),
    ],
)
def test_bad_item_is_named(item: Any, message: str) -> None:
    with pytest.raises(TaskError, match=f"task train/1: {message}"):
        load_tasks([ITEMS[0], item])


def test_messages_system_and_tools() -> None:
    def shout(text: str) -> str:
        """Shout."""
        return text.upper()

    given = {"messages": [{"role": "user", "content": "hi"}], "id": "greeting", "tags": {"kind": "a"}}
    tasks = TaskList([given], system="Be brief.", tools=[shout], score=lambda record: 0.25)
    task = tasks.task(0)
    assert [m.role for m in task.messages] == ["system", "user"]
    assert (task.id, task.tags) == ("greeting", {"kind": "a"})
    assert [t.name for t in tasks.tools(task)] == ["shout"]
    assert score(tasks, task, "x") == 0.25
    with pytest.raises(NoOracle, match="greeting"):
        tasks.oracle(EpisodeRecord(task, (), None, 0))


def test_function_of_the_seed() -> None:
    tasks = load_tasks(lambda seed: {"prompt": f"{seed} + 1?", "answer": seed + 1})
    assert isinstance(tasks, FunctionTasks)
    assert tasks.task(41).answer == 42
    with pytest.raises(TaskError, match="takes only a seed"):
        tasks.task(0, "test")


def test_function_of_seed_and_split() -> None:
    def make(seed: int, split: Split) -> Task:
        return Task(f"{split}-{seed}", (Message("user", split),), "x")

    assert load_tasks(make).task(3, "test").id == "test-3"


def test_set_itself_and_its_class() -> None:
    tasks = load_tasks("calculator", level=2)
    assert load_tasks(tasks) is tasks
    assert load_tasks(type(tasks), level=1).task(0).tags == {"level": "1"}
    with pytest.raises(TaskOptionError, match=r"options \['level'\] given for a task set that exists"):
        load_tasks(tasks, level=1)


@pytest.mark.parametrize("name", ["toolstep/Calculator-v0", "calculator", "Calculator-v0", "CALCULATOR"])
def test_names_and_short_names(name: str) -> None:
    assert load_tasks(name).name == "toolstep/Calculator-v0"


def test_unknown_name_and_option_have_the_nearest() -> None:
    with pytest.raises(TaskError, match=r"did you mean 'toolstep/UnitConvert-v0'.*Known: .*toolstep/Lookup-v0"):
        load_tasks("toolstep/UnitConverter-v0")
    with pytest.raises(TypeError, match="no option 'levl'; did you mean 'level'"):
        load_tasks("calculator", levl=1)
    with pytest.raises(TaskOptionError, match=r"Known: .*score.*system.*test"):
        load_tasks(ITEMS, level=1)
    with pytest.raises(TaskError, match="cannot make a task set of 3"):
        load_tasks(3)


class Echo(TaskSet):
    name: ClassVar[str] = "test/Echo"

    def __init__(self, *, word: str = "hello") -> None:
        self.word = word

    def task(self, seed: int, split: Split = "train") -> Task:
        return Task(f"{split}/{seed}", (Message("user", f"Say {self.word} {seed}"),), self.word)

    def tools(self, task: Task) -> Sequence[Tool]:
        return ()

    def score(self, record: EpisodeRecord) -> float:
        return float(record.answer == self.word)


def test_own_set_can_be_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from toolstep.envs.tasks import registry

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    register_tasks("test/Echo", Echo)
    register_tasks("test/Echo", Echo)
    assert "test/Echo" in task_names()
    tasks = load_tasks("test/Echo", word="bye")
    assert tasks.task(0).answer == "bye"
    with pytest.raises(TaskError, match="registered already"):
        register_tasks("test/Echo", TaskList)
    with pytest.raises(NoOracle, match=r"override Echo\.oracle"):
        tasks.oracle(EpisodeRecord(tasks.task(0), (), None, 0))
    assert tasks.reply(EpisodeRecord(tasks.task(0), (), None, 0)) is None
    assert tasks.example(0) != tasks.task(0)
