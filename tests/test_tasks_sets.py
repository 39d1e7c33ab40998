"""What holds for every built-in task set: purity, disjoint splits, right oracles, scores that never raise."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.envs.tasks import Split, TaskError, TaskSet, example_messages, load_tasks, task_names
from toolstep.envs.tasks.families import family_of
from toolstep.envs.tasks.procedural import ProceduralTasks, slice_of
from toolstep.envs.tools import EpisodeInfo, Executor, Toolbox, resolve
from toolstep.envs.tools.builtin import monty
from toolstep.envs.types import CallStatus, EpisodeRecord, Message, StopReason, Task

ROOT = Path(__file__).resolve().parent.parent
#: Families have tests of their own: their packages may be absent.  toolstep/Jsonl-v0 needs a file.
NAMES = [n for n in task_names() if family_of(n) is None and n.startswith("toolstep/") and n != "toolstep/Jsonl-v0"]
LEVELS = (1, 2, 3)
#: What counts there is what the tools leave behind, not what is said.
BY_STATE = {"toolstep/Files-v0", "toolstep/Python-v0"}
if monty.missing():
    NAMES.remove("toolstep/Python-v0")  # there is nothing to run it in


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(1) as made:
        yield made


def start(task: Task) -> EpisodeRecord:
    return EpisodeRecord(task, task.messages, None, 0)


def solve(tasks: TaskSet, task: Task, executor: Executor) -> EpisodeRecord:
    """Let the oracle play, with every call validated and run like a model's."""
    box = Toolbox(tasks.tools(task), (), EpisodeInfo(task))
    try:
        return _solve(tasks, task, executor, box)
    finally:
        box.close()


def _solve(tasks: TaskSet, task: Task, executor: Executor, box: Toolbox) -> EpisodeRecord:
    record = start(task)
    for _ in range(8):
        turn = tasks.oracle(record)
        pairs = [resolve(c, box.tools) for c in turn.calls]
        bound = [b for _, b in pairs if b is not None]
        assert len(bound) == len(pairs), pairs
        answers = executor.run(bound, timeout=5.0)
        assert all(a.error is None for a in answers), answers
        new = [Message("assistant", turn.content, tool_calls=tuple(c for c, _ in pairs))]
        for (made, _), answer in zip(pairs, answers, strict=True):
            new.append(Message("tool", answer.content, tool_call_id=made.id, name=made.name))
        record = replace(record, messages=(*record.messages, *new), turns=record.turns + 1)
        if not turn.calls:
            return replace(record, stop_reason=StopReason.ANSWERED, state=box.snapshot())
    raise AssertionError(f"{task.id}: no answer after 8 turns")


def answered(task: Task, text: str) -> EpisodeRecord:
    messages = (*task.messages, Message("assistant", text))
    return EpisodeRecord(task, messages, StopReason.ANSWERED, 1)


def fingerprint(names: list[str]) -> list[str]:
    out = []
    for name in names:
        for level in (None, *LEVELS):
            tasks = load_tasks(name, level=level)
            for split in ("train", "test"):
                for seed in (0, 1, 2, 3, 2**63 - 1):
                    task = tasks.task(seed, split)
                    out.append(json.dumps([task.id, task.messages[-1].content, repr(task.answer), repr(task.data)]))
        out += [repr(m) for m in example_messages(load_tasks(name), 3)]
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", LEVELS)
def test_oracle_is_right_on_every_seed(name: str, level: int, executor: Executor) -> None:
    tasks = load_tasks(name, level=level)
    for seed in range(150):
        for split in ("train", "test"):
            task = tasks.task(seed, split)
            assert task.tags["level"] == str(level)
            record = solve(tasks, task, executor)
            assert tasks.score(record) == 1.0, (task, record.answer)
            assert record.turns >= 2  # it used the tools
            assert tasks.score(start(task)) < 1.0


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_the_same_in_every_process(name: str) -> None:
    code = (
        "import sys, types, hashlib; m = types.ModuleType('toolstep'); m.__path__ = [sys.argv[1]];"
        "sys.modules['toolstep'] = m; sys.path.insert(0, sys.argv[1] + '/tests');"
        "from test_tasks_sets import fingerprint;"
        "print(hashlib.sha256(chr(10).join(fingerprint([sys.argv[2]])).encode()).hexdigest())"
    )
    import hashlib

    here = hashlib.sha256("\n".join(fingerprint([name])).encode()).hexdigest()
    env = {**os.environ, "PYTHONHASHSEED": "12345"}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), name], env=env, capture_output=True, text=True, timeout=120
    )
    assert ran.stdout.strip() == here, ran.stderr


