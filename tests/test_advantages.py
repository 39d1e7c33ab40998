"""Advantages within a group: three estimators, what leaves the baseline, and credit by turn (I17)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.rollout.advantages import EPSILON, ESTIMATORS, group_advantages, turn_returns


def slow(rewards, groups, usable, estimator):
    """The definitions of the papers, one episode at a time."""
    out = []
    for i, r in enumerate(rewards):
        peers = [float(x) for x, g, u in zip(rewards, groups, usable) if g == groups[i] and u]
        if not usable[i] or len(peers) < 2 or len(set(peers)) == 1:
            out.append(0.0)
        elif estimator == "rloo":
            out.append(float(r) - (sum(peers) - float(r)) / (len(peers) - 1))
        else:
            mean = sum(peers) / len(peers)
            std = (sum((x - mean) ** 2 for x in peers) / len(peers)) ** 0.5
            out.append((float(r) - mean) / (std + EPSILON if estimator == "grpo" else 1.0))
    return out


rows = st.tuples(st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0, 7.5]), st.integers(0, 3), st.booleans())


@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=60)
@given(rows=st.lists(rows, min_size=1, max_size=16))
def test_estimators_equal_their_definitions(rows, estimator):
    rewards, groups, usable = (np.array(x, d) for x, d in zip(zip(*rows), (np.float32, np.int64, np.bool_)))
    out = group_advantages(rewards, groups, usable, estimator)
    np.testing.assert_allclose(out.values, slow(rewards, groups, usable, estimator), atol=1e-6)
    assert out.values.dtype == np.float32
    assert out.single_member + out.zero_variance <= out.groups == len(set(groups[usable].tolist()))
    for g in set(groups.tolist()):
        assert abs(out.values[groups == g].sum()) < 1e-4


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_failed_member_is_no_zero_reward(estimator):
    """A failure that counted as 0 would lift the others above the mean: their advantages must not move."""
    groups, usable = np.zeros(3, np.int64), np.array([True, True, False])
    out = group_advantages(np.array([1.0, 0.5, 0.0]), groups, usable, estimator)
    alone = group_advantages(np.array([1.0, 0.5]), groups[:2], usable[:2], estimator)
    assert out.values.tolist() == [*alone.values.tolist(), 0.0]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("members", [[0.1, 0.1, 0.1], [0.3, 0.1 + 0.2, 0.3], [1.0, 1.0 + 1e-7, 1.0], [1e6, 1e6, 1e6]])
def test_equal_up_to_rounding_is_zero_variance(members, estimator):
    out = group_advantages(np.array(members), np.zeros(3, np.int64), np.ones(3, np.bool_), estimator)
    assert not out.values.any()
    assert (out.groups, out.single_member, out.zero_variance) == (1, 0, 1)


def test_single_member_gives_zero_and_is_counted():
    usable = np.array([True, True, False])
    out = group_advantages(np.array([1.0, 2.0, 3.0]), np.array([0, 1, 1]), usable, "rloo")
    assert not out.values.any()
    assert (out.groups, out.single_member, out.zero_variance) == (2, 2, 0)


def test_small_rewards_are_compared_like_large_ones():
    small = group_advantages(np.array([1e-5, 0.0]), np.zeros(2, np.int64), np.ones(2, np.bool_), "dr_grpo")
    np.testing.assert_allclose(small.values, [5e-6, -5e-6])


def test_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="estimator must be one of grpo, dr_grpo, rloo, got 'gae'"):
        group_advantages(np.zeros(1), np.zeros(1, np.int64), np.ones(1, np.bool_), "gae")


def test_turn_returns_are_what_is_earned_from_the_turn_on():
    returns = turn_returns([np.array([1.0, 0.0, 2.0]), np.array([0.5]), np.array([])])
    assert returns.tolist() == [[3.0, 2.0, 2.0], [0.5, 0.5, 0.5], [0.0, 0.0, 0.0]]
    assert turn_returns([]).shape == (0, 0)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 0.5, 1.0])), min_size=1, max_size=8))
def test_reward_at_the_end_alone_is_one_comparison_for_all_turns(members):
    """Such an env trains the same under either credit, however many turns each member took."""
    turn_rewards = [np.array([0.0] * (turns - 1) + [r]) for turns, r in members]
    groups, usable = np.zeros(len(members), np.int64), np.ones(len(members), np.bool_)
    by_turn = group_advantages(turn_returns(turn_rewards), groups, usable)
    by_episode = group_advantages(np.array([r for _, r in members]), groups, usable)
    assert np.array_equal(by_turn.values, np.repeat(by_episode.values[:, None], by_turn.values.shape[1], axis=1))
    assert by_turn.zero_variance == by_episode.zero_variance
