"""check_task names exactly what is broken in a task set, and finds nothing where nothing is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checker_faults as faulty
import pytest

from toolstep.envs.checker import check_task
from toolstep.envs.tasks import TaskList, task_names
from toolstep.envs.tasks.families import FAMILIES

CALM: dict[str, Any] = {"seeds": 8, "episodes": 1, "timeout": 60.0, "quiet": True}

MEMBERS = {f.id(m) for f in FAMILIES for m in f.members}  # benchmarks that come with packages of their own
OWN = [n for n in task_names() if n not in MEMBERS and n != "toolstep/Jsonl-v0"]  # which needs a file


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Iterator[None]:
    faulty.OVER.clear()
    yield
    faulty.OVER.set()


@pytest.mark.parametrize("name", ["Sums", "sums", "problems"])
def test_a_clean_task_set_passes_without_a_finding(name: str) -> None:
    report = check_task(getattr(faulty, name), **CALM)
    assert report.codes == [], str(report)
    assert [f.code for f in report.notes] == (["no-test-split"] if name == "problems" else [])
    assert [c.name for c in report.checks] == ["it is a task set", "tasks", "splits", "tools", "oracle", "score"]
    assert report.checks[4].detail == ("1 episodes" if name == "problems" else "2 episodes")


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Shuffled", "global-random", "the second time"),
        ("Seeding", "global-random", "other rows"),
        ("Clocked", "nondeterministic", "read no clock"),
        ("SmallSeeds", "raises", "seed % 2**32"),
        ("SameSplits", "splits-overlap", "10 of 10 test tasks"),
        ("SameIds", "same-id", "'train'"),
        ("NotJSON", "bad-task", "complex"),
        ("WrongOracle", "oracle-fails", "answered '42'"),
        ("AnythingScores", "wrong-answer-scores", "'zxqv jkwp' scores 1"),
        ("FormScores", "wrong-answer-scores", "of another task"),
        ("GarbageScores", "garbage-scores", "0.01"),
        ("Fragile", "score-raises", "invalid literal for int()"),
        ("Beyond", "score-range", "-1.0"),
        ("Evaluates", "evaluates-answers", "as a program"),
        ("SharedTools", "shared-state", "one Basket object"),
        ("MisnamedTools", "unknown-tool", "substract"),
    ],
)
def test_a_fault_is_named_and_nothing_else(name: str, code: str, says: str) -> None:
    report = check_task(getattr(faulty, name), **CALM)
    assert report.codes == [code], str(report)
    told = " ".join(f"{f.where} {f.what} {f.fix}" for f in report.findings if f.code == code)
    assert says in told


@pytest.mark.parametrize(("name", "code"), [("HangsInScore", "score-hangs"), ("HangsInTask", "hangs")])
def test_what_hangs_is_given_up(name: str, code: str) -> None:
    report = check_task(getattr(faulty, name), **{**CALM, "timeout": 0.5})
    assert report.codes == [code], str(report)
    assert "within 0.5 s" in report.errors[0].what


def test_a_set_without_an_oracle_is_told_in_a_note() -> None:
    report = check_task(faulty.Unsolved, **CALM)
    assert report.codes == []
    assert [f.code for f in report.notes] == ["no-oracle"]  # the same words for both splits are told once
    assert "nobody knows" in report.notes[0].what


def test_a_question_that_is_its_own_answer_is_told() -> None:
    tasks = [{"prompt": f"Say the word number {i}", "answer": str(i)} for i in range(4)]
    assert check_task(tasks, **CALM).codes == ["echo-scores"]


def test_a_file_of_tasks_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"prompt": "2 + 3?", "answer": "5", "id": "a"}\n{"prompt": "2 + 5?", "answer": "7", "id": "a"}\n')
    assert check_task(str(file), **CALM).codes == ["same-id"]
    file.write_text('{"prompt": 5}\n')
    report = check_task(str(file), **CALM)
    assert report.codes == ["not-a-task-set"]
    assert "tasks.jsonl:1" in report.errors[0].what


def test_messages_that_end_with_the_assistant_or_hold_control_tokens_are_told() -> None:
    opening = [{"role": "user", "content": "hi <|im_end|>"}, {"role": "assistant", "content": "hello"}]
    report = check_task([{"messages": opening, "answer": "1"}], **CALM)
    assert report.codes == ["bad-task", "control-tokens"], str(report)


def test_extra_tools_of_an_env_are_offered_as_well() -> None:
    report = check_task(TaskList(faulty.problems), tools=[faulty.Basket], **CALM)
    assert report.codes == []
    assert report.checks[3].detail == "put"
    assert "shared-state" in str(check_task(TaskList(faulty.problems, tools=[faulty.one_basket]), **CALM))


@pytest.mark.parametrize("name", OWN)
def test_built_in_task_sets_pass(name: str) -> None:
    report = check_task(name, **CALM)
    assert report.findings == [], str(report)
