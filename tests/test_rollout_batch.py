"""Padding, the shift by one, and group-relative advantages (I5, I6, I8, I16, I17)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rollout_types import episodes, make

from toolstep.rollout.batch import BatchError, GroupPromptError, RolloutBatch

A, B, C, D, E = 10, 11, 12, 13, 14


def test_seed_worked_example_prompt_abc_response_de():
    """Prompt A B C, response D E: logits[:, :-1] predict B C D E, of which D and E were sampled."""
    trajectory = make([((), (D, E), 1.0)], prompt=(A, B, C))
    batch = RolloutBatch.from_trajectories([trajectory])
    assert batch.input_ids.tolist() == [[A, B, C, D, E]]
    assert batch.action_mask.tolist() == [[0, 0, 0, 1, 1]]
    shifted = batch.shifted()
    assert shifted.targets.tolist() == [[B, C, D, E]]
    assert shifted.action_mask.tolist() == [[0, 0, 1, 1]]
    sampled = trajectory.logprobs[trajectory.action_mask]
    assert shifted.old_logprobs.tolist() == [[0, 0, *sampled.tolist()]]
    # A model that knows the log-probs: logits[t] gives the id at t + 1 the log-prob that was stored for it.
    model = np.zeros((1, 5, 20), np.float32)
    model[0, 2, D], model[0, 3, E] = sampled
    gathered = np.take_along_axis(model[:, :-1], shifted.targets[..., None], axis=-1)[..., 0]
    assert np.array_equal(gathered * shifted.action_mask, shifted.old_logprobs)


@settings(max_examples=60)
@given(st.lists(episodes, min_size=1, max_size=5), st.integers(0, 60))
def test_batch_holds_each_row_and_nothing_else(trajectories, pad):
    trajectories = [t for t in trajectories if t.context]
    if not trajectories:
        return
    batch = RolloutBatch.from_trajectories(trajectories, pad_id=pad)
    width = max(t.context for t in trajectories)
    assert batch.input_ids.shape == batch.attention_mask.shape == batch.action_mask.shape
    assert batch.input_ids.shape == (len(trajectories), width)
    for b, t in enumerate(trajectories):
        n = t.context
        assert batch.input_ids[b, :n].tolist() == t.token_ids.tolist()
        assert (batch.input_ids[b, n:] == pad).all()
        assert batch.attention_mask[b].tolist() == [True] * n + [False] * (width - n)
        assert batch.action_mask[b].sum() == t.sampled
        assert batch.old_logprobs[b, :n].tolist() == t.logprobs.tolist()
        assert not batch.old_logprobs[b, n:].any()
    assert not (batch.action_mask & ~batch.attention_mask).any()
    shifted = batch.shifted()
    assert set(shifted.arrays()) == {"targets", "action_mask", "old_logprobs", "model_logprobs", "advantages"}
    for name in shifted.arrays():
        assert getattr(shifted, name).shape == (len(trajectories), width - 1)
    # Nothing that was sampled is lost by the shift, unless it is the very first id (then no logits predict it).
    first = batch.action_mask[:, 0].sum()
    assert shifted.action_mask.sum() == batch.action_mask.sum() - first


def test_pad_that_is_eos_takes_no_real_token():
    eos = 2
    rows = [make([((), (5, eos), 1.0), ((7,), (6, eos), 0.0)]), make([((), (eos,), 1.0)])]
    batch = RolloutBatch.from_trajectories(rows, pad_id=eos)
    assert batch.attention_mask.sum(axis=1).tolist() == [t.context for t in rows]
    assert (batch.input_ids[0, batch.action_mask[0]] == eos).sum() == 2
    assert (batch.input_ids[1, batch.action_mask[1]] == eos).sum() == 1


def test_empty_action_is_a_row_with_an_empty_mask():
    batch = RolloutBatch.from_trajectories([make([((), (), 0.5)], prompt=(A,))])
    assert batch.shifted().targets.shape == (1, 0)
    assert batch.action_mask.sum() == 0
    assert batch.rewards.tolist() == [0.5]


def group(rewards, **overrides):
    return [
        make([((), (5,), r)], group_id=0, sample_index=i, **{k: v[i] for k, v in overrides.items()})
        for i, r in enumerate(rewards)
    ]


def test_advantages_are_relative_to_the_group():
    rewards = [1.0, 0.0, 0.5, 0.25]
    batch = RolloutBatch.from_trajectories(group(rewards))
    expected = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards) + 1e-4)
    per_row = batch.advantages[batch.action_mask]
    np.testing.assert_allclose(per_row, expected, rtol=1e-5)
    assert not batch.advantages[~batch.action_mask].any()


def test_failed_member_leaves_the_mask_and_the_baseline():
    failed = RolloutBatch.from_trajectories(group([1.0, 0.0, 0.5, 0.0], status=["ok", "ok", "ok", "env_error"]))
    three = RolloutBatch.from_trajectories(group([1.0, 0.0, 0.5]))
    assert np.array_equal(failed.advantages[:3], three.advantages)
    assert not failed.action_mask[3].any()
    assert not failed.old_logprobs[3].any()
    assert not failed.advantages[3].any()
    assert failed.attention_mask[3].any()
    assert failed.counts.unusable_rows == 1


def test_groups_without_a_comparison_give_zero_and_are_counted():
    rows = [
        *group([1.0, 1.0, 1.0]),
        make([((), (5,), 1.0)], group_id=1),
        *[make([((), (5,), r)], group_id=2, status=s) for r, s in ((1.0, "ok"), (0.0, "env_error"))],
        make([((), (5,), 1.0)]),
    ]
    batch = RolloutBatch.from_trajectories(rows)
    assert not batch.advantages.any()
    assert (batch.counts.groups, batch.counts.zero_variance_groups) == (4, 1)
    assert batch.counts.single_member_groups == 3
    assert batch.group_ids.tolist() == [0, 0, 0, 1, 2, 2, -1]


def test_group_that_starts_from_different_prompts_is_refused_by_name():
    rows = [make([((), (5,), 1.0)], group_id=7, sample_index=i, prompt=(1, 2 + i)) for i in range(2)]
    with pytest.raises(GroupPromptError, match=r"group 7: .* sample 0 .* sample 1 .* differ from id 1 on"):
        RolloutBatch.from_trajectories(rows)
    longer = [make([((), (5,), 1.0)], group_id=7, prompt=p) for p in ((1, 2), (1, 2, 3))]
    with pytest.raises(GroupPromptError, match="differ from id 2 on"):
        RolloutBatch.from_trajectories(longer)
    RolloutBatch.from_trajectories([make([((), (5,), 1.0)], group_id=i, prompt=(i,)) for i in range(2)])


def test_overlong_row_is_dropped_and_leaves_the_baseline():
    rows = [*group([1.0, 0.0]), make([((), (5, 6, 7), 9.0)], group_id=0, sample_index=2)]
    batch = RolloutBatch.from_trajectories(rows, max_length=3)
    assert batch.input_ids.shape == (2, 3)
    assert (batch.counts.dropped_rows, batch.counts.cut_rows) == (1, 0)
    assert np.array_equal(batch.advantages, RolloutBatch.from_trajectories(rows[:2]).advantages)
    assert RolloutBatch.from_trajectories(rows, max_length=0).input_ids.shape == (0, 0)


@given(episodes, st.integers(0, 12))
def test_overlong_row_is_cut_from_the_right_with_a_flag(t, limit):
    if not t.context:
        return
    batch = RolloutBatch.from_trajectories([t], max_length=limit, overlong="cut")
    n = min(limit, t.context)
    assert batch.input_ids[0].tolist() == t.token_ids[:n].tolist()
    assert batch.action_mask[0].tolist() == t.action_mask[:n].tolist()
    assert bool(batch.cut[0]) == (t.context > limit) == bool(batch.counts.cut_rows)
    assert batch.rewards[0] == np.float32(t.total_reward)


def test_text_trajectory_is_no_batch_row():
    with pytest.raises(BatchError, match="has no token ids"):
        RolloutBatch.from_trajectories([make([((), (), 1.0)], prompt=())])
    with pytest.raises(BatchError, match="no trajectories"):
        RolloutBatch.from_trajectories([])
    with pytest.raises(BatchError, match="overlong must be"):
        RolloutBatch.from_trajectories([make([((), (5,), 1.0)])], overlong="left")


def test_torch_conversion_copies_every_array():
    torch = pytest.importorskip("torch")
    batch = RolloutBatch.from_trajectories(group([1.0, 0.0]))
    tensors = batch.torch()
    assert tensors["input_ids"].dtype == torch.int64
    assert tensors["advantages"].dtype == torch.float32
    assert set(tensors) == set(batch.arrays())
    for name, value in batch.arrays().items():
        assert np.array_equal(tensors[name].numpy(), value)
    tensors["input_ids"].zero_()
    assert batch.input_ids.any()


def test_rows_of_a_script_are_counted_because_their_logprobs_are_fillers():
    scripted = make(
        [((), (5,), 1.0)],
        weight_versions=np.full(3, -1, np.int32),
        logprobs=np.zeros(3, np.float32),
        model_logprobs=np.zeros(3, np.float32),
    )
    batch = RolloutBatch.from_trajectories([scripted, make([((), (5,), 1.0)])])
    assert batch.counts.rows_without_logprobs == 1
    assert batch.action_mask.sum() == 2
    with pytest.raises(
        BatchError, match=r"weight_versions of row 0, id 2 is unknown, so it has no old log-prob.* got -1"
    ):
        batch.require_logprobs()
    batch.select([1]).require_logprobs()


def test_batch_of_failed_rows_has_nothing_to_learn_from():
    rows = group([1.0, 0.0], status=["env_error", "env_error"])
    with pytest.raises(BatchError, match=r"all 2 rows are masked.* \(2 rows failed, 0 were dropped"):
        RolloutBatch.from_trajectories(rows).require_actions()
    with pytest.raises(BatchError, match=r"all 0 rows are masked.* 2 were dropped"):
        RolloutBatch.from_trajectories(rows, max_length=1).require_actions()
    RolloutBatch.from_trajectories(group([1.0, 0.0], status=["ok", "env_error"])).require_actions()


@settings(max_examples=40)
@given(st.lists(episodes, min_size=1, max_size=4), st.integers(0, 60))
def test_packed_form_is_the_padded_one_without_its_padding(trajectories, pad):
    trajectories = [t for t in trajectories if t.context]
    if not trajectories:
        return
    batch = RolloutBatch.from_trajectories(trajectories, pad_id=pad)
    packed = batch.packed()
    assert packed.cu_seqlens.tolist() == [0, *np.cumsum([t.context for t in trajectories])]
    assert packed.cu_seqlens.dtype == np.int32
    assert packed.max_seqlen == max(t.context for t in trajectories)
    for start, stop, t in zip(packed.cu_seqlens, packed.cu_seqlens[1:], trajectories):
        row = slice(start, stop)
        assert packed.input_ids[row].tolist() == t.token_ids.tolist()
        assert packed.position_ids[row].tolist() == list(range(t.context))
        assert packed.action_mask[row].tolist() == t.action_mask.tolist()
    mine, padded = packed.shifted(), batch.shifted()
    for name, value in padded.arrays().items():
        assert getattr(mine, name)[mine.action_mask].tolist() == value[padded.action_mask].tolist()
        assert name == "targets" or not getattr(mine, name)[~mine.action_mask].any()


def test_first_id_of_a_packed_row_is_no_target_of_the_row_before():
    rows = [make([((), (5, 6), 1.0)], prompt=()), make([((), (7, 8), 1.0)], prompt=())]
    shifted = RolloutBatch.from_trajectories(rows).packed().shifted()
    assert shifted.targets.tolist() == [6, 7, 8]
    assert shifted.action_mask.tolist() == [True, False, True]
    assert shifted.old_logprobs[1] == 0.0


def test_selected_rows_are_the_batch_of_these_rows():
    rows = [make([((), (5,) * n, float(n))], group_id=0, sample_index=n) for n in (4, 1, 2)]
    batch = RolloutBatch.from_trajectories(rows)
    part = batch.select([2, 1])
    assert part.input_ids.shape == (2, 4)
    for name, value in part.arrays().items():
        whole = getattr(batch, name)[[2, 1]]
        assert np.array_equal(value, whole[:, :4] if value.ndim == 2 else whole)
    assert batch.select([]).input_ids.shape == (0, 0)


def test_turn_credit_spreads_over_the_ids_of_the_turn():
    rows = [
        make([((), (5, 6), 0.0), ((9,), (7,), 1.0)], group_id=0),
        make([((), (5,), 0.5), ((9, 9), (7, 8), 0.0)], group_id=0, sample_index=1),
    ]
    batch = RolloutBatch.from_trajectories(rows, estimator="dr_grpo", credit="turn")
    # What is earned from turn 0 on: 1.0 and 0.5; from turn 1 on: 1.0 and 0.0.
    assert batch.advantages.tolist() == [[0, 0, 0.25, 0.25, 0, 0.5, 0], [0, 0, -0.25, 0, 0, -0.5, -0.5]]
    assert batch.rewards.tolist() == [1.0, 0.5]
    whole = RolloutBatch.from_trajectories(rows, estimator="dr_grpo")
    assert whole.advantages.tolist() == [[0, 0, 0.25, 0.25, 0, 0.25, 0], [0, 0, -0.25, 0, 0, -0.25, -0.25]]


def test_rewards_of_a_judge_take_the_place_of_the_env_s():
    rows = group([0.0, 0.0])
    judged = RolloutBatch.from_trajectories(rows, rewards=np.array([1.0, 0.0]))
    assert judged.rewards.tolist() == [1.0, 0.0]
    assert np.array_equal(judged.advantages, RolloutBatch.from_trajectories(group([1.0, 0.0])).advantages)
    per_turn = RolloutBatch.from_trajectories(rows, rewards=[[1.0], [0.0]], credit="turn")
    assert np.array_equal(per_turn.advantages, judged.advantages)


@pytest.mark.parametrize(
    ("rewards", "credit", "message"),
    [
        ([1.0], "episode", "rewards must have 2 entries, one a trajectory, got 1"),
        (
            np.ones((2, 1)),
            "episode",
            r"rewards\[0\] \(task 't', seed 11\) must be one number, shape \[\], got shape \[1\]",
        ),
        ([[1.0], [1.0, 2.0]], "turn", r"rewards\[1\] .* one for each of its 1 turns, shape \[1\], got shape \[2\]"),
        ([0.0, float("nan")], "episode", r"rewards\[1\] .* must be finite, got nan"),
        ([0.0, "good"], "episode", r"rewards\[1\] .* must be numbers, got 'good'"),
        ([0.0, 1e300], "episode", r"RolloutBatch.rewards of row 1 must be a finite number, got inf"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_rewards_of_the_wrong_shape_or_not_finite_are_refused_by_row(rewards, credit, message):
    with pytest.raises(BatchError, match=message):
        RolloutBatch.from_trajectories(group([0.0, 0.0]), rewards=rewards, credit=credit)


@pytest.mark.parametrize(
    ("field", "change", "message"),
    [
        ("input_ids", lambda x: x[0], r"input_ids must be \[B,T\], got \[3\]"),
        ("old_logprobs", lambda x: x[:, 1:], r"old_logprobs must be float32\[2, 3\].* got float32\[2, 2\]"),
        ("rewards", lambda x: x[:, None], r"rewards must be float32\[2\].* got float32\[2, 1\]"),
        ("attention_mask", lambda x: x.astype(np.int64), r"attention_mask must be bool\[2, 3\].* got int64"),
        ("lengths", lambda x: x + 1, r"lengths of row 0 must be in \[0, 3\], got 4"),
        ("lengths", lambda x: x - 1, r"attention_mask of row 0, id 2 must be True up to the row's length"),
        ("rewards", lambda x: x * np.float32("nan"), r"rewards of row 0 must be a finite number, got nan"),
        ("old_logprobs", lambda x: x - 1, r"old_logprobs of row 0, id 0 must be 0.0 off the action mask"),
        ("advantages", lambda x: x * np.float32("inf"), r"advantages of row 0, id 0 must be a finite number"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_arrays_that_contradict_one_another_are_refused_by_field_and_row(field, change, message):
    batch = RolloutBatch.from_trajectories(group([1.0, 0.0]))
    with pytest.raises(BatchError, match=message):
        dataclasses.replace(batch, **{field: change(getattr(batch, field))})
