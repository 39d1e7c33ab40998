"""`toolstep eval` as it is used in a script: exit codes, stdout and stderr, samples of a task, and kills."""

from __future__ import annotations

import json
import random
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from test_cli_commands import command, invoke, ok, path, process  # noqa: F401 - path is a fixture
from test_evaluate_summary import episode

from toolstep.rollout.metrics import RunMetrics
from toolstep.rollout.progress import Tally, progress

FAILS = ("eval", "noisy_env:noisy/Fails-v0", "--agent", "oracle", "--episodes", "12")


def summary(*args: str) -> dict[str, Any]:
    return {k: v for k, v in json.loads(ok(*args, "--json", "--quiet"))["summary"].items() if k != "speed"}


# ------------------------------------------------------------------------------------------------------- exit codes
@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ([], 0, ""),
        (["--min-score", "0.1"], 0, ""),
        (["--min-score", "0.9"], 1, r"the mean score is 0\.\d+, below --min-score 0\.9"),
        (["--fail-on-error"], 1, r"\d of 12 episodes ended in an error \(--fail-on-error\)"),
        (["--min-score", "0.9", "--fail-on-error", "--json"], 1, r"below --min-score 0\.9; \d of 12 episodes"),
        (["--min-score", "1.1"], 2, "--min-score"),
    ],
)
def test_exit_code_says_whether_it_is_enough(options: list[str], code: int, told: str, tmp_path: Path) -> None:
    result = invoke(*FAILS, "--quiet", "--out", str(tmp_path / "out"), *options)
    assert result.exit_code == code, result.output
    assert re.search(told, result.stderr)
    if code != 2:
        data = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert data["mean_score"] == pytest.approx(0.5 * (12 - data["errors"]) / 12)
        assert 0 < data["errors"] < 12
        assert data["statuses"] == {"ok": 12 - data["errors"], "env_error": data["errors"]}
        assert data["episodes"] == 12
        assert f"| errors | {data['errors']}  (env_error" in (tmp_path / "out" / "summary.md").read_text()
    if "--json" in options:
        assert len(json.loads(result.stdout)["missed"]) == 2


def test_an_agent_that_is_good_enough_passes_both() -> None:
    ok("eval", "calculator", "--agent", "oracle", "--episodes", "3", "--min-score", "1", "--fail-on-error")


# ---------------------------------------------------------------------------------------------------- samples of tasks
@pytest.mark.parametrize("agent", ["random", "tiny-sft"])
def test_table_is_the_same_for_one_row_and_for_seven(agent: str) -> None:
    args = ["eval", "calculator", "--agent", agent, "--level", "1", "--episodes", "4", "--epochs", "3"]
    args += ["--temperature", "1", "--max-new-tokens", "24", "--max-turns", "3", "--device", "cpu"]
    one = summary(*args, "--num-envs", "1")
    assert one["episodes"] == 12
    assert [p["k"] for p in one["passes"]] == [1, 2, 3]
    assert summary(*args, "--num-envs", "7") == one


def test_samples_of_a_task_are_shown_as_pass_at_k(tmp_path: Path) -> None:
    shown = ok("eval", "lookup", "--agent", "oracle", "--episodes", "3", "--epochs", "5", "--out", str(tmp_path))
    page = (tmp_path / "summary.md").read_text()
    assert "one succeeds (pass@k)" in shown
    for k in (1, 2, 4, 5):
        assert f"| {k} | 3 | 1.000 | - | 1.000 | - |" in page
    assert "15 of 15" in page


# --------------------------------------------------------------------------------------------------- stdout and stderr
def test_only_the_document_is_on_stdout_whatever_prints(path: Path) -> None:  # noqa: F811
    done = process(path, "eval", "noisy_env:noisy/Prints-v0", "--agent", "oracle", "--episodes", "2", "--json")
    assert json.loads(done.stdout)["summary"]["episodes"] == 2
    assert "the env prints\n" in done.stderr
    assert "the env prints again" in done.stderr


