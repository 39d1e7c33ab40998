"""Rates and means of an evaluation, and how much they may be trusted."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

CONFIDENCE = 0.95
_RESAMPLES = 9_999  # scipy's default
_BATCH_NUMBERS = 4_000_000  # resampled numbers held at a time: 32 MB


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval."""

    low: float
    high: float
    confidence: float = CONFIDENCE


def wilson(successes: float, total: float, confidence: float = CONFIDENCE) -> Interval | None:
    """Wilson's score interval of a rate (Wilson 1927); None without observations.

    Unlike the normal approximation it stays in [0, 1] and has a width at 0 and at `total` successes.  Fractions come
    from an effective sample size.
    """
    if not 0 <= successes <= total:
        raise ValueError(f"successes must be in [0, total={total}], got {successes}")
    if total == 0:
        return None
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    rate = successes / total
    centre = (rate + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(rate * (1 - rate) / total + z * z / (4 * total * total))
    # Rounding must not push an end past the rate itself, which it touches at 0 and at 1.
    return Interval(max(0.0, min(centre - half, rate)), min(1.0, max(centre + half, rate)), confidence)


def clustered_wilson(
    successes: Sequence[bool], clusters: Sequence[Hashable], confidence: float = CONFIDENCE
) -> Interval | None:
    """Wilson's interval of a rate whose observations belong to clusters (the samples of one task).

    Members of a cluster are not independent, so the number of observations is divided by the design effect (Kish 1965;
    for Wilson's interval Dean and Pagano 2015): the variance of the rate over clusters, by
    that of independent observations.  It is held between the number of clusters and the number of observations, and is
    the former where all are alike, because nothing can be said of the effect then.
    """
    total = len(successes)
    if total == 0:
        return None
    counts: dict[Hashable, list[int]] = {}
    for key, success in zip(clusters, successes, strict=True):
        count = counts.setdefault(key, [0, 0])
        count[0] += success
        count[1] += 1
    rate = sum(successes) / total
    m = len(counts)
    effective = float(m)
    if 0 < rate < 1 and m > 1:
        spread = sum((good - rate * n) ** 2 for good, n in counts.values()) * m / (m - 1)
        if spread > 0:
            effective = min(float(total), max(float(m), total * total * rate * (1 - rate) / spread))
        else:
            effective = float(total)
    if effective == total:
        return wilson(sum(successes), total, confidence)
    return wilson(rate * effective, effective, confidence)


def pass_at(successes: int, samples: int, k: int) -> float:
    """pass@k: probability that one of k samples of a task succeeds, of `samples` of which `successes` did.

    The unbiased estimate 1 - C(n - c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374, equation 1).
    """
    return 1.0 - pass_all(samples - successes, samples, k)


def pass_all(successes: int, samples: int, k: int) -> float:
    """pass^k: probability that all k samples of a task succeed, C(c, k) / C(n, k), unbiased too.

    (Yao et al. 2024, arXiv:2406.12045, section 4.)
    """
    if not 0 <= successes <= samples or not 1 <= k <= samples:
        raise ValueError(f"there is no k = {k} of {samples} samples with {successes} successes")
    return math.comb(successes, k) / math.comb(samples, k)


def bootstrap_mean(
    values: Sequence[float],
    *,
    clusters: Sequence[Hashable] | None = None,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Interval | None:
    """Bootstrap interval of a mean (BCa, Efron 1987, by scipy), reproducible by `seed`.

    `clusters` names what each value belongs to (the samples of one task): whole clusters are drawn then, because their
    members are not independent.  None where there are fewer than two clusters, and where all are alike: resampling them
    shows no spread, which is not to say that there is none.
    """
    if clusters is None:
        clusters = range(len(values))
    totals: dict[Hashable, list[float]] = {}
    for key, value in zip(clusters, values, strict=True):
        total = totals.setdefault(key, [0.0, 0.0])
        total[0] += value
        total[1] += 1
    if len(totals) < 2:
        return None
    sums, counts = np.array(list(totals.values())).T
    if np.all(sums / counts == sums[0] / counts[0]):
        return None

    from scipy.stats import bootstrap

    def ratio(s: Any, c: Any, axis: int) -> Any:
        return s.sum(axis=axis) / c.sum(axis=axis)

    def interval(method: str) -> Any:
        return bootstrap(
            (sums, counts),
            ratio,
            paired=True,
            vectorized=True,
            n_resamples=_RESAMPLES,
            batch=max(1, _BATCH_NUMBERS // len(sums)),
            confidence_level=confidence,
            method=method,
            rng=np.random.default_rng(seed),
        ).confidence_interval

    found = interval("BCa")
    if not np.isfinite([found.low, found.high]).all():  # no acceleration for a nearly constant sample
        found = interval("percentile")
    return Interval(float(found.low), float(found.high), confidence)
