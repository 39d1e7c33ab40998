"""SkyRL 0.3.0: `GeneratorOutput`, against its own checks, padding and GRPO where it is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from export_cases import failed, model, segmented, solved, talked, tokenizer
from test_rollout_types import make

from toolstep.rollout.export import ExportError, to_skyrl


def test_lists_have_one_entry_a_row_and_one_length_within_it():
    out = to_skyrl(talked())
    for t, response, mask, logprobs in zip(
        talked(), out["response_ids"], out["loss_masks"], out["rollout_logprobs"], strict=True
    ):
        assert len(response) == len(mask) == len(logprobs)
        assert sum(mask) == t.sampled
        assert mask[-1] == 1
        assert all(p == 0.0 for p, m in zip(logprobs, mask) if not m)
    assert out["rewards"] == [t.total_reward for t in talked()]
    assert out["is_last_step"] == [True] * len(talked())
    assert [n.repetition_id for n in out["trajectory_ids"]] == [t.sample_index for t in talked()]
    assert len({n.instance_id for n in out["trajectory_ids"]}) == 3
    assert {"stop", "length"} == set(out["stop_reasons"])
    assert to_skyrl(solved())["rollout_logprobs"] is None


def test_rewards_by_turn_sum_up_to_those_by_episode():
    by_turn = to_skyrl(talked(), credit="turn")["rewards"]
    assert [sum(rewards) for rewards in by_turn] == to_skyrl(talked())["rewards"]
    assert [len(rewards) for rewards in by_turn] == list(map(len, to_skyrl(talked())["response_ids"]))
    t = make([((), (5, 6), 1.0), ((7,), (), 0.5), ((8,), (9,), 2.0)])
    assert to_skyrl([t], credit="turn")["rewards"] == [[0.0, 1.5, 0.0, 0.0, 2.0]]
    assert to_skyrl([t])["rewards"] == [3.5]


def test_contexts_of_an_episode_are_its_steps_and_the_last_has_the_reward():
    paid = [replace(t, turn_rewards=t.turn_rewards + np.float32(k)) for k, t in enumerate(segmented(), start=1)]
    out = to_skyrl(paid)
    assert out["is_last_step"] == [False, False, True] * 2
    assert out["rewards"] == [0.0, 0.0, 3.0, 0.0, 0.0, 6.0]
    assert [n.to_string() for n in out["trajectory_ids"][:3]] == [out["trajectory_ids"][0].to_string()] * 3
    with pytest.raises(ExportError, match="credit='turn' needs episodes of one context"):
        to_skyrl(segmented(), credit="turn")
    with pytest.raises(ExportError, match="credit must be"):
        to_skyrl(talked(), credit="step")


def test_failed_episodes_are_left_out_but_no_group_vanishes():
    first, second = (([t for t in talked() if t.group_id == g]) for g in (0, 1))
    out = to_skyrl([failed(first[0]), *first[1:], *map(failed, second)])
    assert [n.repetition_id for n in out["trajectory_ids"]] == [1, 2, 3, 0]
    assert [sum(mask) for mask in out["loss_masks"]] == [*(t.sampled for t in first[1:]), 0]
    assert out["rewards"][-1] == 0.0
    assert not any(out["rollout_logprobs"][-1])


def test_response_in_which_nothing_was_sampled_is_a_filler_off_the_mask():
    out = to_skyrl([make([((), (), 0.5)])], pad_id=7)
    assert (out["response_ids"], out["loss_masks"], out["rewards"]) == ([[7]], [[0]], [0.5])


# ---------------------------------------------------------------------------------------------- the real package


@pytest.fixture(scope="module")
def skyrl() -> Any:
    pytest.importorskip("skyrl.train.generators.base")
    from skyrl.train.dataset import preprocess
    from skyrl.train.generators import base
    from skyrl.train.utils import trainer_utils

    return base, trainer_utils, preprocess


@pytest.mark.parametrize("cases", [talked, solved, segmented])
def test_skyrl_accepts_the_output(skyrl, cases):
    base, trainer_utils, _ = skyrl
    out = to_skyrl(cases())
    assert set(out) == set(base.GeneratorOutput.__annotations__)
    trainer_utils.validate_generator_output(len(cases()), out, step_wise=True)
    if cases is not segmented:
        trainer_utils.validate_generator_output(len(cases()), out)


def test_skyrls_padding_puts_logprobs_under_their_ids(skyrl):
    """`log_probs[:, -n - 1 : -1]` of a forward of its padded batch are the stored ones; one place off they are not."""
    torch = pytest.importorskip("torch")
    _, _, preprocess = skyrl
    out = to_skyrl(talked())
    rewards = [[0.0] * (len(r) - 1) + [score] for r, score in zip(out["response_ids"], out["rewards"])]
    sequences, attention, _, _, mask, logprobs, _ = preprocess.convert_prompts_responses_to_batch_tensors(
        tokenizer(),
        out["prompt_token_ids"],
        out["response_ids"],
        rewards,
        out["loss_masks"],
        out["rollout_logprobs"],
    )
    assert int(mask.sum()) == sum(t.sampled for t in talked())
    with torch.no_grad():
        positions = (attention.cumsum(-1) - 1).clamp(min=0)
        logits = model()(input_ids=sequences, attention_mask=attention, position_ids=positions).logits
    n = mask.shape[1]
    plain = logits[:, -n - 1 : -1].log_softmax(-1).gather(-1, sequences[:, -n:, None])[..., 0]
    torch.testing.assert_close(plain[mask.bool()], logprobs[mask.bool()], atol=1e-4, rtol=0)
    assert (plain.roll(1, dims=1) - logprobs)[mask.bool()].abs().mean() > 0.5


def test_skyrls_grpo_compares_a_group_without_its_failed_members(skyrl):
    torch = pytest.importorskip("torch")
    from skyrl.backends.skyrl_train.utils.ppo_utils import compute_grpo_outcome_advantage

    def advantages(trajectories: Any) -> Any:
        out = to_skyrl(trajectories)
        uids = np.array([n.instance_id for n in out["trajectory_ids"]])
        scores = torch.tensor(out["rewards"])[:, None]
        return compute_grpo_outcome_advantage(scores, torch.ones_like(scores), uids)[0][:, 0].tolist()

    group = [t for t in talked() if t.group_id == 0]
    fair = advantages(group)
    assert max(map(abs, fair)) > 0.5
    assert advantages([*group, failed(group[0])]) == fair
    assert advantages([failed(t) for t in group]) == [0.0]