def test_plain_lines_tell_how_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = RunMetrics()
    kept = [episode(1.0, success=1.0), episode(0.0, status="env_error")]
    with progress("x on y", 5, metrics, kept, quiet=False, every=0.001) as advance:
        deadline = time.monotonic() + 60
        advance(episode(1.0, success=1.0))
        metrics.episodes, metrics.seconds, metrics.sampled_tokens = 1, 2.0, 600
        shown = ""
        expected = "x on y: 3/5 episodes  success 0.67  errors 1  300 tokens/s  0.50 episodes/s  ETA 0:00:04\n"
        while expected not in shown and time.monotonic() < deadline:
            shown += capsys.readouterr().err
            time.sleep(0.01)
        assert expected in shown
        assert any(t.name == "toolstep-progress" for t in threading.enumerate())
    assert not any(t.name == "toolstep-progress" for t in threading.enumerate())
    assert capsys.readouterr().err.endswith("ETA 0:00:04\n")


def test_last_line_is_written_whatever_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress("x", 2, RunMetrics(), quiet=False):
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "x: 0/2 episodes  success -  0.00 episodes/s  ETA -\n"
    with progress("x", 2, RunMetrics(), quiet=True) as advance:
        advance(episode())
    assert capsys.readouterr().err == ""


def test_time_left_is_that_of_the_pace_of_this_process() -> None:
    metrics = RunMetrics(episodes=10, seconds=5.0)
    tally = Tally(7310, metrics, [episode()] * 90)
    for _ in range(10):
        tally.add(episode())
    assert tally.eta == "1:00:05"
    assert Tally(3, metrics, [episode()] * 3).line.endswith("episodes/s")


# --------------------------------------------------------------------------------------------------------------- kills
@pytest.mark.timeout(1200)
def test_a_run_that_is_killed_again_and_again_ends_in_the_same_table(path: Path, tmp_path: Path) -> None:  # noqa: F811
    args = ["eval", "slow_env:slow/Slow-v0", "--agent", "oracle", "--episodes", "9", "--epochs", "2", "--num-envs", "2"]
    ok(*args, "--out", str(tmp_path / "whole"))
    out = tmp_path / "run"
    line, env = command(path, *args, "--out", str(out), "--resume", "--quiet")
    log = out / "episodes.jsonl"
    draw = random.Random(0)
    for wanted in (0, 7):  # lines in the log when it is killed, at the least
        running = subprocess.Popen(line, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 400
            while not (log.exists() and log.read_bytes().count(b"\n") >= wanted):
                assert running.poll() is None, running.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(draw.uniform(0, 0.1))
        finally:
            running.kill()
            running.communicate()
        before = log.read_bytes()
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert log.read_bytes().startswith(before[: before.rfind(b"\n") + 1])  # nothing measured is played again
    lines = [(folder / "episodes.jsonl").read_bytes().splitlines() for folder in (tmp_path / "whole", out)]
    assert sorted(lines[0]) == sorted(lines[1])
    tables = [json.loads((folder / "summary.json").read_text()) for folder in (tmp_path / "whole", out)]
    for t in tables:
        t.pop("speed")
    assert tables[0] == tables[1]


def test_what_a_task_is_tagged_with_does_not_steer_the_terminal(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tag = "\x1b]0;owned\x07[bold]a|b\nc"
    tasks.write_text(json.dumps({"prompt": "x", "answer": "1", "tags": {"kind": tag}}) + "\n")
    shown = ok("eval", "--tasks", str(tasks), "--agent", "oracle", "--out", str(tmp_path / "out"))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]a|b" in shown
    page = (tmp_path / "out" / "summary.md").read_text()
    assert "| �]0;owned�[bold]a\\|b c | 1 |" in page
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["tags"]["kind"][tag]["episodes"] == 1
