"""How much better than the rest of its group an episode, or a turn of it, was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Estimator = Literal["grpo", "dr_grpo", "rloo"]
ESTIMATORS: tuple[Estimator, ...] = ("grpo", "dr_grpo", "rloo")

EPSILON = 1e-4  # added to the standard deviation, as in TRL's GRPO: smaller ones blow up what is only rounding
# Members this close, relative to the largest of them, are equal: float32 sums of the same rewards differ by as much.
_EQUAL = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class GroupAdvantages:
    """values: f32, of the shape of the returns; 0 where there is nothing to compare with.

    groups: groups with a usable member.  single_member, zero_variance: groups whose values are all 0, because one
    member is usable or because all usable members are equal.
    """

    values: NDArray[np.float32]
    groups: int
    single_member: int
    zero_variance: int


def group_advantages(
    returns: NDArray[np.floating[Any]],
    group_ids: NDArray[np.int64],
    usable: NDArray[np.bool_],
    estimator: Estimator = "grpo",
) -> GroupAdvantages:
    """Advantages relative to the usable members of each group.

    returns: [N], one for each episode, or [N,K], where each column is compared for itself (see `turn_returns`).
    group_ids: i64[N].  usable: bool[N]; other rows get 0 and are part of no baseline.

    "grpo": (r - mean) / (std + 1e-4), with the population's standard deviation (Shao et al. 2024, DeepSeekMath,
    arXiv 2402.03300; TRL takes the sample's).  "dr_grpo": r - mean (Liu et al. 2025, arXiv 2503.20783).  "rloo": r
    minus the mean of the other members (Ahmadian et al. 2024, arXiv 2402.14740).  Raises `ValueError` for another one.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(f"group_advantages: estimator must be one of {', '.join(ESTIMATORS)}, got {estimator!r}")
    out = np.zeros(returns.shape, dtype=np.float64)
    groups = singles = flat_groups = 0
    for group in np.unique(group_ids[usable]):
        rows = np.flatnonzero((group_ids == group) & usable)
        members = returns[rows].astype(np.float64)
        groups += 1
        if rows.size == 1:
            singles += 1
            continue
        centred = members - members.mean(axis=0)
        if estimator == "grpo":
            centred /= members.std(axis=0) + EPSILON
        elif estimator == "rloo":
            centred *= rows.size / (rows.size - 1)
        flat = np.ptp(members, axis=0) <= _EQUAL * np.abs(members).max(axis=0)
        out[rows] = np.where(flat, 0.0, centred)
        flat_groups += bool(flat.all())
    return GroupAdvantages(out.astype(np.float32), groups, singles, flat_groups)


def turn_returns(turn_rewards: Sequence[NDArray[np.floating[Any]]]) -> NDArray[np.float64]:
    """f64[N,K], K the most turns of an episode: what each episode earns from turn k on, undiscounted.

    An episode that ends before turn k stands there with the return of its last turn.  So an env that pays only at the
    end gives each turn the same comparison as whole episodes, and a turn that few members reach still has a baseline.
    """
    out = np.zeros((len(turn_rewards), max((len(r) for r in turn_rewards), default=0)))
    for row, rewards in zip(out, turn_rewards, strict=True):
        n = len(rewards)
        row[:n] = np.cumsum(np.asarray(rewards, np.float64)[::-1])[::-1]
        row[n:] = row[n - 1] if n else 0.0
    return out
