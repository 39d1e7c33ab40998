"""The output folder of an evaluation: what it says of the run, and going on with a run that was cut short."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_cli_commands import invoke, ok
from tiny import tiny_model

from toolstep.agents.weights import describe_model
from toolstep.rollout import read_episodes, storage
from toolstep.rollout.build import Settings
from toolstep.rollout.config import differences, settings_of
from toolstep.rollout.storage import StorageError, locked

EVAL = ("eval", "calculator", "--agent", "oracle", "--level", "1", "--max-turns", "1")


def play(out: Path, *more: str) -> str:
    return ok(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(out), *more)


def table(out: Path) -> dict[str, Any]:
    data = json.loads((out / "summary.json").read_text())
    return {k: v for k, v in data.items() if k != "speed"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    play(out)
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, as it is when the process was killed before it wrote a summary."""
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    (out / "summary.json").unlink()
    (out / "summary.md").unlink()
    return out


def lines(out: Path) -> list[bytes]:
    return (out / "episodes.jsonl").read_bytes().splitlines(keepends=True)


# ------------------------------------------------------------------------------------------------------ config.json
def test_config_is_resolved(whole: Path) -> None:
    config = json.loads((whole / "config.json").read_text())
    assert (config["env"], config["split"], config["level"]) == ("toolstep/Calculator-v0", "test", 1)
    assert (config["epochs"], config["episodes"], len(config["task_seeds"])) == (2, 10, 5)
    assert config["limits"]["max_turns"] == 1
    assert config["limits"]["max_calls"] == 8  # nobody said so
    assert len(config["template"]["sha256"]) == 64
    assert config["template"]["tool_call_format"] == "hermes_json"
    assert config["versions"]["gymnasium"]
    assert json.loads(json.dumps(config)) == config


def test_settings_come_back_out_of_the_config(whole: Path) -> None:
    settings = settings_of(json.loads((whole / "config.json").read_text()))
    assert isinstance(settings, Settings)
    assert (settings.env, settings.agent, settings.max_turns) == ("toolstep/Calculator-v0", "oracle", 1)


def test_weights_are_told_apart() -> None:
    import torch

    model = tiny_model(100)
    first = describe_model(model)
    assert first == describe_model(model)
    assert first["parameters"] == sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        next(model.parameters()).mul_(1.0001)
    assert describe_model(model)["weights"] != first["weights"]
    assert describe_model(model.to(torch.bfloat16))["dtype"] == "bfloat16"


def test_differences_are_named_by_their_keys() -> None:
    a = {"env": "x", "num_envs": 1, "limits": {"max_turns": 4, "max_calls": 8}, "files": {}}
    b = {"env": "x", "num_envs": 7, "limits": {"max_turns": 5, "max_calls": 8}, "files": {"tasks": "ab"}, "new": None}
    assert [str(d) for d in differences(a, b)] == [
        "limits.max_turns: 4 and 5",
        'files.tasks: null and "ab"',
    ]


# ----------------------------------------------------------------------------------------------------------- resume
@pytest.mark.parametrize("kept", [0, 1, 4, 9, 10])
def test_a_run_that_was_cut_short_ends_in_the_same_table(run: Path, whole: Path, kept: int) -> None:
    all_lines = lines(run)
    torn = all_lines[kept][:-7] if kept < 10 else b""
    (run / "episodes.jsonl").write_bytes(b"".join(all_lines[:kept]) + torn)
    (run / ".summary.json.abc123").write_text("{")  # what a killed process leaves beside it
    play(run, "--resume", "--num-envs", "3", "--autoreset-mode", "SameStep")
    assert table(run) == table(whole)
    assert lines(run)[:kept] == all_lines[:kept]
    assert sorted(lines(run)) == sorted(all_lines)
    assert sorted(p.name for p in run.iterdir()) == sorted(p.name for p in whole.iterdir())


def test_only_what_is_owed_is_played(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import toolstep.rollout.jobs as jobs

    played: list[Any] = []

    def collect(envs: Any, agent: Any, specs: Any, **options: Any) -> Any:
        played.extend(specs)
        return real(envs, agent, specs, **options)

    real = jobs.collect
    monkeypatch.setattr(jobs, "collect", collect)
    owed = read_episodes(run / "episodes.jsonl")[7:]
    (run / "episodes.jsonl").write_bytes(b"".join(lines(run)[:7]))
    shown = play(run, "--resume")
    assert {(s.seed, s.sample_index) for s in played} == {(t.seed, t.sample_index) for t in owed}
    assert "the last 3 of 10 episodes" in shown
    speed = json.loads((run / "summary.json").read_text())["speed"]
    assert speed["episodes"] == 3
    played.clear()
    play(run, "--resume")
    assert played == []
    assert json.loads((run / "summary.json").read_text())["speed"] == speed


def test_resuming_nothing_begins(tmp_path: Path, whole: Path) -> None:
    for out in (tmp_path / "absent", tmp_path):
        play(out, "--resume")
        assert table(out) == table(whole)
        if out != tmp_path:
            shutil.rmtree(out)


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["--max-turns", "2"], ["max_turns: 1 and 2"]),
        (["--seed", "1", "--level", "2"], ["seed: 0 and 1", "level: 1 and 2", "task_seeds"]),
        (["--episodes", "6"], ["episodes: 10 and 12", "task_seeds"]),
        (["--epochs", "3"], ["epochs: 2 and 3"]),
        (["--agent", "hf:/never/looked/for"], ['agent: "oracle" and "hf:/never/looked/for"']),
    ],
)
def test_another_configuration_is_refused_by_its_keys(run: Path, options: list[str], keys: list[str]) -> None:
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    result = invoke(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(run), "--resume", *options)
    assert result.exit_code == 2
    assert "holds a run of another configuration" in result.stderr
    assert all(key in result.stderr for key in keys), result.stderr
    assert "num_envs" not in result.stderr
    assert {p.name: p.read_bytes() for p in run.iterdir()} == before


