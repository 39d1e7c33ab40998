"""verl 0.9.1: `AgentLoopOutput` and the padded batch, against its own classes and GRPO where it is installed."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from export_cases import failed, model, segmented, solved, talked, tokenizer
from test_rollout_types import make

from toolstep.rollout.export import ExportError, to_verl, to_verl_batch

STOP = tokenizer().eos_token_id


def test_rows_have_one_length_and_the_mask_of_who_sampled():
    outputs = to_verl(talked())
    for output, t in zip(outputs, talked(), strict=True):
        n = len(output["response_ids"])
        assert n == len(output["response_mask"]) == len(output["response_logprobs"])
        assert sum(output["response_mask"]) == t.sampled
        assert output["prompt_ids"] + output["response_ids"] == t.token_ids[: t.prompt_length + n].tolist()
        assert all(p == 0.0 for p, m in zip(output["response_logprobs"], output["response_mask"]) if not m)
        assert output["reward_score"] == t.total_reward
        assert output["extra_fields"]["turn_scores"] == t.turn_rewards.tolist()
        assert output["num_turns"] == 2 * t.turns
    assert json.loads(json.dumps(outputs)) == outputs


def test_script_has_no_logprobs():
    assert all(output["response_logprobs"] is None for output in to_verl(solved()))
    assert "rollout_log_probs" not in to_verl_batch(solved())["tensors"]


def test_failed_and_unsampled_rows_are_masked_and_never_empty():
    unsampled = make([((), (), 0.5)])
    broken = make([], prompt=(), status="env_error", terminated=False, truncated=True)
    outputs = to_verl([failed(talked()[0]), unsampled, broken], pad_id=7)
    assert [sum(output["response_mask"]) for output in outputs] == [0, 0, 0]
    assert [output["reward_score"] for output in outputs] == [0.0, 0.5, 0.0]
    assert [output["extra_fields"]["status"] for output in outputs] == ["env_error", "ok", "env_error"]
    uids = to_verl_batch([*talked()[:2], failed(talked()[2])])["non_tensors"]["uid"]
    assert uids[0] == uids[1] != uids[2]  # the group that its GRPO compares a row with
    assert outputs[1]["response_ids"] == [7]
    assert (outputs[2]["prompt_ids"], outputs[2]["response_ids"]) == ([7], [7])


def test_padding_is_known_by_length_and_positions_count_real_ids():
    """Prompts left, responses right; the pad id is the stop token, which was sampled too."""
    pytest.importorskip("torch")
    batch = to_verl_batch(talked(), pad_id=STOP, prompt_length=60, response_length=80)
    arrays = {name: tensor.numpy() for name, tensor in batch["tensors"].items()}
    assert arrays["prompts"].shape == (12, 60)
    assert arrays["responses"].shape == arrays["response_mask"].shape == arrays["rm_scores"].shape == (12, 80)
    for b, (t, output) in enumerate(zip(talked(), to_verl(talked()), strict=True)):
        p, r = len(output["prompt_ids"]), len(output["response_ids"])
        assert arrays["prompts"][b].tolist() == [STOP] * (60 - p) + output["prompt_ids"]
        assert arrays["responses"][b].tolist() == output["response_ids"] + [STOP] * (80 - r)
        assert arrays["attention_mask"][b].tolist() == [0] * (60 - p) + [1] * (p + r) + [0] * (80 - r)
        assert arrays["position_ids"][b, 60 - p : 60 + r].tolist() == list(range(p + r))
        assert arrays["response_mask"][b].sum() == t.sampled
        assert np.flatnonzero(arrays["rm_scores"][b]).tolist() == ([r - 1] if t.total_reward else [])
        assert arrays["response_mask"][b, r - 1] == 1
    assert arrays["rm_scores"].sum() == sum(t.total_reward for t in talked())
    assert len(set(batch["non_tensors"]["uid"])) == 3


def test_stored_logprobs_are_those_of_the_id_in_their_place():
    """verl reads the log-prob of responses[:, i] at i; one place off is found out."""
    torch = pytest.importorskip("torch")
    tensors = to_verl_batch(talked(), pad_id=STOP)["tensors"]
    with torch.no_grad():
        logits = model()(
            input_ids=tensors["input_ids"],
            attention_mask=tensors["attention_mask"],
            position_ids=tensors["position_ids"],
        ).logits
    height = tensors["responses"].shape[1]
    plain = logits[:, -height - 1 : -1].log_softmax(-1).gather(-1, tensors["responses"][..., None])[..., 0]
    mask, stored = tensors["response_mask"].bool(), tensors["rollout_log_probs"]
    torch.testing.assert_close(plain[mask], stored[mask], atol=1e-4, rtol=0)
    assert (plain.roll(1, dims=1)[mask] - stored[mask]).abs().mean() > 0.5


def test_episodes_of_several_contexts_and_overlong_rows_are_refused_by_name():
    with pytest.raises(ExportError, match="verl takes one row an episode"):
        to_verl(segmented())
    with pytest.raises(ExportError, match=r"the prompt of task 'talk-\d' .* has 49 ids, more than prompt_length=48"):
        to_verl_batch(talked(), prompt_length=48)
    with pytest.raises(ExportError, match=r"more than response_length=5"):
        to_verl_batch(talked(), response_length=5)


# ---------------------------------------------------------------------------------------------- the real package


@pytest.fixture(scope="module")
def verl() -> Any:
    return pytest.importorskip("verl.experimental.agent_loop.agent_loop")


def test_verl_accepts_the_rows_and_makes_the_tensors_of_them(verl):
    for output in to_verl([*talked(), failed(talked()[0])]) + to_verl(solved()):
        made = verl.AgentLoopOutput(**output)
        assert set(output) <= set(verl.AgentLoopOutput.model_fields)
        arrays = made.as_dict()
        assert arrays["responses"].tolist() == output["response_ids"]
        assert arrays["response_mask"].tolist() == output["response_mask"]
        assert float(arrays["rm_scores"][-1]) == output["reward_score"]


def test_padded_batch_is_what_verls_own_padding_makes(verl):
    """Our batch, tensor for tensor, against `AgentLoopWorker`'s postprocessing of the same outputs."""
    import asyncio
    from types import SimpleNamespace

    worker = object.__new__(verl.AgentLoopWorker)
    worker.mm_processor_kwargs = {}
    worker.rollout_config = SimpleNamespace(prompt_length=60, response_length=80)
    worker.tokenizer, worker.processor = tokenizer(), None
    worker.reward_loop_worker_handles, worker.distillation_enabled = None, False

    async def padded() -> Any:
        outputs = [verl.AgentLoopOutput(**output) for output in to_verl(talked())]
        return [await worker._agent_loop_postprocess(output, False, raw_prompt=[]) for output in outputs]

    theirs = worker._postprocess(asyncio.run(padded()))
    ours = to_verl_batch(talked(), pad_id=STOP, prompt_length=60, response_length=80)
    assert set(theirs.batch.keys()) == set(ours["tensors"])
    for name, tensor in ours["tensors"].items():
        assert tensor.dtype == theirs.batch[name].dtype, name
        assert tensor.tolist() == theirs.batch[name].tolist(), name
    assert theirs.non_tensor_batch["__num_turns__"].tolist() == ours["non_tensors"]["__num_turns__"].tolist()


def test_verls_grpo_leaves_failed_rows_out_of_the_baseline(verl):
    from verl import DataProto
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    def advantages(trajectories: Any) -> Any:
        data = DataProto.from_dict(**to_verl_batch(trajectories, pad_id=STOP))
        out, _ = compute_grpo_outcome_advantage(
            data.batch["rm_scores"], data.batch["response_mask"], data.non_tensor_batch["uid"]
        )
        return out.numpy()

    group = [t for t in talked() if t.group_id == 0]
    with_failure = advantages([*group, failed(group[0])])
    assert not with_failure[-1].any()
    assert np.abs(with_failure[:-1]).max() > 0.5
    np.testing.assert_array_equal(with_failure[:-1], advantages(group))
