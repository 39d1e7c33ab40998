"""The weighted sum of what an episode earns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from types import MappingProxyType
from typing import Any

from toolstep.envs.rewards.terms import TERMS
from toolstep.envs.tasks.base import nearest
from toolstep.envs.types import EpisodeRecord

OUTCOME = "outcome"
Clip = tuple[float | None, float | None]


class RewardError(ValueError):
    """A reward that no learner could use (not a number, or not finite), or one that could not be had."""


class Rubric:
    """A weighted sum of named values, clipped if that is wanted.

    terms: name: (weight, function of the finished episode).  A function may return None where the term does not apply.
    clip: (least, most) of the sum; None for no bound.

    >>> rubric = Rubric({"outcome": (1.0, score), "calls": (0.05, call_cost)}, clip=(-1.0, 1.0))

    Raises:
        ValueError: a weight or a bound that is not a finite number; a term that is no function.
    """

    def __init__(
        self,
        terms: Mapping[str, tuple[float, Callable[[EpisodeRecord], float | None]]],
        *,
        clip: Sequence[float | None] | None = None,
    ) -> None:
        for name, (weight, function) in terms.items():
            if not _finite(weight):
                raise ValueError(f"reward term {name!r}: the weight must be a finite number, got {weight!r}")
            if not callable(function):
                raise ValueError(f"reward term {name!r}: expected a function of an EpisodeRecord, got {function!r}")
        self._terms = dict(terms)
        self.clip = _bounds(clip)

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each term."""
        return MappingProxyType({name: float(weight) for name, (weight, _) in self._terms.items()})

    def values(self, record: EpisodeRecord, known: Mapping[str, float] | None = None) -> dict[str, float]:
        """The value of each term that applies, before its weight; those of weight 0 too, so that they can be watched.

        known: values that are there already.

        Raises:
            RewardError: a value that is not a finite number; the message names the term and the task.
        """
        known = known or {}
        found: dict[str, Any] = {n: known[n] if n in known else f(record) for n, (_, f) in self._terms.items()}
        return {name: checked(value, name, record) for name, value in found.items() if value is not None}

    def total(self, values: Mapping[str, float], record: EpisodeRecord) -> float:
        """The reward: the sum of weight x value, within the bounds.

        Raises:
            RewardError: it is too large for a float; the message names the term.
        """
        parts = [checked(self._terms[name][0] * value, name, record) for name, value in values.items()]
        try:
            total = math.fsum(parts)
        except OverflowError:
            total = math.inf
        low, high = self.clip
        total = checked(total, "sum", record)
        total = total if low is None else max(low, total)
        return total if high is None else min(high, total)

    def __call__(self, record: EpisodeRecord) -> float:
        return self.total(self.values(record), record)

    def __repr__(self) -> str:
        return f"Rubric({', '.join(f'{n}={w:g}' for n, w in self.weights.items())})"


def make_rubric(
    outcome: Callable[[EpisodeRecord], float],
    weights: Mapping[str, float] | None = None,
    *,
    clip: Sequence[float | None] | None = None,
) -> Rubric:
    """The outcome (weight 1) and the terms of `TERMS`, which count for nothing where `weights` does not name them.

    >>> make_rubric(tasks.score, {"call_cost": 0.05, "unfinished": 0.5}, clip=(-1, 1))

    Raises:
        ValueError: a weight of no term (the message has the nearest), or one that is not a finite number.
    """
    if weights is not None and not isinstance(weights, Mapping):
        raise ValueError(f"the weights must be a dict of terms and numbers, got {weights!r:.80}")
    weights = dict(weights or {})
    for name in weights:
        if name != OUTCOME and name not in TERMS:
            raise ValueError(f"there is no reward term {name!r}; {nearest(str(name), [OUTCOME, *TERMS])}")
    terms: dict[str, tuple[float, Callable[[EpisodeRecord], float | None]]] = {
        OUTCOME: (weights.get(OUTCOME, 1.0), outcome),
        **{name: (weights.get(name, 0.0), function) for name, function in TERMS.items()},
    }
    return Rubric(terms, clip=clip)


def checked(value: object, name: str, record: EpisodeRecord) -> float:
    """`value` as a float.

    Raises:
        RewardError: it is not a finite number.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, str):
        raise RewardError(
            f"reward term {name!r} gave {value!r:.80} for task {record.task.id!r}: expected a finite number"
        )
    return number


def _finite(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _bounds(clip: Sequence[float | None] | None) -> Clip:
    if clip is None:
        return None, None
    problem = f"the clip of a reward must be (least, most), numbers or None, the first one not above, got {clip!r:.80}"
    if isinstance(clip, str) or not isinstance(clip, Sequence) or len(clip) != 2:
        raise ValueError(problem)
    low, high = clip
    if not all(bound is None or _finite(bound) for bound in clip) or (
        low is not None and high is not None and low > high
    ):
        raise ValueError(problem)
    return None if low is None else float(low), None if high is None else float(high)
