"""SFT: oracle trajectories are imitated, in an order that a resumed run goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learn_setup import add, make_agent, make_envs, make_task, same, weights

from toolstep.agents import OracleAgent
from toolstep.envs import ToolUseVectorEnv
from toolstep.rollout import collect, group_specs
from toolstep.rollout.batch import BatchError
from toolstep.rollout.learn import SFT, Training
from toolstep.rollout.storage import StorageError


def solved(count: int = 12) -> list[Any]:
    agent = make_agent()
    envs = ToolUseVectorEnv(num_envs=4, tasks="calculator", level=1, **agent.env_kwargs)
    return collect(envs, OracleAgent(), group_specs(count, 1, 0))


DATA = solved()


def losses(made: SFT, **options: Any) -> list[float]:
    out: list[float] = []
    made.learn(DATA, callbacks=[lambda _, m: out.append(m["loss"])], **options)
    return out


def test_imitation_makes_the_oracles_ids_likely() -> None:
    made = SFT(make_agent(), Training(learning_rate=1e-2), batch_rows=6)
    found = losses(made, epochs=10)
    assert len(found) == 20
    assert found[-1] < found[0] / 2


def test_the_loss_is_the_mean_over_sampled_ids_stop_tokens_included() -> None:
    made = SFT(make_agent(), Training(learning_rate=1e-9), batch_rows=len(DATA))
    total, count = 0.0, 0
    for t in DATA:
        ids = torch.from_numpy(t.token_ids.astype(np.int64))[None]
        logp = torch.log_softmax(made.model(input_ids=ids).logits[0, :-1].double(), -1).gather(-1, ids[0, 1:, None])[
            :, 0
        ]
        mask = torch.from_numpy(t.action_mask[1:])
        assert t.token_ids[np.flatnonzero(t.action_mask)[-1]] in made.agent.stop_ids
        total, count = total - float(logp[mask].sum().detach()), count + int(mask.sum())
    assert losses(made)[0] == pytest.approx(total / count, abs=1e-5)


@pytest.mark.parametrize("stop_at", [1, 3])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, stop_at: int) -> None:
    path = tmp_path / "c.safetensors"
    whole = SFT(make_agent(), Training(learning_rate=1e-3), batch_rows=5)
    expected = losses(whole, epochs=2)
    half = SFT(make_agent(), Training(learning_rate=1e-3, save=path), batch_rows=5)
    first: list[float] = []

    def stop(own: Any, metrics: Any) -> bool:
        first.append(metrics["loss"])
        return bool(own.iteration < stop_at)

    half.learn(DATA, epochs=2, callbacks=[stop])
    going_on = SFT.load(path, make_agent(seed=9), Training(learning_rate=1e-3), batch_rows=5)
    assert first + losses(going_on, epochs=2) == expected
    assert same(weights(whole), weights(going_on))


def test_a_resumed_run_with_other_trajectories_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    made = SFT(make_agent(), Training(save=path), batch_rows=6)
    made.learn(DATA, callbacks=[lambda *_: False])
    going_on = SFT.load(path, make_agent(), Training(), batch_rows=6)
    with pytest.raises(BatchError, match="not the trajectories that the run was begun with"):
        going_on.learn(DATA[:-1])


def test_long_rows_are_left_out_and_counted() -> None:
    seen: list[Any] = []
    lengths = sorted(t.context for t in DATA)
    made = SFT(make_agent(), batch_rows=100, max_length=lengths[5])
    made.learn(DATA, callbacks=[lambda _, m: seen.append(m)])
    kept = sum(n <= lengths[5] for n in lengths)
    assert seen[0]["dropped"] == len(DATA) - kept
    assert made.episodes == kept


def test_trajectories_of_several_envs_with_one_group_number_are_no_group() -> None:
    agent = make_agent()
    other = collect(
        ToolUseVectorEnv(num_envs=2, tasks=make_task, tools=[add], **agent.env_kwargs), agent, group_specs(2, 1, 5)
    )
    assert {t.group_id for t in other} <= {t.group_id for t in DATA}
    SFT(agent, batch_rows=100).learn([*DATA, *other])


def test_nothing_to_learn_is_an_error() -> None:
    with pytest.raises(BatchError, match="nothing to learn from 12 trajectories: 12 failed"):
        SFT(make_agent()).learn([replace(t, status="env_error") for t in DATA])
    with pytest.raises(BatchError, match="nothing to learn from 0 trajectories"):
        SFT(make_agent()).learn([])


def test_a_checkpoint_of_another_model_or_learner_is_refused_by_name(tmp_path: Path) -> None:
    from tiny import tiny_model

    from toolstep.rollout.learn import GRPO

    path = tmp_path / "c.safetensors"
    SFT(make_agent(), Training(save=path), batch_rows=100).learn(DATA)
    wider = make_agent(model=tiny_model(300))
    with pytest.raises(
        StorageError, match=r"another model: .*embed_tokens.weight is \[\d+, 48\] there and \[300, 48\]"
    ):
        SFT.load(path, wider)
    agent = make_agent()
    with pytest.raises(StorageError, match="is a checkpoint of SFT, not of GRPO"):
        GRPO.load(path, agent, make_envs(agent))
    deeper = tiny_model(len(agent.tokenizer))
    deeper.model.layers = deeper.model.layers[:1]
    with pytest.raises(StorageError, match=r"another model: model.layers.1.* is in the checkpoint, not the model"):
        SFT.load(path, make_agent(model=deeper))


def test_a_crash_while_saving_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c.safetensors"
    made = SFT(make_agent(), Training(learning_rate=1e-3), batch_rows=6)
    made.save(path)
    before = path.read_bytes()
    made.learn(DATA)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(StorageError, match="the disk is full"):
        made.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b'{"a": 1}'])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="is no checkpoint of a toolstep learner"):
        SFT.load(path, make_agent())
    with pytest.raises(StorageError, match="there is no checkpoint"):
        SFT.load(tmp_path / "absent", make_agent())


def test_a_model_saved_for_use_is_an_agent_that_plays_as_this_one(tmp_path: Path) -> None:
    from toolstep.agents import LLMAgent

    agent = make_agent(temperature=0.0)
    agent.model.config.eos_token_id = agent.model.generation_config.eos_token_id = sorted(agent.stop_ids)[0]
    agent.save_pretrained(tmp_path)
    loaded = LLMAgent.load(str(tmp_path), dtype="float32", sampling=agent.sampling)
    specs = group_specs(3, 1, 0)
    a = collect(make_envs(agent, tools=[add]), agent, specs)
    b = collect(make_envs(loaded, tools=[add]), loaded, specs)
    assert [t.token_ids.tolist() for t in a] == [t.token_ids.tolist() for t in b]
