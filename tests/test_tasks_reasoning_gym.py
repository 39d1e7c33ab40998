"""reasoning-gym: hashed seeds, full marks or nothing, and no scorer that runs an answer as code."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from toolstep.envs.checker import check_env, check_task
from toolstep.envs.tasks import TaskError, example_messages, load_tasks, reasoning_gym
from toolstep.envs.tasks.families import FAMILIES
from toolstep.envs.tasks.reasoning_gym import ReasoningGymMissing, ReasoningGymTasks, final_answer
from toolstep.envs.tools.builtin import monty
from toolstep.envs.types import EpisodeRecord, Message, StopReason, Task

package = pytest.importorskip("reasoning_gym", reason="pip install 'toolstep[reasoning-gym]'")
if monty.missing():
    pytest.skip(monty.missing(), allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent
FAMILY = next(f for f in FAMILIES if f.name == "ReasoningGym")
QUICK = [k for k in FAMILY.members if k != "zebra_puzzles"]  # that one takes a tenth of a second a draw


def answered(task: Task, text: str) -> EpisodeRecord:
    return EpisodeRecord(task, (*task.messages, Message("assistant", text)), StopReason.ANSWERED, 1)


@pytest.mark.parametrize("kind", FAMILY.members)
def test_the_oracle_gets_full_marks_and_hostile_text_none(kind: str, tmp_path: Path) -> None:
    tasks = load_tasks(f"reasoninggym-{kind}")
    path = tmp_path / "written"
    hostile = [
        "",
        "<answer></answer>",
        "9" * 9_999,
        "9" * 10_001,
        "1e999999999",
        "-1e-999999999",
        "9**9**9**9",
        "1/0",
        f"__import__('os').system('touch {path}')",
        f"[open('{path}', 'w')]",
        "\ud800",
        "\x00" * 50,
        "nan",
        "inf",
        "0x" + "f" * 9_000,
        "[" * 5_000,
        "<answer>" * 1_000,
        "right " * 1_500,
        "Move disk 1 from Peg 1 to Peg 99\n" * 200,
        "2000-13-45 99:99:99",
    ]
    for split in ("train", "test"):
        for seed in range(6 if kind in QUICK else 1):
            task = tasks.task(seed, split)  # type: ignore[arg-type]
            assert tasks.score(answered(task, tasks.oracle(EpisodeRecord(task, task.messages, None, 0)).content)) == 1.0
            assert tasks.score(answered(task, str(task.answer))) == 1.0
            assert pickle.loads(pickle.dumps(task)).answer == task.answer
    for text in hostile:
        assert tasks.score(answered(task, text)) == 0.0, text[:40]
        assert tasks.score(answered(task, f"<answer>{text}</answer>")) == 0.0, text[:40]
    assert not path.exists()
    assert tasks.tools(task)[0] is not None
    tasks.close()


def fingerprint() -> str:
    out = []
    for kind in QUICK:
        tasks = load_tasks(f"reasoninggym-{kind}")
        for seed in (0, 1, 2**63 - 1):
            task = tasks.task(seed)
            out.append([task.id, task.messages[-1].content, str(task.answer)])
    return hashlib.sha256(json.dumps(out).encode()).hexdigest()


def test_tasks_are_the_same_in_every_process() -> None:
    code = (
        "import sys, types; m = types.ModuleType('toolstep'); m.__path__ = [sys.argv[1]]; sys.modules['toolstep'] = m;"
        "sys.path.insert(0, sys.argv[1] + '/tests'); import test_tasks_reasoning_gym as t; print(t.fingerprint())"
    )
    env = {**os.environ, "PYTHONHASHSEED": "4321"}
    ran = subprocess.run([sys.executable, "-c", code, str(ROOT)], env=env, capture_output=True, text=True, timeout=240)
    assert ran.stdout.strip() == fingerprint(), ran.stderr


def test_neighbouring_seeds_share_nothing_and_splits_neither() -> None:
    """The package's own datasets of neighbouring seeds are the same items, moved by one."""
    second, first = package.create_dataset("gcd", size=2, seed=42)[1], package.create_dataset("gcd", size=1, seed=43)[0]
    assert second["question"] == first["question"]
    for kind in ("gcd", "chain_sum", "time_intervals", "base_conversion"):
        tasks = load_tasks(f"reasoninggym-{kind}")
        train = {tasks.task(seed).messages[-1].content for seed in range(120)}
        test = {tasks.task(seed, "test").messages[-1].content for seed in range(60)}
        shown = {tasks.example(seed).messages[-1].content for seed in range(20)}
        assert len(train) > 110
        assert not train & test
        assert not shown & (train | test)


