"""What all exports share: where a prompt ends, what a response holds, what is on the mask (I5-I8, I16, I17)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export_cases import as_text, failed, segmented, solved, talked, tokenizer
from hypothesis import assume, given
from test_rollout_types import episodes, make

from toolstep.rollout.batch import GroupPromptError
from toolstep.rollout.export.rows import ExportError, segment_rows, whole_rows

ROOT = Path(__file__).resolve().parent.parent
PAD = 99


@given(episodes)
def test_prompt_and_response_are_the_record_up_to_the_last_sampled_id(t):
    assume(t.context or not t.turns)  # else it was played as text
    (row,) = segment_rows([t], PAD)
    assert row.usable
    assert row.last
    assert row.mask.sum() == t.sampled
    assert row.mask.dtype == np.bool_
    assert not row.logprobs[~row.mask].any()
    if not t.sampled:
        assert row.response_ids.tolist() == [PAD]
        assert not row.mask.any()
        assert row.prompt_ids.tolist() == (t.token_ids[: t.prompt_length].tolist() or [PAD])
        return
    end = int(np.flatnonzero(t.action_mask)[-1]) + 1
    assert [*row.prompt_ids.tolist(), *row.response_ids.tolist()] == t.token_ids[:end].tolist()
    assert row.prompt_ids.size == t.prompt_length
    assert row.mask[-1]
    assert row.logprobs.tolist() == t.logprobs[t.prompt_length : end].tolist()


@given(episodes)
def test_rewards_by_turn_stand_at_sampled_ids_and_sum_up_to_the_total(t):
    assume(t.context or not t.turns)
    (row,) = segment_rows([t])
    rewards = row.turn_rewards()
    assert rewards.sum() == pytest.approx(t.total_reward, abs=1e-4)
    if t.sampled:
        assert not rewards[~row.mask].any()


def test_reward_of_an_empty_turn_stands_at_the_nearest_sampled_id():
    t = make([((), (), 0.5), ((6,), (7, 8), 1.0), ((), (), 0.25), ((9,), (5,), 2.0)])
    (row,) = segment_rows([t])
    assert row.response_ids.tolist() == [6, 7, 8, 9, 5]
    assert row.turn_rewards().tolist() == [0, 0, 1.75, 0, 2.0]


def test_sampled_stop_token_is_in_the_response_though_it_is_the_pad_token():
    stop = tokenizer().eos_token_id
    assert stop == tokenizer().pad_token_id
    ended = [row for row in segment_rows(talked()) if row.response_ids[-1] == stop]
    assert len(ended) > 3
    for row in ended:
        assert row.mask[-1]
        assert row.logprobs[-1] < 0
    assert sum(row.mask.sum() for row in segment_rows(talked())) == sum(t.sampled for t in talked())


def test_close_of_a_cut_turn_and_a_last_observation_are_left_out():
    t = make([((), (5,), 0.0)], tail=(7, 8), terminated=False, truncated=True, stop_reason="cut_turn")
    (row,) = segment_rows([t])
    assert row.response_ids.tolist() == [5]


def test_tool_results_are_in_the_response_and_off_the_mask():
    for row in segment_rows(solved()):
        t = row.trajectory
        assert row.response_ids.size - row.mask.sum() == t.observed > 0


def test_failed_episode_keeps_its_ids_and_loses_mask_logprobs_and_rewards():
    t = failed(talked()[0])
    (row,) = segment_rows([t])
    (fair,) = segment_rows([talked()[0]])
    assert row.response_ids.tolist() == fair.response_ids.tolist()
    assert not row.usable
    assert not row.mask.any()
    assert not row.logprobs.any()
    assert not row.turn_rewards().any()


def test_episode_whose_reset_failed_is_one_row_of_fillers():
    t = make([], prompt=(), status="env_error", terminated=False, truncated=True)
    (row,) = segment_rows([t], PAD)
    assert (row.prompt_ids.tolist(), row.response_ids.tolist(), row.mask.tolist()) == ([PAD], [PAD], [False])


def test_each_context_is_a_row_that_begins_with_its_own_whole_prompt():
    rows = segment_rows(segmented())
    assert [(row.segment, row.last) for row in rows] == [(0, False), (1, False), (2, True)] * 2
    for row in rows:
        t = row.trajectory
        segment = t.token_ids[t.segments[row.segment]]
        joined = [*row.prompt_ids.tolist(), *row.response_ids.tolist()]
        assert joined == segment[: len(joined)].tolist()
        assert row.mask.all()
        text = tokenizer().decode(row.prompt_ids)
        assert text.startswith("<|im_start|>system\nBe brief.")
        assert text.endswith("<|im_start|>assistant\n")
    assert sum(row.mask.sum() for row in rows) == sum(t.sampled for t in segmented())


def test_context_that_was_begun_and_never_answered_is_no_row():
    t = make([((), (5,), 0.0), ((6, 7), (8,), 1.0)], segment_starts=[0, 3])
    assert len(segment_rows([t])) == 2
    unanswered = make([((), (5,), 0.0)], tail=(1, 2, 6), segment_starts=[0, 3])
    (row,) = whole_rows([unanswered], PAD, "TRL")
    assert (row.segment, row.last, row.response_ids.tolist()) == (0, True, [5])


def test_consumer_of_whole_episodes_refuses_several_contexts_by_name():
    with pytest.raises(
        ExportError, match=r"TRL takes one row an episode, but task 'talk-\d' .* has 3 contexts; collect"
    ):
        whole_rows(segmented(), PAD, "TRL")


def test_nothing_text_and_groups_of_different_prompts_are_refused():
    with pytest.raises(ExportError, match="no trajectories"):
        segment_rows([])
    with pytest.raises(ExportError, match=r"trajectory 0 \(task .*\) has no token ids; collect it with an agent that"):
        segment_rows(as_text())
    with pytest.raises(GroupPromptError, match="group 4"):
        segment_rows([make([((), (5,), 1.0)], prompt=p, group_id=4) for p in ((1, 2), (1, 3))])


def test_importing_the_exports_imports_no_consumer():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import types; m = types.ModuleType('toolstep'); "
        "m.__path__ = [sys.argv[1]]; sys.modules['toolstep'] = m; "
        "from toolstep.rollout import export; export.to_trl, export.to_torchrl, export.to_table, export.to_verl; "
        "print([n for n in ('trl', 'torchrl', 'tensordict', 'datasets', 'pyarrow', 'verl') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
