"""`toolstep train`: a folder with all of a run, resumed where it stopped, one line for what a user gets wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model, tiny_tokenizer

from toolstep.rollout import storage
from toolstep.rollout.cli import main
from toolstep.rollout.learn.log import read_log
from toolstep.rollout.learn.online import OnlineLearner


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizer()
    made = tiny_model(len(tokenizer))
    made.config.eos_token_id = made.generation_config.eos_token_id = tokenizer.eos_token_id
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def run(*args: Any) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["train", *map(str, args)])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def options(model: str, out: Path) -> list[Any]:
    small = ["--env", "calculator", "--level", 1, "--max-new-tokens", 8, "--max-turns", 1, "--num-envs", 4]
    return [*small, "--model", model, "--out", out, "--eval-episodes", 2]


GRPO = ["grpo", "--groups", 1, "--group-size", 4]


def test_sft_then_grpo_from_its_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warm = tmp_path / "warm"
    sft = ["sft", *options(model, warm), "--env", "unit_convert", "--episodes", 6, "--batch-rows", 4]
    assert run(*sft, "--max-turns", 4, "--learning-rate", 1e-3) == 0
    assert "agent: hf:" in capsys.readouterr().out
    lines = read_log(warm / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert "eval/success" in lines[0]
    assert lines[-1]["loss"] < lines[1]["loss"]
    assert run("sft", "--resume", "--episodes", 9, "--out", warm) == 2
    assert "--episodes is 6 in" in capsys.readouterr().err
    names = {p.name for p in warm.iterdir()}
    assert names >= {"config.json", "metrics.jsonl", "checkpoint.safetensors", "model"}
    assert run(*GRPO, *options(f"hf:{warm / 'model'}", tmp_path / "rl"), "--episodes", 8, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["iterations"] == 2
    assert document["test_success"] == {"first": 0.0, "last": 0.0}


def test_a_file_of_tasks_is_trained_on_with_named_tools_and_rewards(model: str, tmp_path: Path) -> None:
    tasks = tmp_path / "sums.jsonl"
    items = [{"prompt": f"{i} + 1?", "answer": i + 1, "tools": ["calculator"]} for i in range(20)]
    tasks.write_text("".join(json.dumps(item) + "\n" for item in items))
    small = ["--max-new-tokens", 8, "--max-turns", 1, "--num-envs", 4, "--model", model, "--eval-episodes", 2]
    given = ["--tasks", tasks, "--tool", "clock", "--reward", "numeric"]
    weights = ["--reward-weight", "token_cost=0.125", "--reward-clip", -0.5, 1]
    out = tmp_path / "rl"
    assert run(*GRPO, *small, *given, *weights, "--episodes", 4, "--out", out, "--json") == 0
    line = read_log(out / "metrics.jsonl")[-1]
    assert line["reward/outcome"] == line["success"]
    assert -8 <= line["reward/token_cost"] < 0
    assert -0.5 <= line["reward"] < 1
    assert run(*GRPO, "--resume", *weights, "--out", out, "--episodes", 8, "--json") == 0
    assert len(read_log(out / "metrics.jsonl")) > 2
    assert run(*GRPO, *small, *given, "--env", "calculator", "--out", tmp_path / "both") == 2


def test_an_interrupted_run_goes_on_where_its_checkpoint_is(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert run(*GRPO, *options(model, whole), "--episodes", 20, "--save-every", 2) == 0
    real = OnlineLearner._iterate

    def interrupted(self: Any, remaining: float) -> Any:
        if self.iteration == 3:
            raise KeyboardInterrupt
        return real(self, remaining)

    monkeypatch.setattr(OnlineLearner, "_iterate", interrupted)
    assert run(*GRPO, *options(model, half), "--episodes", 20, "--save-every", 2) == 130
    assert f"go on with --resume --out {half}" in capsys.readouterr().out
    assert [line["iteration"] for line in read_log(half / "metrics.jsonl")] == [0, 1, 2, 3]
    monkeypatch.setattr(OnlineLearner, "_iterate", real)
    assert run("grpo", "--resume", "--out", half) == 0
    assert [line["iteration"] for line in read_log(half / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5]
    a, b = ((folder / "model" / "model.safetensors").read_bytes() for folder in (whole, half))
    assert a == b


def test_a_run_that_was_ended_before_its_first_checkpoint_or_made_longer_can_be_resumed_as_it_says(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert run(*GRPO, *options(model, whole), "--episodes", 12) == 0
    real, ends = OnlineLearner._iterate, [1, 2]

    def interrupted(self: Any, remaining: float) -> Any:
        if ends and self.iteration == ends[0]:
            ends.pop(0)
            raise KeyboardInterrupt
        return real(self, remaining)

    monkeypatch.setattr(OnlineLearner, "_iterate", interrupted)
    assert run(*GRPO, *options(model, half), "--episodes", 8, "--save-every", 100) == 130
    assert not (half / "checkpoint.safetensors").exists()
    (half / ".checkpoint.safetensors.dead").write_text("half of one")
    assert run("grpo", "--resume", "--episodes", 12, "--out", half) == 130
    assert f"go on with --resume --out {half}" in capsys.readouterr().out
    assert run("grpo", "--resume", "--out", half) == 0
    assert [line["iteration"] for line in read_log(half / "metrics.jsonl")] == [0, 1, 2, 3]
    assert json.loads((half / "config.json").read_text())["options"]["episodes"] == 12
    assert not (half / ".checkpoint.safetensors.dead").exists()
    a, b = ((folder / "model" / "model.safetensors").read_bytes() for folder in (whole, half))
    assert a == b
    with storage.locked(half):
        assert run("grpo", "--resume", "--out", half) == 1
    assert "another process is writing to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "is no JSON"), ("[1]", "has no method and options"), ('{"agent": "oracle"}', "has no method and options")],
)
def test_a_folder_of_something_else_cannot_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "config.json").write_text(text)
    assert run("grpo", "--resume", "--out", tmp_path) == 2
    told = capsys.readouterr().err
    assert message in told
    assert str(tmp_path) in told.replace("\n", "")


def test_a_finished_run_can_be_made_longer_and_nothing_else(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*GRPO, *options(model, tmp_path), "--episodes", 4) == 0
    assert run("grpo", "--resume", "--episodes", 8, "--out", tmp_path, "--json") == 0
    capsys.readouterr()
    assert run("grpo", "--resume", "--groups", 3, "--out", tmp_path) == 2
    assert "--groups is 1 in" in capsys.readouterr().err
    assert run("dpo", "--resume", "--out", tmp_path) == 2
    assert "holds a run of `toolstep train grpo`, not of dpo" in capsys.readouterr().err


def test_an_adapter_is_merged_into_the_model_that_is_written(model: str, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra `lora`")
    assert run("dpo", *GRPO[1:], *options(model, tmp_path), "--episodes", 4, "--lora", 2) == 0
    from toolstep.agents import load_model

    names = dict(load_model(str(tmp_path / "model")).named_parameters())
    assert not any("lora" in name for name in names)


def test_rejection_sampling_without_a_success_says_so(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sft", *options(model, tmp_path), "--teacher", "self", "--episodes", 3) == 1
    assert "none of 3 episodes of teacher 'self' succeeded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--env", "calculater"], "did you mean"),
        (["--model", "/nowhere/model"], "there is no folder"),
        (["--env", "unit_convert"], "train grpo takes one --env, got 2"),
        (["--objective", "ppo"], "--objective must be one of"),
        (["--resume"], "config.json"),
        (["--temperature", 0], "whole distribution"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_and_exit_code_2(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: list[Any], message: str
) -> None:
    base = options(model, tmp_path / "out")
    if change[0] == "--env" and change[1] != "unit_convert":
        base = base[2:]
    assert run(*GRPO, *base, *change, "--episodes", 4) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if "Loading weights" not in line and line]
    assert len(told) == 1
    assert message in told[0]


def test_env_and_model_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sft", "--out", tmp_path) == 2
    assert "one of --env and --tasks, and --model are needed" in capsys.readouterr().err
