"""Losses of GRPO and its kin as pure functions.

All tensors are [B,T], aligned as `RolloutBatch.shifted()` gives them: entry [b, t] is of one target id, `mask` is True
where the policy sampled it, and whatever stands off the mask reaches neither values nor gradients.  A surrogate gives
a loss for each id, `kl` another, `reduce` makes one number of them:

    per_id = losses.grpo(new, old, advantages, mask, clip_high=0.28).loss + 0.04 * losses.kl(new, ref, mask)
    losses.reduce(per_id, mask, "token-mean").backward()

Nothing broadcasts: a shape other than that of `logprobs`, and a value on the mask that is not finite, is a `LossError`
that names the argument and the row.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]
Reduction = Literal["token-mean", "sequence-mean", "constant-length"]
REDUCTIONS: tuple[Reduction, ...] = ("token-mean", "sequence-mean", "constant-length")

_LIMIT = 20.0  # log-ratios are held within it, so that no exp overflows; e^20 is far outside any clip


class LossError(ValueError):
    """Tensors that do not belong together, or nothing to learn from."""


class Surrogate(NamedTuple):
    """What a policy-gradient objective says of each id.

    loss: [B,T], differentiable, 0 off the mask.
    ratio: [B,T], new probability over old, without gradient, 1 off the mask.
    clipped: bool[B,T], ids whose gradient the clip takes away (cispo: whose weight it cuts).
    """

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def grpo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Surrogate:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A), of PPO (Schulman et al. 2017, arXiv 1707.06347).

    GRPO (Shao et al. 2024, arXiv 2402.03300) with "sequence-mean"; DAPO's clip-higher (Yu et al. 2025, arXiv
    2503.14476) is clip_high=0.28 with "token-mean"; Dr. GRPO (Liu et al. 2025, arXiv 2503.20783) takes
    "constant-length" and advantages without the standard deviation.
    """
    log_ratio = _log_ratio(mask, logprobs=logprobs, old_logprobs=old_logprobs)
    return _clip(log_ratio.exp(), _on_mask(mask, logprobs, advantages=advantages), clip_low, clip_high)


def gspo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Surrogate:
    """As `grpo`, with the ratio of the sequence: exp of the mean log-ratio over the row's sampled ids (GSPO-token,
    Zheng et al. 2025, arXiv 2507.18071, whose clip range is the default).

    In value each id has its row's ratio; in gradient each has its own log-prob, so that advantages may differ from turn
    to turn.  With one advantage a row and "sequence-mean" that is GSPO itself.
    """
    log_ratio = _log_ratio(mask, logprobs=logprobs, old_logprobs=old_logprobs)
    of_row = log_ratio.detach().sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    own = torch.where(mask, logprobs, 0.0)
    ratio = torch.where(mask, (of_row + own - own.detach()).exp(), 1.0)
    return _clip(ratio, _on_mask(mask, logprobs, advantages=advantages), clip_low, clip_high)


def cispo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, ratio_max: float = 5.0
) -> Surrogate:
    """-min(ratio, ratio_max) A logprob, the weight without gradient: no id loses its own (MiniMax-M1, Chen et al. 2025,
    arXiv 2506.13585; its 1 + epsilon is `ratio_max`, and 5 the value of ScaleRL, Khatri et al. 2025, arXiv 2510.13786).
    """
    ratio = _log_ratio(mask, logprobs=logprobs, old_logprobs=old_logprobs).detach().exp()
    weighted = ratio.clamp(max=ratio_max) * _on_mask(mask, logprobs, advantages=advantages)
    return Surrogate(-weighted * torch.where(mask, logprobs, 0.0), ratio, ratio > ratio_max)


def kl(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, estimator: Estimator = "k3") -> Tensor:
    """[B,T]: estimate of KL(policy || reference) at each sampled id (Schulman 2020, joschu.net/blog/kl-approx.html).

    With d = ref_logprobs - logprobs: "k1" is -d, unbiased, of either sign, and no loss (its expected gradient is 0);
    "k2" is d^2 / 2; "k3" is e^d - 1 - d, unbiased and never negative, what GRPO adds to its loss.
    """
    d = _log_ratio(mask, ref_logprobs=ref_logprobs, logprobs=logprobs)
    if estimator == "k1":
        return -d
    if estimator == "k2":
        return d.square() / 2
    if estimator == "k3":
        return d.expm1() - d
    raise LossError(f"kl: estimator must be k1, k2 or k3, got {estimator!r}")


