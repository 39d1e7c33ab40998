"""Stateful tools are made for one episode and closed with it; one object for two episodes is refused."""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from toolstep.envs import EpisodeRecord, Task, ToolResult, ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tasks import FunctionTasks, TaskList, TaskSet
from toolstep.envs.tools import (
    EpisodeInfo,
    SharedStateError,
    Toolbox,
    ToolFactory,
    ToolNameError,
    ToolSchemaError,
    as_offer,
    per_episode,
    tool,
)
from toolstep.envs.tools.owner import owner_of
from toolstep.envs.types import Message

TASKS = [{"prompt": "Count.", "answer": "5"}]
INFO = EpisodeInfo(Task("t", (Message("user", "Count."),)), seed=7)


class Counter:
    made: ClassVar[list[Counter]] = []

    def __init__(self) -> None:
        self.count = 0
        self.closed = 0
        Counter.made.append(self)

    @tool(run_in="inline")
    def add(self, by: int = 1) -> int:
        """Add to the counter."""
        self.count += by
        return self.count

    @tool(run_in="inline")
    def read(self) -> int:
        """Read the counter."""
        return self.count

    def snapshot(self) -> dict[str, Any]:
        return {"count": self.count}

    def close(self) -> None:
        self.closed += 1


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Counter.made.clear()


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answers(env: ToolUseVectorEnv) -> list[list[str]]:
    return [[m.content for m in messages if m.role == "tool"] for messages in env.get_attr("messages")]


@pytest.mark.parametrize("given", [[Counter], [per_episode(Counter)], per_episode(lambda: Counter())])
def test_a_class_is_made_anew_for_each_row_and_each_episode(given: Any) -> None:
    env = ToolUseVectorEnv(3, TASKS, tools=given, autoreset_mode="Disabled")
    env.reset(seed=0)
    env.step([call("add", by=i) + call("add") for i in range(3)])
    env.step([call("read")] * 3)
    assert answers(env) == [[str(i), str(i + 1), str(i + 1)] for i in range(3)]
    env.reset(seed=0)
    env.step([call("read")] * 3)
    assert answers(env) == [["0"]] * 3
    assert len(Counter.made) == 6
    env.close()
    assert [c.closed for c in Counter.made] == [1] * 6


def test_objects_are_closed_at_the_end_of_their_episode_and_their_state_is_scored() -> None:
    seen: list[EpisodeRecord] = []

    def reward(record: EpisodeRecord) -> float:
        seen.append(record)
        assert not Counter.made[-1].closed
        return float(record.state["count"])

    env = ToolUseEnv(TASKS, tools=[Counter], reward=reward)
    env.reset(seed=0)
    env.step(call("add", by=4))
    _, got, terminated, _, _ = env.step("done")
    assert (got, terminated) == (4.0, True)
    assert Counter.made[0].closed == 1
    assert env.record.state == {"count": 4}
    env.close()
    assert Counter.made[0].closed == 1


def test_a_method_of_one_object_is_refused_with_the_way_out() -> None:
    counter = Counter()
    for given in (counter.add, counter, functools.partial(counter.snapshot), Callable_()):
        for make in (ToolUseEnv, functools.partial(ToolUseVectorEnv, 2)):
            with pytest.raises(SharedStateError, match=r"pass the class \((Counter|Callable_)\) or per_episode"):
                make(TASKS, tools=[given])


class Callable_:
    def __call__(self, x: int) -> int:
        """Called."""
        return x


def test_an_object_that_is_declared_shared_serves_all_rows() -> None:
    class Client:
        def __init__(self) -> None:
            self.calls = 0

        @tool(run_in="inline", shared=True)
        def ask(self) -> int:
            """Ask."""
            self.calls += 1
            return self.calls

        def close(self) -> None:
            raise AssertionError("a shared object is not ours to close")

    env = ToolUseVectorEnv(2, TASKS, tools=[Client().ask])
    env.reset(seed=0)
    env.step([call("ask")] * 2)
    assert answers(env) == [["1"], ["2"]]
    env.reset(seed=0)
    env.close()


@dataclass(frozen=True)
class Table:
    rows: tuple[int, ...]

    def row(self, i: int) -> int:
        """A row."""
        return self.rows[i]


def test_what_cannot_remember_is_nobodys_state() -> None:
    assert owner_of(tool(Table((1, 2)).row)) is None
    assert owner_of(tool(lambda x: x, name="f")) is None
    assert owner_of(tool(functools.lru_cache(lambda x: x), name="f")) is None
    counter = Counter()
    assert owner_of(counter.add) is counter
    assert owner_of(tool(functools.partial(counter.snapshot), name="f")) is counter
    assert owner_of(tool(counter.snapshot, shared=True)) is None


class Leaky(TaskSet):
    """Gives the same object to every episode."""

    name = "leaky"

    def __init__(self) -> None:
        self._counter = Counter()

    def task(self, seed: int, split: str = "train") -> Task:
        return Task("x", (Message("user", "Count."),))

    def tools(self, task: Task) -> Sequence[Any]:
        return [self._counter.add]

    def score(self, record: EpisodeRecord) -> float:
        return 0.0


def test_a_task_set_that_shares_an_object_is_found_out() -> None:
    with pytest.raises(SharedStateError, match="Counter"):
        ToolUseVectorEnv(2, Leaky()).reset(seed=0)
    env = ToolUseEnv(Leaky())
    env.reset(seed=0)
    with pytest.raises(SharedStateError, match="Counter"):
        env.reset(seed=0)


