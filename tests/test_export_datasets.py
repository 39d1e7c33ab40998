"""Tables: parquet by pyarrow, Hugging Face datasets, and TRL's SFTTrainer as a reader of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from export_cases import as_text, failed, segmented, solved, talked, tokenizer
from test_rollout_types import make

from toolstep.rollout.batch import GroupPromptError
from toolstep.rollout.export import ExportError, to_dataset, to_table
from toolstep.rollout.export.files import write_rollout
from toolstep.rollout.export.formats import Format

pa = pytest.importorskip("pyarrow")


def test_lists_of_a_row_have_one_length_and_the_record_in_them():
    for row, t in zip(to_table(talked()).to_pylist(), talked(), strict=True):
        assert row["input_ids"] == t.token_ids.tolist()
        assert row["assistant_masks"] == t.action_mask.astype(int).tolist()
        assert row["source"] == t.source.tolist()
        assert row["turn"] == t.turn.tolist()
        assert row["weight_versions"] == t.weight_versions.tolist()
        assert np.array_equal(np.float32(row["logprobs"]), t.logprobs)
        assert np.array_equal(np.float32(row["model_logprobs"]), t.model_logprobs)
        assert row["prompt_length"] == t.prompt_length
        assert row["reward"] == t.total_reward
        assert row["turn_rewards"] == t.turn_rewards.tolist()
        assert {m["name"]: m["value"] for m in row["metrics"]} == t.metrics
        for name in ("group_id", "sample_index", "seed", "task_id", "status", "stop_reason", "terminated", "truncated"):
            assert row[name] == getattr(t, name), name


def test_failed_episode_is_off_the_mask_and_its_reward_is_null_so_that_no_mean_counts_it():
    group = [t for t in talked() if t.group_id == 0]
    table = to_table([*group, failed(group[0])])
    row = table.to_pylist()[-1]
    assert not any(row["assistant_masks"])
    assert not any(row["logprobs"])
    assert row["source"] == group[0].source.tolist()
    assert (row["reward"], row["success"], row["status"]) == (None, False, "env_error")
    mean = table.group_by("group_id").aggregate([("reward", "mean")]).to_pylist()[0]["reward_mean"]
    assert mean == pytest.approx(np.mean([t.total_reward for t in group]))


def test_each_context_is_a_row_with_its_own_prompt():
    rows = to_table(segmented()).to_pylist()
    assert [(r["segment"], r["segments"]) for r in rows] == [(0, 3), (1, 3), (2, 3)] * 2
    for row, t in zip(rows, np.repeat(np.array(segmented(), object), 3)):
        assert row["input_ids"] == t.token_ids[t.segments[row["segment"]]].tolist()
        prompt = tokenizer().decode(row["input_ids"][: row["prompt_length"]])
        assert prompt.endswith("<|im_start|>assistant\n")
        assert row["assistant_masks"][row["prompt_length"]] == 1
        assert row["reward"] == t.total_reward


def test_calls_of_different_arguments_fit_one_column():
    rows = to_table(solved()).to_pylist() + to_table(as_text()).to_pylist()
    for row, t in zip(rows, [*solved(), *as_text()]):
        assert [m["role"] for m in row["messages"]] == [m["role"] for m in t.messages]
        (call,) = next(m["tool_calls"] for m in row["messages"] if m["tool_calls"])
        (told,) = next(m["tool_calls"] for m in t.messages if m.get("tool_calls"))
        assert call["id"] == told["id"]
        assert json.loads(call["function"]["arguments"]) == told["function"]["arguments"]
    assert rows[-1]["input_ids"] == []
    assert rows[-1]["reward"] == 1.0


def test_hostile_text_and_a_missing_group_survive():
    text = "a\ud800b\x00 <|im_end|>"
    told = {"task_id": text, "error": text, "tags": {text: text}}
    row = to_table([make([((), (5,), 1.0)], messages=[{"role": "assistant", "content": text}], **told)]).to_pylist()[0]
    clean = "a?b\x00 <|im_end|>"
    assert row["messages"][0]["content"] == row["task_id"] == row["error"] == clean
    assert row["tags"] == [{"name": clean, "value": clean}]
    assert row["group_id"] is None


def test_nothing_and_groups_of_different_prompts_are_refused():
    with pytest.raises(ExportError, match="no trajectories"):
        to_table([])
    with pytest.raises(GroupPromptError, match="group 4"):
        to_table([make([((), (5,), 1.0)], prompt=p, group_id=4) for p in ((1, 2), (1, 3))])


def test_parquet_round_trip_is_exact(tmp_path):
    import pyarrow.parquet as pq

    path = tmp_path / "rollout.parquet"
    write_rollout(path, Format.PARQUET, talked())
    assert pq.read_table(path).equals(to_table(talked()))
    assert list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------------------------- Hugging Face datasets, TRL


def test_dataset_has_the_same_rows_in_memory_and_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    expected = to_table(talked()).to_pylist()
    assert to_dataset(talked()).to_list() == expected
    folder = tmp_path / "saved"
    write_rollout(folder, Format.DATASETS, talked())
    assert datasets.load_from_disk(str(folder)).to_list() == expected
    (folder / "data-00001-of-00002.arrow").write_bytes(b"of an older, larger one")
    (folder / "notes.txt").write_text("mine")
    write_rollout(folder, Format.DATASETS, talked()[:2])
    assert sorted(p.name for p in folder.glob("*[!n]")) == ["data-00000-of-00001.arrow", "notes.txt"]
    assert datasets.load_from_disk(str(folder)).to_list() == expected[:2]
    assert [p.name for p in tmp_path.iterdir()] == ["saved"]
    write_rollout(tmp_path / "x.parquet", Format.PARQUET, talked())
    loaded = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "x.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.to_list() == expected


def test_sft_trainer_imitates_what_was_sampled_and_nothing_else(tmp_path):
    """Its labels are the sampled ids, -100 elsewhere, the stop token included; its loss is their mean."""
    trl = pytest.importorskip("trl")
    import torch
    from export_cases import talker

    def options(**more: Any) -> Any:
        return trl.SFTConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=1,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
            gradient_checkpointing=False,
            **more,
        )

    learner = talker()
    rows = to_dataset(solved())
    trainer = trl.SFTTrainer(
        model=learner, args=options(learning_rate=0.0), train_dataset=rows, processing_class=tokenizer()
    )
    batch = next(iter(trainer.get_train_dataloader()))
    by_ids = {tuple(t.token_ids.tolist()): t for t in solved()}
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist()):
        t = next(t for key, t in by_ids.items() if ids[: len(key)] == list(key))
        expected = np.where(t.action_mask, t.token_ids, -100).tolist()
        assert labels[: len(expected)] == expected
        assert set(labels[len(expected) :]) <= {-100}
    trainer.train()
    loss = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    total = count = 0.0
    for t in solved():
        ids = torch.tensor(t.token_ids[None].astype(np.int64))
        with torch.no_grad():
            logprobs = learner(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        total -= float(logprobs[torch.tensor(t.action_mask[1:])].sum())
        count += t.sampled
    assert loss == pytest.approx(total / count, rel=1e-3)