def importance_ratio(learner_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor) -> Tensor:
    """[B,T], without gradient, 1 off the mask: the learner's probability of each id over that of what sampled it.

    Where the sampler is not the learner (another engine, quantised weights, a truncated distribution), min(ratio, cap)
    weighs the surrogate: truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings
    you off-policy RL training").  Both log-probs are of the weights that sampled: `learner_logprobs` as the learner
    computes them before its first step.
    """
    return _log_ratio(mask, learner_logprobs=learner_logprobs, sampler_logprobs=sampler_logprobs).detach().exp()


def denominator(mask: Tensor, reduction: Reduction, *, length: int | None = None) -> Tensor:
    """Scalar: what `reduce` divides by.  Rows without a sampled id (failed ones) count nowhere.

    "token-mean": sampled ids (DAPO).  "sequence-mean": rows (GRPO).  "constant-length": rows x `length`, a constant of
    the run such as the most ids an episode may sample (Dr. GRPO).
    """
    if reduction not in REDUCTIONS:
        raise LossError(f"reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")
    if (reduction == "constant-length") != (length is not None) or (length is not None and length <= 0):
        raise LossError(
            f"length must be positive for 'constant-length' and None elsewhere, got {length} for {reduction!r}"
        )
    if reduction == "token-mean":
        return mask.sum()
    return mask.any(-1).sum() * (length or 1)


def reduce(
    values: Tensor,
    mask: Tensor,
    reduction: Reduction = "token-mean",
    *,
    length: int | None = None,
    total: Tensor | float | None = None,
) -> Tensor:
    """Scalar: the values on the mask, summed ("sequence-mean": each row's mean) and divided by the denominator.

    total: `denominator` of the whole batch where `values` are those of a micro-batch, so that the losses of all
    micro-batches add up to that of the batch.  Without it an empty mask is a `LossError`.
    """
    kept = _on_mask(mask, values, values=values)
    divisor = denominator(mask, reduction, length=length) if total is None else total
    if total is None and not divisor:
        raise LossError(f"mask: all {len(mask)} rows are masked, there is nothing to learn from")
    if reduction == "sequence-mean":
        kept = kept / mask.sum(-1, keepdim=True).clamp(min=1)
    return kept.sum() / divisor


def _clip(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Surrogate:
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    now = ratio.detach()
    clipped = ((now < 1 - low) & (advantages < 0)) | ((now > 1 + high) & (advantages > 0))
    return Surrogate(loss, now, clipped)


def _log_ratio(mask: Tensor, **of: Tensor) -> Tensor:
    """The first minus the second on the mask, 0 elsewhere."""
    first, second = (_on_mask(mask, next(iter(of.values())), **{name: value}) for name, value in of.items())
    return (first - second).clamp(-_LIMIT, _LIMIT)


def _on_mask(mask: Tensor, like: Tensor, **named: Tensor) -> Tensor:
    """The one tensor given by name, 0 off the mask, once shapes, the mask's dtype and finiteness have been checked."""
    ((name, value),) = named.items()
    if mask.dtype != torch.bool:
        raise LossError(f"mask must be bool, got {mask.dtype}: other dtypes index or scale instead of masking")
    for what, tensor in ((name, value), ("mask", mask)):
        if tensor.ndim != 2 or tensor.shape != like.shape:
            raise LossError(f"{what} must be [B,T] = {list(like.shape)}, got {list(tensor.shape)}")
    kept = torch.where(mask, value, 0.0)
    if not torch.isfinite(kept.detach()).all():
        row, at = (~torch.isfinite(kept)).nonzero()[0].tolist()
        raise LossError(f"{name} of row {row}, id {at} must be a finite number, got {kept[row, at].item()}")
    return kept
