"""The command line: what it prints, what it writes, and what bad input gets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from toolstep.rollout import load_batch, read_episodes
from toolstep.rollout.cli import app, main

ROOT = Path(__file__).resolve().parent.parent


def invoke(*args: str, text: str | None = None) -> Any:
    return CliRunner().invoke(app, list(args), input=text, catch_exceptions=False, env={"COLUMNS": "120"})


def ok(*args: str, text: str | None = None) -> str:
    result = invoke(*args, text=text)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which another process imports `toolstep` out of this checkout."""
    folder = tmp_path_factory.mktemp("path") / "toolstep"
    folder.mkdir()
    for name in ("envs", "agents", "rollout"):
        (folder / name).symlink_to(ROOT / name)
    return folder.parent


def command(path: Path, *args: str) -> tuple[list[str], dict[str, str]]:
    search = os.pathsep.join([str(path), str(ROOT / "tests")])
    env = {**os.environ, "PYTHONPATH": search, "COLUMNS": "120"}
    return [sys.executable, "-m", "toolstep.rollout.cli", *args], env


def process(path: Path, *args: str) -> subprocess.CompletedProcess[str]:
    line, env = command(path, *args)
    return subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)


# ------------------------------------------------------------------------------------------- help and usage


def test_help_imports_nothing_heavy(path):
    line, env = command(path)
    code = (
        "import sys\n"
        "from toolstep.rollout.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "finally:\n"
        "    heavy = {'torch', 'transformers', 'gymnasium', 'scipy', 'numpy', 'jinja2', 'pydantic', 'fastapi'}\n"
        "    print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([line[0], "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "rollout" in done.stdout
    assert "HEAVY []" in done.stdout


def test_importing_the_package_imports_neither_torch_nor_gymnasium(path):
    line, env = command(path)
    code = (
        "import sys, toolstep.rollout as r\n"
        "print(sorted({'torch', 'transformers', 'gymnasium', 'numpy'} & set(sys.modules)))\n"
        "import toolstep.rollout.collect, toolstep.rollout.evaluate\n"
        "from toolstep.rollout import collect, evaluate\n"
        "print(callable(collect), callable(evaluate), callable(r.group_specs))\n"
        "from toolstep.rollout.collect import collect as same\n"
        "print(same is collect, sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([line[0], "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[]", "True True True", "True []"], done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("last", ["--json", "--quiet"])
def test_a_full_device_behind_stdout_is_one_line(path, last):
    line, env = command(path, "eval", "calculator", "--agent", "oracle", "--episodes", "2", last)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "toolstep: error: [Errno 28] No space left on device"
    assert "Traceback" not in done.stderr


def test_every_exported_name_exists():
    import toolstep.rollout as package

    for name in package.__all__:
        assert getattr(getattr(package, name), "__name__", name) == name
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["evl"], "No such command 'evl'"),
        (["eval", "--agent", "oracle"], "give one of ENV, --tasks FILE and --prompt TEXT; found none"),
        (["eval", "calculator"], "--agent"),
        (["eval", "calculator", "--agnt", "x"], "--agent"),
        (["eval", "calculator", "--agent", "oracle", "--episodes", "many"], "--episodes"),
        (["eval", "calculator", "--agent", "oracle", "--episodes", "0"], "--episodes"),
        (["eval", "calculator", "--autoreset-mode", "same_step"], "SameStep"),
        (
            ["eval", "calculater", "--agent", "oracle"],
            "unknown env 'calculater'; did you mean 'toolstep/Calculator-v0'?",
        ),
        (["eval", "toolstep/Lookup-v7x", "--agent", "oracle"], "did you mean 'toolstep/Lookup-v0'?"),
        (["envs", "unitconvertt"], "did you mean 'toolstep/UnitConvert-v0'?"),
        (["play", "nonsense"], "unknown env 'nonsense'. Known envs: toolstep/Assistant-v0"),
        (["eval", "no_such_module:x/Y-v0", "--agent", "oracle"], "cannot import 'no_such_module'"),
        (["eval", "calculator", "--agent", "orcale"], "unknown agent 'orcale'; did you mean 'oracle'?"),
        (["eval", "calculator", "--agent", "hf:/no/such/folder"], "/no/such/folder"),
        (["eval", "calculator", "--agent", "oracle", "--level", "9"], "level must be one of"),
        (["eval", "calculator", "--agent", "random", "--top-p", "0"], "top_p must be"),
        (["rollout", "calculator", "--agent", "oracle", "--out", "x.txt"], "unknown suffix '.txt'"),
        (["rollout", "calculator", "--agent", "oracle", "--out", "x.npz"], "samples no token ids"),
    ],
)
def test_usage_error_is_one_line_that_says_what_to_do(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(args)
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert not list(tmp_path.iterdir())


def test_usage_error_of_a_real_process_has_no_traceback(path):
    done = process(path, "eval", "calculater", "--agent", "oracle")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("toolstep: error: unknown env 'calculater'; did you mean")
    assert len(done.stderr.splitlines()) == 1


def test_version_and_bare_command():
    assert re.match(r"toolstep \S+", ok("--version"))
    assert "Usage" in ok()


# --------------------------------------------------------------------------------------------------- envs


def test_envs_are_listed_and_described():
    table = ok("envs")
    items = json.loads(ok("envs", "--json"))
    assert {i["id"] for i in items} >= {"toolstep/Calculator-v0", "toolstep/Lookup-v0"}
    assert all((i["family"] or i["id"]) in table and i["description"] for i in items)
    data = json.loads(ok("envs", "Calculator-v0", "--json", "--level", "1", "--seed", "3"))
    assert data["id"] == "toolstep/Calculator-v0"
    assert data["tags"]["level"] == "1"
    assert [t["function"]["name"] for t in data["tools"]] == ["calculator"]
    assert data["messages"][-1]["content"] in data["prompt"]
    shown = ok("envs", "calculator", "--level", "1", "--seed", "3")
    assert data["messages"][-1]["content"] in shown
    assert '"name": "calculator"' in shown


@pytest.mark.parametrize(
    "name", ["toolstep/UnitConvert-v0", "UnitConvert-v0", "unit_convert", "unit-convert", "UNITCONVERT"]
)
def test_env_is_found_by_every_form_of_its_name(name):
    assert json.loads(ok("envs", name, "--json"))["id"] == "toolstep/UnitConvert-v0"


# --------------------------------------------------------------------------------------------------- play


def test_person_calls_a_tool_and_answers():
    shown = ok(
        "play", "calculator", "--seed", "1", "--level", "1",
        text='/call calculator {"expression": "2+3"}\n/call calculator {oops\n/call\n/tools\nfirst \\\nlast\n',
    )  # fmt: skip
    assert "── tool calculator\n5" in shown
    assert "the arguments are no JSON" in shown
    assert "write /call NAME {JSON}" in shown
    assert '{"name": "calculator"' in shown
    assert "answered, score 0" in shown


def test_end_of_input_ends_the_game():
    assert "left before the end" in ok("play", "calculator", "--seed", "1", text="")


def test_same_seed_is_the_same_game():
    assert ok("play", "lookup", "--seed", "5", text="x\n") == ok("play", "lookup", "--seed", "5", text="x\n")


# --------------------------------------------------------------------------------------------------- eval


def test_eval_writes_its_folder(tmp_path):
    out = tmp_path / "run"
    table = ok("eval", "calculator", "--agent", "oracle", "--episodes", "6", "--num-envs", "4", "--out", str(out))
    assert "1.000  [0.610, 1.000]  (6 of 6)" in table
    assert "by level" in table
    written = ["config.json", "episodes.jsonl", "report.html", "summary.json", "summary.md"]
    assert sorted(p.name for p in out.iterdir()) == written
    config = json.loads((out / "config.json").read_text())
    assert (config["env"], config["agent"], config["split"]) == ("toolstep/Calculator-v0", "oracle", "test")
    assert config["versions"]["gymnasium"]
    trajectories = read_episodes(out / "episodes.jsonl")
    assert sorted(t.seed for t in trajectories) == sorted(config["task_seeds"])
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["successes"], summary["episodes"], summary["requested"]) == (6, 6, 6)
    assert "| success | 1.000  [0.610, 1.000]  (6 of 6) |" in (out / "summary.md").read_text()


