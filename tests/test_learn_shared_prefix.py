"""A prompt that rows share is computed once: the same log-probs and gradients as row by row, in every family."""

from __future__ import annotations

from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_setup import even, make_agent, make_envs

from toolstep.rollout.learn import GRPO, Training
from toolstep.rollout.learn.policy import Policy, micro_batches
from toolstep.rollout.learn.shared_prefix import Layout, SharedPrefix, shared

# Windows, and attention that torch does not compute, are run row by row.
ROW_BY_ROW = {"mistral", "gemma2", "gemma3_text", "cohere2", "gpt_oss"}


@st.composite
def batches(draw: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, lengths (0: left out) and groups of rows that begin alike by chance."""
    rows = draw(st.integers(1, 9))
    lengths = np.array(draw(st.lists(st.integers(0, 12), min_size=rows, max_size=rows)))
    width = max(1, int(lengths.max()))
    ids = np.array(draw(st.lists(st.integers(0, 1), min_size=rows * width, max_size=rows * width)))
    alike = draw(st.integers(0, width))
    ids = ids.reshape(rows, width)
    ids[:, :alike] = ids[0, :alike]
    groups = np.array(draw(st.lists(st.integers(-1, 2), min_size=rows, max_size=rows)))
    return ids, lengths, groups


@given(batches(), st.integers(1, 60))
def test_each_row_is_in_one_part_whose_prefix_is_its_own(batch: Any, tokens: int) -> None:
    ids, lengths, groups = batch
    parts = list(shared(ids, lengths, groups, tokens))
    assert sorted(row for part in parts for row in part.rows) == list(np.flatnonzero(lengths))
    for part in parts:
        assert [part.prefix + n for n in part.endings] == [int(lengths[row]) for row in part.rows]
        assert len({tuple(ids[row, : part.prefix]) for row in part.rows}) == 1
        assert len({int(groups[row]) for row in part.rows}) == 1
        if len(part.rows) > 1:
            assert groups[part.rows[0]] >= 0
            assert part.size <= tokens
            assert sum(part.endings) <= 2 * part.prefix


@given(batches())
def test_an_id_sees_those_of_its_own_row_up_to_itself(batch: Any) -> None:
    ids, lengths, groups = batch
    parts = list(shared(ids, lengths, groups, 1000))
    rows = [row for part in parts for row in part.rows]
    if not rows:
        return
    own = torch.from_numpy(ids[rows])
    layout = Layout.of(own, parts)
    width = layout.input_ids.shape[1]
    for number, row in enumerate(rows):
        place = layout.place[number, : int(lengths[row])]
        part = int(place[0]) // width
        assert torch.equal(layout.input_ids.flatten()[place], own[number, : len(place)])
        assert layout.position_ids.flatten()[place].tolist() == list(range(len(place)))
        for at, here in enumerate((place % width).tolist()):
            sees = torch.nonzero(layout.attention[part, 0, here])[:, 0].tolist()
            assert sees == (place % width)[: at + 1].tolist()


@pytest.mark.parametrize("family", sorted(em.FAMILIES))
def test_log_probs_and_gradients_are_those_of_the_rows_one_by_one(family: str) -> None:
    model = em.model(family)
    policy = Policy(model, temperature=0.7)
    assert policy.shares == (family not in ROW_BY_ROW and policy._chunked)
    prompt = em.ids(1, 20)
    rows = [np.concatenate([prompt, em.ids(10 + i, n)]) for i, n in enumerate((3, 9, 1, 5))] + [em.ids(7, 11)]
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((5, lengths.max()), np.int64)
    for b, row in enumerate(rows):
        ids[b, : len(row)] = row
    mask = torch.zeros(5, ids.shape[1] - 1, dtype=torch.bool)
    for b, n in enumerate(lengths):
        mask[b, 10 : n - 1] = True  # ids of the prompt too, whose gradients add up
    parts = list(shared(ids, lengths, np.array([0, 0, 0, 0, 1]), 1000))
    assert len(parts) == 2
    weights = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0))
    found = []
    for given_parts in (parts if policy.shares else (), ()):
        model.zero_grad()
        logprobs, entropy = policy(torch.from_numpy(ids), mask, given_parts)
        (logprobs * weights).sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        found.append((logprobs.detach(), entropy, gradients))
    for one, other in zip(found[0][:2], found[1][:2]):
        assert torch.allclose(one, other, atol=1e-5)
    for name, gradient in found[1][2].items():
        assert torch.allclose(found[0][2][name], gradient, atol=1e-4), name


def test_a_model_whose_attention_takes_no_mask_of_ours_is_run_row_by_row() -> None:
    model = em.model("llama")
    model.set_attn_implementation("eager")
    assert not Policy(model).shares


@pytest.mark.parametrize("reference", [None, "frozen"])
def test_a_step_is_the_same_with_prompts_shared_and_without(reference: Any) -> None:
    runs = []
    for shares in (True, False):
        agent = make_agent()
        options: dict[str, Any] = {"groups": 2, "group_size": 4, "reward": even, "reference": reference}
        made = GRPO(agent, make_envs(agent), Training(learning_rate=1e-3), **options)
        assert made.policy.shares
        made.policy.shares = shares
        result, fresh = made.runner([3, 4])
        metrics = made.update(result, fresh, 1.0)
        parts = made.policy.micro_batches(result.batch, result.batch.lengths, 10_000)
        runs.append((metrics, sum(part.size for micro in parts for part in micro)))
    (one, few), (other, many) = runs
    assert few < many / 2
    for name in ("loss", "grad_norm", "entropy", "ratio_mean", "first_ratio_max"):
        assert one[name] == pytest.approx(other[name], rel=1e-3, abs=1e-6)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_micro_batches_keep_to_the_budget(sizes: list[int], tokens: int) -> None:
    parts = [SharedPrefix([i], 0, [n]) for i, n in enumerate(sizes)]
    micro = micro_batches(parts, tokens)
    assert sorted(row for one in micro for part in one for row in part.rows) == list(range(len(sizes)))
    for one in micro:
        assert len(one) == 1 or len(one) * max(part.size for part in one) <= tokens


def test_rows_that_are_left_out_are_in_no_micro_batch() -> None:
    policy = Policy(em.model("llama"))
    shape = (2, 6)
    made: dict[str, Any] = {"input_ids": np.ones(shape, np.int64), "group_ids": np.zeros(2, np.int64)}
    batch = type("Batch", (), made)
    for shares in (True, False):
        policy.shares = shares
        micro = policy.micro_batches(batch, np.array([0, 5]), 100)  # type: ignore[arg-type]
        assert [part.rows for one in micro for part in one] == [[1]]