def test_what_only_the_made_env_shows_is_compared_too(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["template"]["sha256"] = "0" * 64
    (run / "config.json").write_text(json.dumps(config))
    result = invoke(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(run), "--resume")
    assert result.exit_code == 2
    assert "template.sha256" in result.stderr
    assert "max_turns" not in result.stderr


def test_changed_tasks_are_another_configuration(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "a", "answer": "1"}\n{"prompt": "b", "answer": "2"}\n')
    args = ["eval", "--tasks", str(tasks), "--agent", "oracle", "--out", str(tmp_path / "run")]
    ok(*args)
    tasks.write_text(tasks.read_text().replace("2", "3"))
    result = invoke(*args, "--resume")
    assert result.exit_code == 2
    assert "files.tasks" in result.stderr


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda line: b"{" + line, "no trajectory"),
        (lambda line: b"[" * 100_000 + b"\n", "no trajectory"),
        (lambda line: b"\x00\n", "no trajectory"),
        (lambda line: line.replace(b'"sample_index":1', b'"sample_index":0'), "is in line"),
        (lambda line: line.replace(b'"sample_index":1', b'"sample_index":7'), "none of this run's episodes"),
    ],
)
def test_a_damaged_line_costs_its_episode_alone(run: Path, whole: Path, change: Any, problem: str) -> None:
    all_lines = lines(run)
    at = next(i for i, line in enumerate(all_lines) if i > 1 and b'"sample_index":1' in line)
    bad = change(all_lines[at])
    (run / "episodes.jsonl").write_bytes(b"".join([*all_lines[:at], bad, *all_lines[at + 1 :]]))
    result = invoke(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(run), "--resume")
    assert result.exit_code == 0
    assert f"episodes.jsonl, line {at + 1}: " in result.stderr
    assert problem in result.stderr
    assert (run / "episodes.damaged.jsonl").read_bytes() == bad
    assert lines(run)[: len(all_lines) - 1] == [*all_lines[:at], *all_lines[at + 1 :]]
    assert table(run) == table(whole)


def test_a_log_of_something_else_is_left_alone(run: Path) -> None:
    (run / "episodes.jsonl").write_text('{"mine": 1}\n{"mine": 2}\n')
    result = invoke(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(run), "--resume")
    assert result.exit_code == 1
    assert "holds no episode of this run; line 1: no trajectory" in result.stderr
    assert (run / "episodes.jsonl").read_text() == '{"mine": 1}\n{"mine": 2}\n'


@pytest.mark.parametrize("text", ["", "[]", "{", "\udcff"])
def test_a_config_that_is_none_is_named(run: Path, text: str) -> None:
    (run / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    result = invoke(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(run), "--resume")
    assert result.exit_code == 2
    assert "config.json" in result.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "is not empty; pass --overwrite or choose another folder, or pass --resume to go on with the run in it"),
        (["--resume", "--overwrite"], "give one of them"),
    ],
)
def test_a_folder_in_use_is_not_touched_unless_told(run: Path, options: list[str], problem: str) -> None:
    before = {p.name: p.read_bytes() for p in run.iterdir()}
    result = invoke(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(run), *options)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert {p.name: p.read_bytes() for p in run.iterdir()} == before


def test_resume_needs_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    result = invoke(*EVAL, "--out", str(tmp_path), "--resume")
    assert result.exit_code == 2
    assert "has no config.json, so there is no run to go on with" in result.stderr
    result = invoke(*EVAL, "--resume")
    assert result.exit_code == 2
    assert "name it with --out" in result.stderr


def test_overwriting_forgets_the_other_run(run: Path) -> None:
    (run / "episodes.damaged.jsonl").write_text("old\n")
    (run / "notes.txt").write_text("mine")
    play(run, "--overwrite", "--level", "2")
    assert {t.tags["level"] for t in read_episodes(run / "episodes.jsonl")} == {"2"}
    assert not (run / "episodes.damaged.jsonl").exists()
    assert (run / "notes.txt").read_text() == "mine"


def test_two_processes_cannot_write_to_one_folder(run: Path) -> None:
    pytest.importorskip("fcntl")
    with locked(run):
        result = invoke(*EVAL, "--episodes", "5", "--epochs", "2", "--out", str(run), "--resume")
        assert result.exit_code == 1
        assert "another process is writing to" in result.stderr
        with pytest.raises(StorageError, match="another process"), locked(run):
            pass
    play(run, "--resume")


def test_the_log_is_whole_after_each_episode(run: Path) -> None:
    """Whatever byte a kill cuts the log at: what is whole is kept, the rest is owed."""
    data = (run / "episodes.jsonl").read_bytes()
    listed = {(t.seed, t.sample_index) for t in read_episodes(run / "episodes.jsonl")}
    path = run / "cut.jsonl"
    ends = [i + 1 for i, byte in enumerate(data) if byte == 10]
    for size in sorted({0, 1, *ends, *(e - 1 for e in ends), *(e + 1 for e in ends[:-1])}):
        path.write_bytes(data[:size])
        found = storage.recover_episodes(path, listed, run / "damaged")
        whole = max((e for e in ends if e <= size), default=0)
        assert path.read_bytes() == data[:whole]
        assert len(found.episodes) == sum(e <= size for e in ends)
        assert found.damaged == {}
    assert not (run / "damaged").exists()
