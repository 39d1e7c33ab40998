"""Each loss against a slow loop that spells its paper out, and its gradient against finite differences of that loop."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from toolstep.rollout import losses
from toolstep.rollout.losses import LossError
from toolstep.rollout.objective import OBJECTIVES, Objective

ROWS, WIDTH, LENGTH = 4, 6, 9


def data(seed=0, spread=0.4):
    """Log-probs of new, old, reference and sampler, advantages and a mask; the last row is wholly masked."""
    rng = np.random.default_rng(seed)
    new = -rng.uniform(0.1, 3, (ROWS, WIDTH))
    old, ref, sampler = (new + rng.normal(0, spread, new.shape) for _ in range(3))
    advantages = rng.normal(0, 1, (ROWS, 1)) * np.ones(new.shape)
    mask = rng.random(new.shape) < 0.6
    mask[:, 2] = True
    mask[-1] = False
    return new, old, ref, sampler, advantages, mask


def tensors(*arrays):
    return [torch.tensor(a) for a in arrays]


def slow_reduce(values, mask, reduction):
    """values: {(row, position): number} of the sampled ids."""
    rows = [[values[b, t] for t in range(WIDTH) if mask[b, t]] for b in range(ROWS)]
    rows = [row for row in rows if row]
    if reduction == "token-mean":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if reduction == "sequence-mean":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return sum(map(sum, rows)) / (len(rows) * LENGTH)


def slow(name, new, old, advantages, mask, at, low, high):
    """{(row, position): loss}; `at` are the log-probs at which weights without gradient are taken."""
    out = {}
    for b in range(ROWS):
        places = [t for t in range(WIDTH) if mask[b, t]]
        for t in places:
            a = advantages[b, t]
            if name == "cispo":
                out[b, t] = -min(math.exp(at[b, t] - old[b, t]), high) * a * new[b, t]
                continue
            ratio = math.exp(new[b, t] - old[b, t])
            if name == "gspo":
                ratio = math.exp(sum(new[b, u] - old[b, u] for u in places) / len(places))
            if name == "gspo-token":
                of_row = math.exp(sum(at[b, u] - old[b, u] for u in places) / len(places))
                ratio = of_row * math.exp(new[b, t] - at[b, t])
            out[b, t] = -min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
    return out


def finite_differences(f, x, step=1e-6):
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        out[i] = (f(up) - f(down)) / (2 * step)
    return out


CASES = [
    ("grpo", "sequence-mean", losses.grpo, {"clip_low": 0.2, "clip_high": 0.2}),
    ("grpo", "token-mean", losses.grpo, {"clip_low": 0.2, "clip_high": 0.28}),
    ("grpo", "constant-length", losses.grpo, {"clip_low": 0.2, "clip_high": 0.2}),
    ("gspo", "sequence-mean", losses.gspo, {"clip_low": 0.05, "clip_high": 0.08}),
    ("gspo-token", "token-mean", losses.gspo, {"clip_low": 0.05, "clip_high": 0.08}),
    ("cispo", "token-mean", losses.cispo, {"ratio_max": 1.2}),
]


@pytest.mark.parametrize(("name", "reduction", "surrogate", "clip"), CASES)
def test_loss_and_gradient_equal_the_slow_loop(name, reduction, surrogate, clip):
    low, high = clip.get("clip_low", 0), clip.get("clip_high", clip.get("ratio_max"))
    length = LENGTH if reduction == "constant-length" else None
    clipped = []
    for seed in range(4):
        new, old, _, _, advantages, mask = data(seed)
        if name == "gspo-token":  # what the token form is for: advantages that differ from turn to turn
            advantages[:, 3:] *= -0.5

        def loop(x, new=new, old=old, advantages=advantages, mask=mask):
            return slow_reduce(slow(name, x, old, advantages, mask, new, low, high), mask, reduction)

        t_new, t_old, t_advantages, t_mask = tensors(new, old, advantages, mask)
        t_new.requires_grad_()
        parts = surrogate(t_new, t_old, t_advantages, t_mask, **clip)
        loss = losses.reduce(parts.loss, t_mask, reduction, length=length)
        loss.backward()
        assert loss.item() == pytest.approx(loop(new), rel=1e-12)
        np.testing.assert_allclose(t_new.grad.numpy(), finite_differences(loop, new), atol=1e-8)
        assert name == "cispo" or not t_new.grad[parts.clipped].any()
        clipped += [int(c) for c in parts.clipped[t_mask]]
    assert 0 < sum(clipped) < len(clipped)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_on_policy_gradient_is_reinforce(name):
    """With new == old every member of the family has the gradient -A of its reduction, and clips nothing."""
    new, _, _, _, advantages, mask = data()
    objective = dataclasses.replace(OBJECTIVES[name], length=LENGTH if name == "dr_grpo" else None)
    t_new, t_advantages, t_mask = tensors(new, advantages, mask)
    t_new.requires_grad_()
    loss, metrics = objective(t_new, t_new.detach(), t_advantages, t_mask)
    loss.backward()

    def reinforce(x):
        values = {(b, t): -advantages[b, t] * x[b, t] for b, t in np.ndindex(x.shape)}
        return slow_reduce(values, mask, objective.reduction)

    np.testing.assert_allclose(t_new.grad.numpy(), finite_differences(reinforce, new), atol=1e-8)
    assert (metrics["clip_fraction"], metrics["ratio_mean"], metrics["ratio_max"], metrics["approx_kl"]) == (0, 1, 1, 0)


def test_clip_higher_lets_rare_ids_grow():
    new, old = torch.tensor([[math.log(0.0125)]]), torch.tensor([[math.log(0.01)]])  # ratio 1.25
    one, mask = torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    assert losses.grpo(new, old, one, mask).clipped.item()
    assert not losses.grpo(new, old, one, mask, clip_high=0.28).clipped.item()
    assert not losses.grpo(new, old, -one, mask).clipped.item()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators_equal_their_formulas(estimator):
    new, _, ref, _, _, mask = data()
    r = np.exp(ref - new)
    expected = {"k1": -np.log(r), "k2": np.log(r) ** 2 / 2, "k3": r - 1 - np.log(r)}[estimator]
    found = losses.kl(*tensors(new, ref, mask), estimator).numpy()
    np.testing.assert_allclose(found, np.where(mask, expected, 0), rtol=1e-12)


def test_k1_and_k3_estimate_the_kl_of_policy_to_reference():
    """The mean over the policy's own samples, here exact: each id weighed by its probability."""
    p, q = torch.tensor([[0.7, 0.2, 0.1]]), torch.tensor([[0.3, 0.3, 0.4]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    true = (p * (p / q).log()).sum()
    for estimator in ("k1", "k3"):
        torch.testing.assert_close((p * losses.kl(p.log(), q.log(), mask, estimator)).sum(), true)
    assert (losses.kl(p.log(), q.log(), mask) >= 0).all()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_objective_adds_penalty_and_truncated_correction(name):
    new, old, ref, sampler, advantages, mask = data()
    length = LENGTH if name == "dr_grpo" else None
    objective = dataclasses.replace(OBJECTIVES[name], length=length, kl_coef=0.1, importance_cap=1.3)
    t_new, t_old, t_ref, t_sampler, t_advantages, t_mask = tensors(new, old, ref, sampler, advantages, mask)
    t_new.requires_grad_()
    loss, metrics = objective(t_new, t_old, t_advantages, t_mask, ref_logprobs=t_ref, sampler_logprobs=t_sampler)
    parts = objective.surrogate(t_new.detach(), t_old, t_advantages, t_mask)
    places = [i for i in np.ndindex(mask.shape) if mask[i]]
    importance = {i: math.exp(old[i] - sampler[i]) for i in places}
    k3 = {i: math.exp(ref[i] - new[i]) - 1 - (ref[i] - new[i]) for i in places}
    policy = {i: parts.loss[i].item() * min(importance[i], 1.3) for i in places}
    expected = slow_reduce({i: policy[i] + 0.1 * k3[i] for i in places}, mask, objective.reduction)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    mean = lambda values: sum(values) / len(places)  # noqa: E731
    assert metrics == pytest.approx(
        {
            "tokens": len(places),
            "policy_loss": mean(policy.values()),
            "ratio_mean": mean(parts.ratio[i].item() for i in places),
            "ratio_max": max(parts.ratio[i].item() for i in places),
            "clip_fraction": mean(parts.clipped[i].item() for i in places),
            "approx_kl": mean(math.exp(new[i] - old[i]) - 1 - (new[i] - old[i]) for i in places),
            "kl": mean(k3.values()),
            "importance_mean": mean(importance.values()),
            "importance_max": max(importance.values()),
            "importance_capped": mean(x > 1.3 for x in importance.values()),
            "importance_cap": 1.3,
        }
    )
    assert 0 < metrics["importance_capped"] < 1
    # The correction is a weight, not a path for gradients.
    plain = losses.importance_ratio(t_old.requires_grad_(), t_sampler, t_mask)
    assert not plain.requires_grad


def test_one_sampler_that_is_the_learner_changes_nothing():
    new, old, _, _, advantages, mask = tensors(*data())
    objective = OBJECTIVES["dapo"]
    corrected, metrics = objective(new, old, advantages, mask, sampler_logprobs=old)
    assert corrected == objective(new, old, advantages, mask)[0]
    assert (metrics["importance_mean"], metrics["importance_capped"]) == (1.0, 0.0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_micro_batches_add_up_to_the_batch(name):
    new, old, ref, _, advantages, mask = tensors(*data())
    length = LENGTH if name == "dr_grpo" else None
    objective = dataclasses.replace(OBJECTIVES[name], length=length, kl_coef=0.05)
    new.requires_grad_()
    (whole,) = torch.autograd.grad(objective(new, old, advantages, mask, ref_logprobs=ref)[0], new)
    total = objective.total(mask)
    for rows in ([0, 1], [2], [3]):  # the last is wholly masked
        part = [x[rows] for x in (new, old, advantages, mask)]
        objective(*part, ref_logprobs=ref[rows], total=total)[0].backward()
    torch.testing.assert_close(new.grad, whole)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_stands_off_the_mask_reaches_nothing(name, garbage):
    arrays = tensors(*data())
    mask = arrays[-1]
    dirty = [torch.where(mask, a, garbage) for a in arrays[:-1]]
    length = LENGTH if name == "dr_grpo" else None
    objective = dataclasses.replace(OBJECTIVES[name], length=length, kl_coef=0.1)
    results = []
    for new, old, ref, sampler, advantages in (arrays[:-1], dirty):
        new.requires_grad_()
        loss, metrics = objective(new, old, advantages, mask, ref_logprobs=ref, sampler_logprobs=sampler)
        loss.backward()
        results.append((loss.item(), metrics, new.grad))
    assert results[0][:2] == results[1][:2]
    assert torch.equal(results[0][2], results[1][2])
    assert not results[1][2][~mask].any()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_far_off_policy_never_overflows(name):
    new, old = torch.tensor([[-1.0, -300.0]]), torch.tensor([[-300.0, -1.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    objective = dataclasses.replace(OBJECTIVES[name], length=LENGTH if name == "dr_grpo" else None, kl_coef=0.1)
    for sign in (1.0, -1.0):
        loss, metrics = objective(new, old, sign * torch.ones(1, 2), mask, ref_logprobs=old, sampler_logprobs=new)
        assert loss.isfinite()
        assert all(map(math.isfinite, metrics.values()))


def test_tensors_that_do_not_belong_together_are_named():
    new, old, ref, _, advantages, mask = tensors(*data())
    with pytest.raises(LossError, match=r"old_logprobs must be \[B,T\] = \[4, 6\], got \[4, 5\]"):
        losses.grpo(new, old[:, 1:], advantages, mask)
    for surrogate in (losses.grpo, losses.gspo, losses.cispo):
        with pytest.raises(LossError, match=r"advantages must be \[B,T\] = \[4, 6\], got \[4, 1\]"):
            surrogate(new, old, advantages[:, :1], mask)
    with pytest.raises(LossError, match=r"mask must be \[B,T\] = \[4, 6\], got \[4, 5\]"):
        losses.kl(new, ref, mask[:, 1:])
    with pytest.raises(LossError, match=r"mask must be bool, got torch.int64"):
        losses.reduce(new, mask.long())
    with pytest.raises(LossError, match=r"sampler_logprobs must be \[B,T\]"):
        losses.importance_ratio(old, ref[0], mask)


def test_logprob_that_is_missing_is_named_by_row():
    new, old, _, _, advantages, mask = tensors(*data())
    old[1, 2] = float("nan")
    with pytest.raises(LossError, match=r"old_logprobs of row 1, id 2 must be a finite number, got nan"):
        losses.grpo(new, old, advantages, mask)
    new[2, 2] = -float("inf")
    with pytest.raises(LossError, match=r"logprobs of row 2, id 2 must be a finite number, got -inf"):
        losses.reduce(losses.cispo(new, old.nan_to_num(), advantages, mask).loss, mask)


def test_nothing_to_learn_from_is_an_error_not_a_nan():
    new, old, _, _, advantages, mask = tensors(*data())
    with pytest.raises(LossError, match="mask: all 4 rows are masked"):
        OBJECTIVES["grpo"](new, old, advantages, torch.zeros_like(mask))
    with pytest.raises(LossError, match="mask: all 0 rows are masked"):
        OBJECTIVES["dapo"](new[:0], old[:0], advantages[:0], mask[:0])


def test_bad_settings_are_named():
    new, old, _, _, advantages, mask = tensors(*data())
    with pytest.raises(LossError, match="length must be positive for 'constant-length' and None elsewhere, got None"):
        OBJECTIVES["dr_grpo"](new, old, advantages, mask)
    with pytest.raises(LossError, match="got 5 for 'token-mean'"):
        losses.reduce(new, mask, length=5)
    with pytest.raises(LossError, match=r"reduction must be one of .*, got 'mean'"):
        losses.reduce(new, mask, "mean")
    with pytest.raises(LossError, match="estimator must be k1, k2 or k3, got 'k4'"):
        losses.kl(new, old, mask, "k4")
    with pytest.raises(LossError, match=r"ref_logprobs are missing: kl_coef is 0.1"):
        Objective(kl_coef=0.1)(new, old, advantages, mask)