@pytest.mark.parametrize("name", NAMES)
def test_splits_and_examples_share_no_content(name: str) -> None:
    seen: dict[str, set[str]] = {}
    for level in (None, *LEVELS):
        tasks = load_tasks(name, level=level)
        for part, count in (("train", 400), ("test", 200)):
            prompts = {tasks.task(seed, part).messages[-1].content for seed in range(count)}
            seen.setdefault(part, set()).update(prompts)
        seen.setdefault("example", set()).update(tasks.example(s).messages[-1].content for s in range(20))
    assert not seen["train"] & seen["test"]
    assert not seen["example"] & (seen["train"] | seen["test"])
    assert len(seen["train"]) > 500


@pytest.mark.parametrize("name", NAMES)
def test_split_is_a_function_of_content_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = load_tasks(name)
    assert isinstance(tasks, ProceduralTasks)
    keys: list[str] = []
    draw = type(tasks).draw

    def spy(self: ProceduralTasks, *args: object) -> object:
        problem = draw(self, *args)  # type: ignore[arg-type]
        keys.append(problem.key)
        return problem

    monkeypatch.setattr(type(tasks), "draw", spy)
    for split in ("train", "test"):
        for seed in range(50):
            tasks.task(seed, split)
            assert slice_of(keys[-1]) == split


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_pure(name: str) -> None:
    one, two = load_tasks(name, level=2), load_tasks(name, level=2)
    first = [one.task(s) for s in range(20)]
    assert [two.task(s) for s in reversed(range(20))][::-1] == first
    assert [one.task(s) for s in range(20)] == first
    assert len({t.id for t in first}) == 20
    assert pickle.loads(pickle.dumps(first)) == first
    assert pickle.loads(pickle.dumps(one)).task(3) == first[3]


@pytest.mark.parametrize("name", NAMES)
def test_neighbouring_seeds_are_unrelated(name: str) -> None:
    tasks = load_tasks(name, level=1)
    prompts = [tasks.task(seed).messages[-1].content for seed in range(600)]
    assert len(set(prompts)) > 300
    # Neighbours open with the same letters no more often than tasks that lie far apart.
    near = sum(a[:24] == b[:24] for a, b in pairwise(prompts))
    far = sum(a[:24] == b[:24] for a, b in zip(prompts, prompts[300:] + prompts[:300], strict=False))
    assert abs(near - far) < 80


@pytest.mark.parametrize("name", NAMES)
def test_mixture_has_all_levels(name: str) -> None:
    tasks = load_tasks(name)
    levels = [tasks.task(seed).tags["level"] for seed in range(90)]
    assert all(levels.count(str(level)) > 15 for level in LEVELS)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=200), seed=st.integers(0, 2**63), split=st.sampled_from(["train", "test"]))
def test_score_never_raises(name: str, text: str, seed: int, split: Split) -> None:
    tasks = load_tasks(name)
    assert 0.0 <= tasks.score(answered(tasks.task(seed, split), text)) <= 1.0