def test_json_is_the_only_thing_on_stdout(path):
    done = process(path, "eval", "calculator", "--agent", "oracle", "--episodes", "3", "--json")
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert data["summary"]["episodes"] == 3
    assert data["config"]["num_envs"] == 3
    assert data["interrupted"] is False
    assert done.stderr.startswith("oracle on toolstep/Calculator-v0: 3/3 episodes  success 1.00")


def test_progress_is_plain_lines_where_there_is_no_terminal(path):
    args = ["eval", "calculator", "--agent", "oracle", "--episodes", "3"]
    done = process(path, *args)
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) >= 1
    assert done.stderr.splitlines()[-1].startswith("oracle on toolstep/Calculator-v0: 3/3 episodes  success 1.00")
    assert "\x1b" not in done.stdout + done.stderr
    assert process(path, *args, "--quiet").stderr == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_progress_bar_shows_success_and_throughput_on_a_terminal(path):
    import pty

    ours, theirs = pty.openpty()
    line, env = command(
        path, "eval", "slow_env:slow/Slow-v0", "--agent", "oracle", "--episodes", "16", "--num-envs", "2"
    )
    running = subprocess.Popen(line, env={**env, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # Linux says EIO where the other end is closed
        pass
    finally:
        os.close(ours)
    assert running.communicate(timeout=60)[0].count("oracle on slow/Slow-v0") == 1
    text = shown.decode()
    assert re.search(r"\d+/16", text)
    assert "success 1.00" in text
    assert "episodes/s" in text


def test_table_does_not_depend_on_rows_or_mode():
    def table(*options: str) -> dict[str, Any]:
        data = json.loads(
            ok("eval", "lookup", "--agent", "oracle", "--episodes", "7", "--json", "--seed", "2", *options)
        )["summary"]
        return {k: v for k, v in data.items() if k != "speed"}

    expected = table("--num-envs", "1")
    assert table("--num-envs", "7", "--autoreset-mode", "SameStep") == expected
    assert table("--num-envs", "3", "--autoreset-mode", "Disabled") == expected


def test_options_reach_the_env():
    data = json.loads(
        ok("eval", "calculator", "--agent", "oracle", "--episodes", "4", "--level", "2", "--max-turns", "1", "--json")
    )
    assert set(data["summary"]["tags"]["level"]) == {"2"}
    assert data["summary"]["stop_reasons"] == {"max_turns": 4}


def test_existing_folder_is_refused_before_any_work_unless_told(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    args = ["eval", "calculator", "--episodes", "2", "--out", str(out), "--agent"]
    result = invoke(*args, "hf:/never/looked/for")
    assert result.exit_code == 2
    assert "is not empty; pass --overwrite" in result.stderr
    for _ in range(2):
        ok(*args, "oracle", "--overwrite")
        assert len(read_episodes(out / "episodes.jsonl")) == 2
    assert (out / "notes.txt").read_text() == "mine"


def test_unwritable_out_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    result = invoke("eval", "calculator", "--agent", "hf:/never/looked/for", "--out", str(tmp_path / "file" / "x"))
    assert result.exit_code == 2
    assert "cannot write to" in result.stderr


# ------------------------------------------------------------------------------------------------- rollout


def test_rollout_writes_episodes_in_group_order(tmp_path):
    out = tmp_path / "deep" / "episodes.jsonl"
    args = ["rollout", "lookup", "--agent", "oracle", "--groups", "3", "--group-size", "2", "--out", str(out)]
    assert "written to" in ok(*args)
    rows = read_episodes(out)
    assert [(t.group_id, t.sample_index) for t in rows] == [(g, s) for g in range(3) for s in range(2)]
    assert len({t.seed for t in rows}) == 3
    assert invoke(*args).exit_code == 2
    ok(*args, "--overwrite")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    from tiny import tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    model = tiny_model(len(tokenizer))
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    return folder


def test_rollout_of_a_model_writes_a_token_level_batch(tmp_path, tiny_folder):
    out = tmp_path / "batch.npz"
    data = json.loads(
        ok(
            "rollout", "calculator", "--agent", f"hf:{tiny_folder}", "--groups", "2", "--group-size", "3",
            "--max-new-tokens", "6", "--max-turns", "2", "--num-envs", "4", "--device", "cpu",
            "--out", str(out), "--json",
        )
    )  # fmt: skip
    batch = load_batch(out)
    assert batch.group_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.input_ids.shape == tuple(data["batch"]["shape"])
    assert batch.action_mask.sum() == data["batch"]["action_tokens"] > 0
    assert (batch.old_logprobs[batch.action_mask] < 0).all()
    assert not batch.old_logprobs[~batch.action_mask].any()
    for group in (0, 1):
        rows = batch.input_ids[batch.group_ids == group]
        prompts = [r[: int(np.argmax(m))] for r, m in zip(rows, batch.action_mask[batch.group_ids == group])]
        assert len({p.tobytes() for p in prompts}) == 1


def test_model_without_a_chat_template_is_one_line_that_says_what_to_do(tiny_folder, tmp_path, capsys):
    for file in tiny_folder.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["eval", "calculator", "--agent", f"hf:{tmp_path}", "--device", "cpu"])
    assert ended.value.code == 2
    assert "no chat template" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- interrupts


@pytest.mark.parametrize("kind", ["eval", "rollout"])
def test_interrupt_exits_130_and_keeps_what_is_finished(path, tmp_path, kind):
    out = tmp_path / ("run" if kind == "eval" else "episodes.jsonl")
    size = ["--episodes", "40"] if kind == "eval" else ["--groups", "20", "--group-size", "2"]
    args = [kind, "slow_env:slow/Slow-v0", "--agent", "oracle", *size, "--num-envs", "2", "--out", str(out), "--json"]
    line, env = command(path, *args)
    started = tmp_path / "started"
    running = subprocess.Popen(
        line, env={**env, "SLOW_ENV_MARK": str(started)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not started.exists():
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 130, stderr
    assert "Traceback" not in stderr
    data = json.loads(stdout)
    assert data["interrupted"] is True
    done = read_episodes(out / "episodes.jsonl" if kind == "eval" else out)
    assert 0 < len(done) < 40
    assert data["summary"]["episodes"] == len(done)
    assert data["summary"]["requested"] == 40
    if kind == "eval":
        assert json.loads((out / "summary.json").read_text())["episodes"] == len(done)
        assert f"Interrupted: {len(done)} of 40" in (out / "summary.md").read_text()


@pytest.fixture(scope="module")
def base_model(tmp_path_factory):
    """A folder with a model whose tokenizer has no chat template, and a file with one."""
    from tiny import TEMPLATE, tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("base")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    tiny_model(len(tokenizer)).save_pretrained(folder)
    template = folder / "mine.jinja"
    template.write_text(TEMPLATE)
    return folder, template


def test_a_model_without_a_chat_template_is_told_how_to_get_one(path, base_model):
    folder, template = base_model
    args = ["eval", "calculator", "--agent", f"hf:{folder}", "--episodes", "2", "--max-new-tokens", "4"]
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2  # Llama's default, not ours
    done = process(path, *args)
    assert done.returncode == 2
    assert "--chat-template FILE" in done.stderr
    done = process(path, *args, "--chat-template", str(template))
    assert done.returncode == 2
    assert "generation stops at" in done.stderr
    done = process(path, *args, "--chat-template", str(template), "--stop-token", "<|im_end|>", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["stop_reasons"] == {"cut_turn": 2}


def test_what_is_finished_is_kept_when_something_breaks(tmp_path, monkeypatch):
    from toolstep.rollout.build import Settings
    from toolstep.rollout.rollout_job import RolloutJob

    settings = Settings("calculator", "oracle", 2, 0, None, 8, 0.0, 0, 1.0, 1, 0, "train", None, "SameStep")
    job = RolloutJob(settings, 6, 1, tmp_path / "out.jsonl", overwrite=False)
    predict = job.agent.predict
    calls = []

    def breaks(*args, **kwargs):
        calls.append(1)
        if len(calls) > 4:
            raise FloatingPointError("broken weights")
        return predict(*args, **kwargs)

    monkeypatch.setattr(type(job.agent), "predict", lambda self, *a, **k: breaks(*a, **k))
    with pytest.raises(FloatingPointError):
        job.run(quiet=True)
    assert len(read_episodes(tmp_path / "out.jsonl")) == len(job.finished) > 0


@pytest.mark.parametrize(
    ("line", "says"), [("", "nothing was typed"), ("/cal x", "unknown command"), ("/call", "/tools")]
)
def test_a_slip_while_playing_is_no_answer(line, says):
    from toolstep.rollout.terminal import InputError, parse_line

    with pytest.raises(InputError, match=says):
        parse_line(line, str)


def test_an_env_of_another_kind_is_refused_in_one_line(path):
    done = process(path, "eval", "CartPole-v1", "--agent", "random")
    assert done.returncode == 2
    assert "does not take the keywords of a toolstep env" in done.stderr
