"""TorchRL 0.14: what `GRPOLoss` reads, shown by the loss itself (kl 0 and ESS 1 only where all is aligned)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from export_cases import agent, failed, model, segmented, solved, talk_envs, talked, tokenizer
from test_rollout_types import make

from toolstep.rollout import RolloutBatch, collect, group_specs
from toolstep.rollout.batch import BatchError
from toolstep.rollout.export import ExportError, to_torchrl
from toolstep.rollout.export.torchrl import torchrl_tensors

STOP = tokenizer().eos_token_id


def tensors(trajectories: Any, **options: Any) -> dict[str, Any]:
    return torchrl_tensors(RolloutBatch.from_trajectories(trajectories, pad_id=STOP, **options))


def test_rows_are_padded_on_the_left_and_all_arrays_move_alike():
    batch = RolloutBatch.from_trajectories(talked(), pad_id=STOP)
    out = torchrl_tensors(batch)
    width = batch.input_ids.shape[1]
    for b, n in enumerate(batch.lengths):
        assert out["tokens"]["full"][b].tolist() == [STOP] * (width - n) + batch.input_ids[b, :n].tolist()
        assert out["masks"]["all_attention_mask"][b].tolist() == [False] * (width - n) + [True] * n
        mask = out["masks"]["all_assistant_mask"][b].numpy()
        assert mask.tolist() == [False] * (width - n) + batch.action_mask[b, :n].tolist()
        assert (
            out["log_probs"]["full"][b].numpy()[mask].tolist() == batch.old_logprobs[b][batch.action_mask[b]].tolist()
        )
        assert not out["log_probs"]["full"][b].numpy()[~mask].any()
        assert set(out["advantage"][b, :, 0].numpy()[mask]) == set(batch.advantages[b][batch.action_mask[b]])
    assert out["advantage"].shape == (12, width, 1)


def test_failed_row_is_masked_and_in_no_baseline():
    group = [t for t in talked() if t.group_id == 0]
    out = tensors([*group, failed(group[0])])
    assert not out["masks"]["all_assistant_mask"][-1].any()
    assert not out["advantage"][-1].any()
    np.testing.assert_array_equal(out["advantage"][:-1].numpy(), tensors(group)["advantage"].numpy())


def test_each_context_is_a_row_with_the_advantage_of_its_episode():
    first, second = segmented()
    better = replace(second, turn_rewards=second.turn_rewards + np.float32(1))
    known = [replace(t, weight_versions=np.where(t.action_mask, 0, -1).astype(np.int32)) for t in (first, better)]
    out = tensors(known)
    per_row = [a[m].unique().tolist() for a, m in zip(out["advantage"][..., 0], out["masks"]["all_assistant_mask"])]
    np.testing.assert_allclose(per_row, [[-1]] * 3 + [[1]] * 3, atol=1e-3)


def test_script_and_a_batch_without_ids_are_refused():
    with pytest.raises(BatchError, match="collect with an agent that samples"):
        tensors(solved())
    with pytest.raises(ExportError, match="no ids"):
        tensors([make([], prompt=(), status="env_error", terminated=False, truncated=True)])


# ---------------------------------------------------------------------------------------------- the real package


@pytest.fixture(scope="module")
def loss() -> Any:
    llm = pytest.importorskip("torchrl.modules.llm")
    from torchrl.objectives.llm import GRPOLoss

    policy = llm.TransformersWrapper(
        model(),
        tokenizer=tokenizer(),
        generate=False,
        input_mode="tokens",
        return_log_probs=True,
        pad_output=True,
    )
    return GRPOLoss(policy, masking_strategy="rlhf", entropy_bonus=False)


def to_td(trajectories: Any, **options: Any) -> Any:
    return to_torchrl(RolloutBatch.from_trajectories(trajectories, pad_id=STOP, **options))


def test_the_policy_that_sampled_has_kl_0_and_ess_1(loss):
    out = loss(to_td(talked()))
    assert abs(float(out.kl_approx.detach())) < 1e-5
    assert float(out.ESS) == pytest.approx(1.0, abs=1e-4)
    assert float(out.clip_fraction) == 0.0


@pytest.mark.parametrize("shift", [-1, 1])
def test_logprobs_one_place_off_are_found_out(loss, shift):
    td = to_td(talked())
    td["log_probs", "full"] = td["log_probs", "full"].roll(shift, dims=1)
    out = loss(td)
    assert abs(float(out.kl_approx.detach())) > 0.01
    assert float(out.ESS) < 0.9


def test_loss_is_the_mean_advantage_over_sampled_ids_and_has_finite_gradients(loss):
    """At ratio 1 each sampled id contributes minus its advantage; a failed row and an empty one add nothing."""
    broken = make([], prompt=(), status="env_error", terminated=False, truncated=True)
    td = to_td([*talked(), failed(talked()[0]), broken])
    objective = loss(td).loss_objective.mean()
    mask = td["masks", "all_assistant_mask"]
    assert float(objective.detach()) == pytest.approx(-float(td["advantage"][..., 0][mask].mean()), abs=1e-5)
    objective.backward()
    gradients = [p.grad for p in model().parameters() if p.grad is not None]
    assert all(g.isfinite().all() for g in gradients)
    assert sum(float(g.abs().sum()) for g in gradients) > 0
    model().zero_grad(set_to_none=True)


def test_temperature_is_in_the_logprobs_so_the_ratio_corrects_for_it(loss):
    """The loss reads the plain model; what was sampled at another temperature is off-policy to it, and says so."""
    player = agent(temperature=0.5)
    envs = talk_envs(4, **player.env_kwargs)
    cold = collect(envs, player, group_specs(2, 3, seed=0))
    envs.close()
    td = to_td(cold)
    out = loss(td)
    mask = td["masks", "all_assistant_mask"]
    plain = np.concatenate([t.model_logprobs[t.action_mask] for t in cold])
    expected = (td["log_probs", "full"][mask].numpy() - plain).sum() / mask.numel()
    assert float(out.kl_approx.detach()) == pytest.approx(float(expected), abs=1e-4)
    assert float(out.ESS) < 1