def test_nearly_right_is_wrong() -> None:
    """Such scorers give 0.9999 for a time that is a second off, and a half for a longer path."""
    tasks = load_tasks("reasoninggym-time_intervals")
    seen = 0
    for seed in range(40):
        task = tasks.task(seed)
        if task.data["metadata"]["task_type"] == "time_seconds":
            *rest, seconds = task.answer.split(":")
            near = ":".join((*rest, f"{(int(seconds) + 1) % 60:02d}"))
            assert tasks.score(answered(task, f"<answer>{near}</answer>")) == 0.0
            seen += 1
    assert seen
    tasks = load_tasks("reasoninggym-chain_sum")
    task = tasks.task(0)
    assert tasks.score(answered(task, f"I think that it is {task.answer}.")) == 0.0
    assert tasks.score(answered(task, f"I think: <answer> {task.answer} </answer> That is all.")) == 1.0
    assert tasks.score(answered(task, f"<answer>{task.answer}</answer> or <answer>0</answer>")) == 0.0


def test_a_scorer_that_raises_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = load_tasks("reasoninggym-gcd")
    task = tasks.task(0)
    kind = type(package.create_dataset("gcd", size=1, seed=0))
    monkeypatch.setattr(kind, "score_answer", lambda *_: 1 / 0)
    assert tasks.score(answered(task, str(task.answer))) == 0.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5", "5"),
        (" <answer> 5 </answer> so", "5"),
        ("<answer>4</answer> no, <answer>5</answer>", "5"),
        ("<answer>5", "5"),
        ("<answer>a\nb</answer>", "a\nb"),
        ("</answer>5", "</answer>5"),
    ],
)
def test_the_answer_stands_in_the_last_tag(text: str, answer: str) -> None:
    assert final_answer(text) == answer


#: Scorers that run the answer, never end or take garbage; problems that differ between processes, or have no answer.
REFUSED = [
    *(
        "string_insertion",
        "spiral_matrix",
        "binary_matrix",
        "n_queens",
        "simple_integration",
        "intermediate_integration",
    ),
    *("polynomial_multiplication", "puzzle24", "countdown", "codeio", "list_functions", "word_ladder", "knight_swap"),
    *("isomorphic_strings", "ransom_note", "game_of_life_halting", "prime_factorization", "boxnet", "rubiks_cube"),
]


@pytest.mark.parametrize("kind", REFUSED)
def test_kinds_that_are_not_on_the_list_are_refused(kind: str) -> None:
    assert kind in package.factory.DATASETS
    with pytest.raises(TaskError, match="is not on the list; "):
        ReasoningGymTasks(kind)


def test_no_scorer_on_the_list_gives_the_answer_to_an_interpreter() -> None:
    """Those that call `eval` at all do it with the problem, which is the package's own."""
    import inspect

    calling = {k for k in FAMILY.members if "eval(" in inspect.getsource(package.factory.DATASETS[k][0].score_answer)}
    assert calling == {"number_sorting"}
    source = inspect.getsource(package.factory.DATASETS["number_sorting"][0].score_answer)
    assert [line.strip() for line in source.split("\n") if "eval(" in line] == [
        'expected_answer = eval(entry["answer"])'
    ]
    for kind in FAMILY.members:
        assert "parse_expr" not in inspect.getsource(package.factory.DATASETS[kind][0].score_answer)


def test_options_of_the_kind_are_passed_on_and_checked() -> None:
    tasks = load_tasks(
        "reasoninggym-chain_sum", config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    )
    assert all(len(str(tasks.task(seed).answer).lstrip("-")) <= 2 for seed in range(20))
    with pytest.raises(TaskError, match=r"config \{'terms': 2\} cannot be used"):
        load_tasks("reasoninggym-chain_sum", config={"terms": 2})


def test_tools_and_examples_in_an_env() -> None:
    for kind, tool in (("chain_sum", "calculator"), ("count_primes", "python"), ("time_intervals", "python")):
        env: Any = gym.make(f"toolstep/ReasoningGym-{kind}-v0", shots=1, strict=True).unwrapped
        env.reset(seed=3)
        assert [s["function"]["name"] for s in env.schemas] == [tool]
        arguments = {"expression": "2 + 3"} if tool == "calculator" else {"code": "2 + 3"}
        call = {"name": tool, "arguments": arguments}
        observation, _, terminated, _, _ = env.step(f"<tool_call>{json.dumps(call)}</tool_call>")
        assert "5" in observation
        assert not terminated
        assert env.step(env.oracle_action())[1:3] == (1.0, True)
        env.close()
    assert len(example_messages(load_tasks("reasoninggym-gcd"), 2)) == 4


def test_a_missing_package_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning_gym.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ReasoningGymMissing, match=r"pip install 'toolstep\[reasoning-gym\]'"):
        gym.make("toolstep/ReasoningGym-gcd-v0")


@pytest.mark.parametrize("kind", ["chain_sum", "letter_counting"])
def test_the_checker_of_users_envs_finds_nothing(kind: str) -> None:
    name = f"toolstep/ReasoningGym-{kind}-v0"
    report = check_task(name, seeds=4, episodes=1, timeout=60.0, quiet=True)
    assert report.findings == [], str(report)
    report = check_env(name, episodes=1, resets=5, quiet=True)
    assert report.findings == [], str(report)