HOSTILE = [
    "",
    "9" * 100_000,
    "1e999999999",
    "1/0",
    "-/.,%",
    "1," * 20_000,
    "1:" * 20_000,
    "a1" * 20_000,
    "\\frac{1}{0}",
    "\ud800",
    "\x00" * 100,
    "NaN inf",
    " ".join(map(str, range(9_000))),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_answer_scores_zero(name: str, text: str) -> None:
    tasks = load_tasks(name)
    for seed in range(3):
        task = tasks.task(seed)
        if not str(task.answer).endswith("8999"):
            assert tasks.score(answered(task, text)) == 0.0


@pytest.mark.parametrize("name", [n for n in NAMES if n not in BY_STATE])
def test_turn_with_calls_is_not_an_answer(name: str) -> None:
    tasks = load_tasks(name)
    task = tasks.task(0)
    turn = tasks.oracle(start(task))
    said = task.answer if isinstance(task.answer, str) else "\n".join(task.answer)
    assert tasks.score(answered(task, said)) == 1.0
    record = EpisodeRecord(task, (*task.messages, Message("assistant", said, tool_calls=turn.calls)), None, 1)
    assert tasks.score(record) == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_well_formed_solved_and_fixed(name: str) -> None:
    tasks = load_tasks(name, level=1)
    messages = example_messages(tasks, 4)
    assert messages == example_messages(load_tasks(name, level=1), 4)
    assert messages != example_messages(tasks, 4, seed=40)
    assert sum(m.role == "user" for m in messages) == 4
    assert messages[0].role == "user"
    assert messages[-1].role == "assistant"
    assert not messages[-1].tool_calls
    ids = [c.id for m in messages for c in m.tool_calls]
    assert ids == [f"call{i:05d}" for i in range(len(ids))]
    assert [m.tool_call_id for m in messages if m.role == "tool"] == ids
    assert example_messages(tasks, 0) == ()


@pytest.mark.parametrize("name", NAMES)
def test_oracle_works_behind_examples(name: str, executor: Executor) -> None:
    tasks = load_tasks(name, level=2)
    task = tasks.task(5)
    shown = example_messages(tasks, 2)
    *system, user = task.messages
    record = replace(start(task), messages=(*system, *shown, user))
    turn = tasks.oracle(record)
    assert [(c.name, c.arguments) for c in turn.calls] == [
        (c.name, c.arguments) for c in tasks.oracle(start(task)).calls
    ]
    used = {c.id for m in shown for c in m.tool_calls}
    assert not used & {c.id for c in turn.calls}


@pytest.mark.parametrize("name", NAMES)
def test_oracle_makes_a_call_again_that_failed(name: str) -> None:
    tasks = load_tasks(name, level=1)
    task = tasks.task(1)
    first = tasks.oracle(start(task)).calls
    failed = tuple(replace(c, status=CallStatus.TOOL_TIMEOUT) for c in first)
    replies = [Message("tool", "{}", tool_call_id=c.id, name=c.name) for c in failed]
    record = replace(start(task), messages=(*task.messages, Message("assistant", "", tool_calls=failed), *replies))
    again = tasks.oracle(record).calls
    assert [(c.name, c.arguments) for c in again] == [(c.name, c.arguments) for c in first]
    assert not {c.id for c in again} & {c.id for c in first}


@pytest.mark.parametrize("name", NAMES)
def test_tools_on_offer_include_those_the_task_names(name: str) -> None:
    tasks = load_tasks(name)
    for seed in range(12):
        task = tasks.task(seed)
        box = Toolbox(tasks.tools(task), (), EpisodeInfo(task))
        assert set(task.tools or box.tools) == set(box.tools)
        assert all(t.description for t in box.tools.values())
        box.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", [0, 4, True, "1", 1.5])
def test_unknown_level_is_refused(name: str, level: object) -> None:
    with pytest.raises(TaskError, match="level must be one of 1, 2, 3"):
        load_tasks(name, level=level)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", None])
def test_bad_seed_is_refused(seed: object) -> None:
    with pytest.raises(TaskError, match="integer >= 0"):
        load_tasks("calculator").task(seed)  # type: ignore[arg-type]


def test_unknown_split_is_refused() -> None:
    with pytest.raises(TaskError, match="'train' or 'test', got 'dev'"):
        load_tasks("calculator").task(0, "dev")  # type: ignore[arg-type]


def test_import_is_light() -> None:
    code = (
        "import sys, types; m = types.ModuleType('toolstep'); m.__path__ = [sys.argv[1]];"
        "sys.modules['toolstep'] = m; import toolstep.envs.tasks;"
        "print([x for x in ('pint', 'zoneinfo', 'torch', 'transformers') if x in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == "[]"
