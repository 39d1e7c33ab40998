"""Chunked log-probs equal the plain ones, and batches line up with them to the place (I7, I8)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_rollout_types import make
from tiny import tiny_model
from torch.nn.functional import log_softmax

from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.logprobs import token_logprobs, token_logprobs_and_entropy

VOCABULARY = 23


def tensors(dtype=torch.float64, shape=(3, 5), size=7):
    make = torch.Generator().manual_seed(0)
    hidden = torch.randn(*shape, size, generator=make, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, size, generator=make, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(VOCABULARY, shape, generator=make)


def naive(hidden, weight, targets, temperature=1.0):
    logits = hidden @ weight.T
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return log_softmax(logits / temperature, -1).gather(-1, targets[..., None])[..., 0]


@pytest.mark.parametrize("chunk", [1, VOCABULARY * 4, 10**6])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_value_and_gradients_equal_the_naive_form(dtype, tolerance, temperature, chunk):
    hidden, weight, targets = tensors(dtype)
    scale = torch.randn(targets.shape, generator=torch.Generator().manual_seed(1))
    expected = naive(hidden, weight, targets, temperature)
    gradients = torch.autograd.grad((expected * scale).sum(), (hidden, weight))
    found = token_logprobs(hidden, weight, targets, chunk, temperature=temperature)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, atol=1e-12 if dtype == torch.float64 else 1e-5, rtol=0)
    for a, b in zip(torch.autograd.grad((found * scale).sum(), (hidden, weight)), gradients):
        assert a.dtype == b.dtype == dtype
        torch.testing.assert_close(a, b, atol=tolerance * 3, rtol=tolerance)


def test_gradient_equals_finite_differences():
    hidden, weight, targets = tensors(shape=(4,), size=3)
    assert torch.autograd.gradcheck(lambda h, w: token_logprobs(h, w, targets, 50, temperature=0.8), (hidden, weight))


def test_frozen_head_gets_no_gradient_and_no_buffer():
    hidden, weight, targets = tensors()
    token_logprobs(hidden, weight.detach(), targets).sum().backward()
    assert hidden.grad is not None
    frozen = hidden.detach()
    token_logprobs(frozen, weight, targets).sum().backward()
    assert weight.grad is not None


def test_entropy_is_that_of_the_distribution():
    hidden, weight, targets = tensors()
    logprobs, entropy = token_logprobs_and_entropy(hidden, weight, targets, 50, temperature=1.5)
    p = torch.softmax(hidden @ weight.T / 1.5, -1)
    torch.testing.assert_close(entropy, -(p * p.log()).sum(-1))
    assert torch.equal(logprobs, token_logprobs(hidden, weight, targets, 50, temperature=1.5))
    assert logprobs.requires_grad
    assert not entropy.requires_grad
    sure = token_logprobs_and_entropy(1e4 * hidden.float(), weight.float(), targets)[1]
    assert torch.equal(sure, torch.zeros_like(sure))


def test_autocast_and_a_head_of_another_dtype():
    hidden, weight, targets = tensors(torch.float32)
    half = hidden.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        exact = token_logprobs(hidden, weight, targets)
        mixed = token_logprobs(half, weight, targets)
    torch.testing.assert_close(exact, naive(hidden, weight, targets))
    torch.testing.assert_close(mixed, naive(half, weight.bfloat16(), targets))
    mixed.sum().backward()
    assert (half.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


def test_no_targets_give_no_logprobs_and_zero_gradients():
    hidden, weight, targets = tensors(shape=(0,))
    out = token_logprobs(hidden, weight, targets)
    assert out.shape == (0,)
    out.sum().backward()
    assert not weight.grad.any()


def test_bad_arguments_are_named():
    hidden, weight, targets = tensors()
    with pytest.raises(
        ValueError, match=r"hidden must be \[\.\.\., H\] and head_weight \[V, H\].* \[3, 5, 7\] and \[7, 23\]"
    ):
        token_logprobs(hidden, weight.T, targets)
    with pytest.raises(ValueError, match=r"targets must be int64\[3, 5\].* got torch.int64\[3, 4\]"):
        token_logprobs(hidden, weight, targets[:, 1:])
    for value in (-100, VOCABULARY):
        targets[1, 2] = value
        with pytest.raises(ValueError, match=rf"targets\[1, 2\] must be in \[0, 23\), got {value}"):
            token_logprobs(hidden, weight, targets)
    targets[1, 2] = 0
    with pytest.raises(ValueError, match="temperature and chunk must be positive, got 0 and"):
        token_logprobs(hidden, weight, targets, temperature=0)


@pytest.fixture(scope="module")
def model():
    return tiny_model(VOCABULARY)


@pytest.fixture(scope="module")
def rows(model):
    """Three real episodes of two turns: log-probs are those of one plain forward for each."""
    out = []
    rng = np.random.default_rng(0)
    for n in range(3):
        draw = lambda size: rng.integers(0, VOCABULARY, size).tolist()  # noqa: E731
        turns = [(draw(n), draw(3 + n), 0.0), (draw(2), draw(4), float(n))]
        plain = make(turns, prompt=draw(2 + n))
        ids = torch.tensor(plain.token_ids, dtype=torch.int64)
        with torch.no_grad():
            table = model(ids[None]).logits[0].log_softmax(-1)
        logprobs = np.zeros(plain.context, np.float32)
        for t in np.flatnonzero(plain.action_mask):  # the id at t is predicted by what precedes it
            logprobs[t] = table[t - 1, ids[t]]
        out.append(make(turns, prompt=plain.token_ids[: plain.prompt_length].tolist(), logprobs=logprobs))
    return out


def largest_error(logprobs, old, mask):
    return float((logprobs - torch.tensor(old))[torch.tensor(mask)].abs().max())


def test_learner_reproduces_the_sampler_s_logprobs_and_one_place_off_does_not(model, rows):
    batch = RolloutBatch.from_trajectories(rows, pad_id=3)
    shifted, arrays = batch.shifted(), batch.torch()
    with torch.no_grad():
        hidden = model.model(arrays["input_ids"], attention_mask=arrays["attention_mask"]).last_hidden_state
        found = token_logprobs(hidden[:, :-1], model.lm_head.weight, torch.tensor(shifted.targets))
        unshifted = token_logprobs(hidden, model.lm_head.weight, arrays["input_ids"])
    assert largest_error(found, shifted.old_logprobs, shifted.action_mask) < 1e-5
    # What the commonest mistakes give: targets not shifted; mask and log-probs one place late; one place early.
    assert largest_error(unshifted, batch.old_logprobs, batch.action_mask) > 0.1
    late, early = slice(0, -1), slice(1, None)
    assert largest_error(found[:, early], shifted.old_logprobs[:, late], shifted.action_mask[:, late]) > 0.1
    assert largest_error(found[:, late], shifted.old_logprobs[:, early], shifted.action_mask[:, early]) > 0.1


def test_packed_rows_do_not_see_one_another(model, rows):
    batch = RolloutBatch.from_trajectories(rows, pad_id=3)
    packed, padded = batch.packed(), batch.shifted()
    shifted, arrays = packed.shifted(), packed.torch()
    mask = torch.tensor(shifted.action_mask)
    with torch.no_grad():
        positions = arrays["position_ids"][None]
        hidden = model.model(arrays["input_ids"][None], position_ids=positions, use_cache=False).last_hidden_state
        found = token_logprobs(hidden[0, :-1][mask], model.lm_head.weight, torch.tensor(shifted.targets)[mask])
    assert largest_error(found, shifted.old_logprobs[shifted.action_mask], np.ones(len(found), bool)) < 1e-5
    in_place = torch.zeros(padded.targets.shape)
    in_place[torch.tensor(padded.action_mask)] = found
    assert largest_error(in_place, padded.old_logprobs, padded.action_mask) < 1e-5
