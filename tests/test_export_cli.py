"""`toolstep rollout --format`: what is written, by which name, and what is refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_cases import segmented
from test_cli_commands import invoke, ok, tiny_folder  # noqa: F401  (a fixture)

from toolstep.rollout import load_batch, read_episodes
from toolstep.rollout.cli import main
from toolstep.rollout.export import files, formats
from toolstep.rollout.export.formats import Format, choose_format

ARGS = ["--groups", "2", "--group-size", "2", "--max-new-tokens", "5", "--num-envs", "3", "--device", "cpu"]
NAMES = {
    Format.NPZ: "x.npz",
    Format.JSONL: "x.jsonl",
    Format.TRL: "x.json",
    Format.VERL: "x.jsonl",
    Format.TORCHRL: "x.pt",
    Format.SKYRL: "x.json",
    Format.PARQUET: "x.parquet",
    Format.DATASETS: "x",
}


@pytest.fixture
def sample(tiny_folder, tmp_path) -> Any:  # noqa: F811
    def run(form: Format, *options: str) -> tuple[Path, dict[str, Any]]:
        out = tmp_path / "deep" / NAMES[form]
        args = ["rollout", "calculator", "--agent", f"hf:{tiny_folder}", *ARGS, "--out", str(out), "--json", *options]
        return out, json.loads(ok(*args))

    return run


def test_every_format_has_a_writer_and_a_name_that_fits():
    assert set(files._WRITERS) == set(NAMES) == set(Format)
    for form, name in NAMES.items():
        if form.package is None:
            assert choose_format(Path(name), form) is form


@pytest.mark.parametrize("form", [Format.TRL, Format.VERL, Format.SKYRL, Format.TORCHRL])
def test_each_trainers_file_holds_the_episodes_of_the_run(sample, form):
    out, data = sample(form, "--format", form)
    assert data["config"]["format"] == form
    assert data["batch"]["action_tokens"] > 0
    if form is Format.TORCHRL:
        import torch

        tensors = torch.load(out)  # weights only: nothing is unpickled
        assert int(tensors["masks"]["all_assistant_mask"].sum()) == data["batch"]["action_tokens"]
        return
    text = out.read_text()
    rows = [json.loads(line) for line in text.splitlines()] if form is Format.VERL else json.loads(text)
    masks = {
        Format.TRL: lambda: rows["env_mask"],
        Format.VERL: lambda: [row["response_mask"] for row in rows],
        Format.SKYRL: lambda: rows["loss_masks"],
    }[form]()
    assert len(masks) == 4
    assert sum(map(sum, masks)) == data["batch"]["action_tokens"]
    if form is Format.SKYRL:
        assert [sorted(name) for name in rows["trajectory_ids"]] == [["instance_id", "repetition_id"]] * 4


def test_the_same_run_in_two_formats_is_the_same_episodes(sample):
    episodes = read_episodes(sample(Format.JSONL)[0])
    batch = load_batch(sample(Format.NPZ)[0])
    assert [t.token_ids.tolist() for t in episodes] == [
        ids[:n].tolist() for ids, n in zip(batch.input_ids, batch.lengths)
    ]
    assert np.array_equal(batch.rewards, np.float32([t.total_reward for t in episodes]))


@pytest.mark.parametrize("form", [Format.PARQUET, Format.DATASETS])
def test_tables_take_episodes_with_and_without_token_ids(sample, tmp_path, form):
    pytest.importorskip("pyarrow")
    pytest.importorskip(form.package)

    def rows(path: Path) -> list[dict[str, Any]]:
        if form is Format.DATASETS:
            import datasets

            return datasets.load_from_disk(str(path)).to_list()
        import pyarrow.parquet as pq

        return pq.read_table(path).to_pylist()

    out, _ = sample(form, "--format", form)
    assert sum(sum(row["assistant_masks"]) for row in rows(out)) > 0
    text = tmp_path / NAMES[form]
    args = ["rollout", "lookup", "--agent", "oracle", "--groups", "2", "--group-size", "1", "--out", str(text)]
    ok(*args, "--format", form)
    assert [row["reward"] for row in rows(text)] == [1.0, 1.0]
    refused = invoke(*args, "--format", form)
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    ok(*args, "--format", form, "--overwrite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", text.name]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--out", "x.txt"], "x.txt: unknown suffix '.txt'; use .npz for a token-level batch, .jsonl for episodes"),
        (["--out", "x.json"], "or say --format (npz, jsonl, trl, verl, torchrl, skyrl, parquet, datasets)"),
        (["--out", "x.npz", "--format", "trl"], "--format trl writes a file *.json, so --out cannot be x.npz"),
        (["--out", "x.jsonl", "--format", "npz"], "--format npz writes a file *.npz"),
        (["--out", "x.parquet", "--format", "datasets"], "--format datasets writes a folder, so --out cannot be"),
        (["--out", "x.json", "--format", "nonsense"], "nonsense"),
        (
            ["--out", "x.json", "--format", "skyrl"],
            "agent 'oracle' samples no token ids, so it makes no rollout of the",
        ),
        (["--out", "x.pt"], "samples no token ids"),
    ],
)
def test_bad_combination_is_one_line_and_exit_code_2(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["rollout", "calculator", "--agent", "oracle", *args])
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert message in shown.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "extra"), [("x.parquet", "toolstep[parquet]"), ("folder --format datasets", "toolstep[datasets]")]
)
def test_missing_package_is_named_before_any_work(name, extra, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(formats, "find_spec", lambda package: None)
    with pytest.raises(SystemExit) as ended:
        main(["rollout", "calculator", "--agent", "hf:/never/looked/for", "--out", *name.split()])
    assert ended.value.code == 2
    assert f"pip install '{extra}'" in capsys.readouterr().err


def test_episodes_that_the_format_cannot_hold_are_kept(tmp_path):
    """An export that is refused after the work is done costs nothing but the export."""
    from toolstep.rollout.build import Settings
    from toolstep.rollout.rollout_job import RolloutJob
    from toolstep.rollout.storage import StorageError

    settings = Settings("calculator", "oracle", 2, 0, None, 8, 0.0, 0, 1.0, 1, 0, "train", None, "SameStep")
    job = RolloutJob(settings, 1, 2, tmp_path / "x.jsonl", overwrite=False)
    job.out, job.format, job.finished = tmp_path / "x.json", Format.TRL, list(segmented())
    with pytest.raises(StorageError, match=r"has 3 contexts; .*; the episodes are in .*x\.json\.episodes\.jsonl"):
        job.write()
    assert len(read_episodes(tmp_path / "x.json.episodes.jsonl")) == 2
    # Any other failure costs no more: a seed that is no 64-bit number.
    job.out, job.format, job.finished = tmp_path / "y.parquet", Format.PARQUET, [replace(segmented()[0], seed=2**63)]
    with pytest.raises(StorageError, match=r"the episodes are in .*y\.parquet\.episodes\.jsonl"):
        job.write()
    assert read_episodes(tmp_path / "y.parquet.episodes.jsonl")[0].seed == 2**63
    job.envs.close()