def test_two_envs_that_share_an_object_are_found_out() -> None:
    tasks = Leaky()
    first, second = ToolUseEnv(tasks), ToolUseEnv(tasks)
    first.reset(seed=0)
    with pytest.raises(SharedStateError, match="Counter"):
        second.reset(seed=0)


def test_a_list_of_tasks_makes_its_tools_for_each_episode_too() -> None:
    for tasks in (TaskList(TASKS, tools=[Counter]), FunctionTasks(lambda seed: TASKS[0], tools=[Counter])):
        env = ToolUseVectorEnv(2, tasks)
        env.reset(seed=0)
        env.step([call("add")] * 2)
        assert answers(env) == [["1"], ["1"]]
        env.close()


class Told(ToolFactory):
    def __init__(self) -> None:
        self.told: list[EpisodeInfo] = []
        self.closed = 0

    def make(self, episode: EpisodeInfo) -> Any:
        self.told.append(episode)
        seed = episode.seed
        return [tool(lambda: seed, name="seed", run_in="inline"), tool(lambda: 1, name="one", run_in="inline")]

    def close(self) -> None:
        self.closed += 1


def test_a_factory_hears_of_the_task_and_of_a_seed_that_the_group_shares() -> None:
    factory = Told()
    env = ToolUseVectorEnv(3, TASKS, tools=factory, tool_timeout=3.0)
    env.reset(seed=[4, 4, 5])
    seeds = [told.seed for told in factory.told]
    assert seeds[0] == seeds[1] != seeds[2]
    assert {told.tool_timeout for told in factory.told} == {3.0}
    assert factory.told[0].task.messages[0].content == "Count."
    env.step([call("seed")] * 3)
    assert answers(env) == [[str(s)] for s in seeds]
    env.close()
    assert factory.closed == 1


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (list, ToolSchemaError, "without a tool"),
        (lambda: object(), ToolSchemaError, "decorate its methods"),
        (lambda: [tool(lambda: 1, name="add", run_in="inline")], ToolNameError, "two tools are named 'add'"),
    ],
)
def test_what_a_factory_makes_is_looked_at_and_nothing_stays_open(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Toolbox([per_episode(Counter)], [per_episode(make)], INFO)
    assert [c.closed for c in Counter.made] == [1]


def test_one_that_fails_to_close_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Counter):
        def close(self) -> None:
            raise OSError("no such process")

    class Other(Counter):
        @tool(run_in="inline", name="other")
        def add(self) -> int:
            """Add."""
            return 1

        @tool(run_in="inline", name="other_read")
        def read(self) -> int:
            """Read."""
            return 1

    box = Toolbox([], [as_offer(Other), as_offer(Stuck)], INFO)
    assert list(box.tools) == ["other", "other_read", "add", "read"]
    box.close()
    assert Counter.made[0].closed == 1
    assert "Stuck" in caplog.text


def test_a_task_names_the_part_of_its_sets_tools_that_it_offers() -> None:
    task = Task("t", (Message("user", "Count."),), tools=("read",))
    box = Toolbox([as_offer(Counter)], [as_offer(Told)], EpisodeInfo(task))
    assert list(box.tools) == ["read", "seed", "one"]
    box.close()


class Slow:
    """Notices when two of its calls overlap."""

    def __init__(self) -> None:
        self.busy = threading.Lock()
        self.order: list[int] = []

    @tool
    def note(self, n: int) -> str:
        """Note."""
        if not self.busy.acquire(blocking=False):
            return "overlap"
        try:
            time.sleep(0.02 if n % 2 == 0 else 0.0)
            self.order.append(n)
            return str(self.order)
        finally:
            self.busy.release()

    @tool(run_in="inline")
    def seen(self) -> list[int]:
        """All so far."""
        return list(self.order)


def test_calls_to_one_object_run_in_their_order_and_those_to_others_beside_them() -> None:
    env = ToolUseVectorEnv(4, TASKS, tools=[Slow])
    env.reset(seed=0)
    turn = "".join(call("note", n=n) for n in range(5)) + call("seen") + call("note", n=5)
    env.step([turn] * 4)
    wanted = [str(list(range(n + 1))) for n in range(5)] + [str(list(range(5))), str(list(range(6)))]
    assert answers(env) == [wanted] * 4
    env.close()


def test_after_a_call_that_overran_the_next_one_to_its_object_is_served() -> None:
    class Sleeper:
        @tool(timeout=0.1)
        def nap(self, seconds: float) -> str:
            """Sleep."""
            time.sleep(seconds)
            return "rested"

    env = ToolUseEnv(TASKS, tools=[Sleeper])
    env.reset(seed=0)
    _, _, _, _, info = env.step(call("nap", seconds=0.5) + call("nap", seconds=0.0))
    assert info["call_statuses"] == ["tool_timeout", "ok"]
    env.close()


def test_a_call_may_end_the_episode_with_an_answer() -> None:
    def give(value: str) -> ToolResult:
        """Give the answer."""
        return ToolResult("bye", terminate=True, answer=value)

    for run_in in ("inline", "thread"):
        env = ToolUseEnv(TASKS, tools=[tool(give, run_in=run_in)])  # type: ignore[call-overload]
        env.reset(seed=0)
        _, reward, terminated, _, info = env.step("It is 7. " + call("give", value="5") + call("give", value="6"))
        assert (reward, terminated, info["stop_reason"]) == (1.0, True, "tool_ended")
        assert env.record.answer == "5"
        env.close()
