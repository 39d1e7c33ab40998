"""A trajectory is one structure with one length; its views say what was observed, sampled and rewarded."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolstep.envs.types import Source
from toolstep.rollout.types import Trajectory, TrajectoryError

P, S, B, C = Source.PROMPT, Source.SAMPLED, Source.BODY, Source.SCAFFOLD


def make(turns, *, prompt=(1, 2), tail=(), **overrides) -> Trajectory:
    """A trajectory from [(observed ids, sampled ids, reward), ...]; the first is behind the prompt."""
    ids, source, turn = list(prompt), [P] * len(prompt), [0] * len(prompt)
    for k, (seen, sampled, _) in enumerate(turns):
        ids += [*seen, *sampled]
        source += [B] * len(seen) + [S] * len(sampled)
        turn += [k] * (len(seen) + len(sampled))
    ids += tail
    source += [C] * len(tail)
    turn += [len(turns)] * len(tail)
    mask = np.array(source, np.uint8) == S
    fields = {
        "token_ids": np.array(ids, np.int32),
        "source": np.array(source, np.uint8),
        "logprobs": np.where(mask, -0.5 - 0.01 * np.arange(mask.size), 0).astype(np.float32),
        "model_logprobs": np.where(mask, -1.0, 0).astype(np.float32),
        "turn": np.array(turn, np.int32),
        "weight_versions": np.where(mask, 3, -1).astype(np.int32),
        "prompt_length": len(prompt),
        "turn_rewards": np.array([r for *_, r in turns], np.float32),
        "terminated": True,
        "truncated": False,
        "stop_reason": "answered",
        "status": "ok",
        "task_id": "t",
        "group_id": None,
        "sample_index": 0,
        "seed": 11,
        "messages": [{"role": "user", "content": "hé 😀"}],
    }
    return Trajectory(**{**fields, **overrides})


ids = st.lists(st.integers(0, 2**31 - 1), max_size=4)
episodes = st.builds(
    lambda prompt, turns, tail: make(turns, prompt=prompt, tail=tail),
    ids,
    st.lists(st.tuples(ids, ids, st.floats(-4, 4, width=32)), max_size=5),
    ids,
)


@given(episodes)
def test_transitions_are_the_record_cut_into_turns(t):
    transitions = t.transitions()
    assert len(transitions) == t.turns
    joined = [x for s in transitions for part in (s.observation_ids, s.action_ids) for x in part.tolist()]
    assert joined == t.token_ids[t.turn < t.turns].tolist()
    sampled = [x for s in transitions for x in s.action_ids.tolist()]
    assert sampled == t.token_ids[t.action_mask].tolist()
    assert [x for s in transitions for x in s.logprobs.tolist()] == t.logprobs[t.action_mask].tolist()
    assert [s.reward for s in transitions] == t.turn_rewards.tolist()
    assert [s.terminated for s in transitions] == [False] * (t.turns - 1) + [True] * (t.turns > 0)
    assert [s.info["turn"] for s in transitions] == list(range(t.turns))
    assert ["stop_reason" in s.info for s in transitions] == [s.terminated for s in transitions]


@given(episodes)
def test_three_counters_stay_apart(t):
    assert t.sampled == int(t.action_mask.sum()) == int((t.source == S).sum())
    assert t.context == len(t.token_ids)
    assert t.prompt_length + t.observed + t.sampled == t.context


@given(episodes)
def test_rewards_stand_at_the_last_sampled_id_of_their_turn(t):
    rewards = t.rewards
    assert not rewards[~t.action_mask].any()
    for k in range(t.turns):
        at = np.flatnonzero(t.action_mask & (t.turn == k))
        if at.size:
            assert rewards[at[-1]] == t.turn_rewards[k]
            assert not rewards[at[:-1]].any()
    assert t.total_reward == pytest.approx(float(np.sum(t.turn_rewards, dtype=np.float64)))


def test_reward_of_an_empty_turn_is_in_the_total_only():
    t = make([((), (5,), 1.0), ((6,), (), 0.25)])
    assert t.rewards.tolist() == [0, 0, 1, 0]
    assert t.total_reward == 1.25
    assert t.transitions()[1].action_ids.size == 0
    assert t.transitions()[1].reward == 0.25


@given(episodes)
def test_json_round_trip_is_exact(t):
    again = Trajectory.from_dict(json.loads(json.dumps(t.to_dict())))
    for f in dataclasses.fields(t):
        a, b = getattr(t, f.name), getattr(again, f.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.tobytes() == b.tobytes()
        else:
            assert a == b


def test_text_trajectory_has_no_ids_and_keeps_its_rewards():
    t = make([((), (), 0.5), ((), (), 1.0)], prompt=())
    assert (t.context, t.sampled, t.observed, t.total_reward) == (0, 0, 0, 1.5)
    assert [s.reward for s in t.transitions()] == [0.5, 1.0]


def array(value, dtype=np.float32):
    return np.array(value, dtype)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", [1, 2, 3], r"token_ids must be a one-dimensional int32 array"),
        ("token_ids", np.zeros((1, 4), np.int32), r"token_ids must be .* got int32\[1, 4\]"),
        ("token_ids", array([1, 2, -3, 4], np.int32), r"token_ids\[2\] must not be negative, got -3"),
        ("source", array([0, 0, 1, 1], np.int64), r"source must be a one-dimensional uint8"),
        ("source", array([0, 0, 9, 1], np.uint8), r"source\[2\] is no toolstep"),
        ("source", array([0, 1, 1, 1], np.uint8), r"logprobs\[1\]|source\[1\] is SAMPLED in the prompt"),
        ("logprobs", array([0, 0, -1]), r"logprobs has 3 entries for 4 token_ids"),
        ("logprobs", array([0, -1, -1, -1]), r"logprobs\[1\] must be 0\.0 where not sampled"),
        ("logprobs", array([0, 0, 1, -1]), r"logprobs\[2\] must not be positive"),
        ("logprobs", array([0, 0, np.nan, -1]), r"logprobs\[2\] is nan in task 't' \(seed 11\)"),
        ("model_logprobs", array([0, 0, -np.inf, -1]), r"model_logprobs\[2\] is -inf"),
        ("turn", array([0, 0, 1, 0], np.int32), r"turn\[3\] must not go down"),
        ("turn", array([0, 0, 0, 2], np.int32), r"turn\[3\] must be at most the number of turns, 1"),
        ("turn", array([0, 0, 0, 1], np.int32), r"turn\[3\] is of a sampled id, but there are 1 turns"),
        ("weight_versions", array([-1, 0, 1, 1], np.int32), r"weight_versions\[1\] must be -1"),
        ("prompt_length", 5, r"prompt_length must be in \[0, 4\], got 5"),
        ("turn_rewards", array([np.inf]), r"turn_rewards\[0\] is inf in task 't'"),
        ("terminated", False, r"one of terminated and truncated must be True"),
        ("group_id", -1, r"group_id must be None or >= 0"),
        ("metrics", {"score": float("nan")}, r"metrics\['score'\] is nan"),
    ],
)
def test_contradiction_is_refused_by_field(field, value, message):
    with pytest.raises(TrajectoryError, match=message):
        make([((), (5, 6), 1.0)], **{field: value})


def test_observation_behind_the_action_of_its_own_turn_is_refused():
    t = make([((), (5, 6), 1.0)])
    source = t.source.copy()
    source[3] = B
    with pytest.raises(TrajectoryError, match=r"source\[3\] is an observation after the sampled ids"):
        make(
            [((), (5, 6), 1.0)],
            source=source,
            logprobs=np.where(source == S, t.logprobs, 0).astype(np.float32),
            model_logprobs=np.where(source == S, t.model_logprobs, 0).astype(np.float32),
            weight_versions=np.where(source == S, 3, -1).astype(np.int32),
        )


def test_stored_record_with_foreign_fields_is_refused():
    data = make([((), (5,), 1.0)]).to_dict()
    del data["seed"]
    with pytest.raises(TrajectoryError, match=r"missing fields \['seed'\], unknown fields \['extra'\]"):
        Trajectory.from_dict({**data, "extra": 1})
    with pytest.raises(TrajectoryError, match=r"Trajectory\.source must be a list of numbers"):
        Trajectory.from_dict({**make([((), (5,), 1.0)]).to_dict(), "source": ["x"]})
