"""Statistics of pairs: the same task, played by two agents."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolstep.rollout.stats import CONFIDENCE, Interval, wilson

_RESAMPLES = 9_999
EXACT = "McNemar, exact"
FLIPPED = "McNemar, signs of whole tasks flipped"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How often the second of a pair is better than the first, worse, and as good."""

    wins: int
    losses: int
    ties: int

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Outcomes:
        signs = np.sign(np.asarray(second, np.float64) - np.asarray(first, np.float64))
        return cls(int((signs > 0).sum()), int((signs < 0).sum()), int((signs == 0).sum()))


@dataclass(frozen=True, slots=True)
class Test:
    """Two-sided test that neither is better."""

    name: str
    p: float


def newcombe(first: Sequence[bool], second: Sequence[bool], confidence: float = CONFIDENCE) -> Interval | None:
    """Interval of the difference of two paired rates, second minus first (Newcombe 1998b, method 10).

    Wilson's intervals of both rates, squared and added, with the correlation of the pairs.  It has a width where no
    pair differs, and stays in [-1, 1].  Newcombe, Statistics in Medicine 17, 2635-2650.
    """
    n = len(first)
    if n == 0:
        return None
    both = sum(a and b for a, b in zip(first, second, strict=True))
    only_second, only_first = sum(second) - both, sum(first) - both
    neither = n - both - only_first - only_second
    p2, p1 = sum(second) / n, sum(first) / n
    i2, i1 = wilson(sum(second), n, confidence), wilson(sum(first), n, confidence)
    assert i1 is not None
    assert i2 is not None
    product = math.prod((sum(first), n - sum(first), sum(second), n - sum(second)))
    phi = (both * neither - only_first * only_second) / math.sqrt(product) if product else 0.0

    def width(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    difference = p2 - p1
    low = difference - width(p2 - i2.low, i1.high - p1)
    high = difference + width(i2.high - p2, p1 - i1.low)
    return Interval(max(-1.0, low), min(1.0, high), confidence)


def mcnemar(first: Sequence[bool], second: Sequence[bool], clusters: Sequence[Hashable], *, seed: int = 0) -> Test:
    """McNemar's test of paired successes (1947): of the pairs that differ, does either side have more?

    Exact, by the binomial distribution (scipy).  Where clusters (tasks) have several pairs, which are not independent,
    the signs of whole clusters are flipped instead: with one pair a cluster that is the same test.
    """
    wins = sum(b and not a for a, b in zip(first, second, strict=True))
    losses = sum(a and not b for a, b in zip(first, second, strict=True))
    if len(set(clusters)) == len(clusters):
        if not wins + losses:
            return Test(EXACT, 1.0)
        from scipy.stats import binomtest

        return Test(EXACT, float(binomtest(wins, wins + losses, 0.5).pvalue))
    sums: dict[Hashable, int] = {}
    for key, a, b in zip(clusters, first, second, strict=True):
        sums[key] = sums.get(key, 0) + int(b) - int(a)
    return Test(FLIPPED, _sign_flips([s for s in sums.values() if s], seed))


def _sign_flips(values: Sequence[int], seed: int) -> float:
    """Two-sided p of the sum of `values` when each may as well have the other sign; all signs are tried if few."""
    if len(values) < 2:
        return 1.0
    from scipy.stats import permutation_test

    def total(x: Any, axis: int) -> Any:
        return np.sum(x, axis=axis)

    found = permutation_test(
        (np.asarray(values, np.float64),),
        total,
        permutation_type="samples",
        vectorized=True,
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)
