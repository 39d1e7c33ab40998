"""Comparison: what two evaluations of the same tasks say about each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from toolstep.rollout.compare.paired import Outcomes, Test, mcnemar, newcombe
from toolstep.rollout.compare.runs import EvalRun, check_comparable
from toolstep.rollout.config import Difference
from toolstep.rollout.evaluate import score, succeeded
from toolstep.rollout.stats import Interval, bootstrap_mean
from toolstep.rollout.types import OK, Trajectory

Pair = tuple[Trajectory, Trajectory]


@dataclass(frozen=True, slots=True)
class Change:
    """A mean in both runs, and the mean of the pairs' differences, second minus first, with its 95% interval."""

    first: float
    second: float
    difference: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class PairedResult:
    """What pairs say: success, by itself and as wins and losses, and the score (wins and losses by that too)."""

    pairs: int
    success: Change
    success_outcomes: Outcomes
    score: Change
    score_outcomes: Outcomes


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second run against the first, over the pairs of (task, sample) that both have.

    env: what was played.  first, second: the folders.  agents: who played, in each of them.
    test: McNemar's, over successes.  means: of other numbers by name (reward, turns, tokens).  errors: episodes that
    failed for another reason than the agent, in each run; no success, and in every denominator.
    tags: results by tag and value.  won, lost: (task id, seed, sample) of the pairs in which only the second run, or
    only the first, succeeded.  differ: where the two configurations differ.
    """

    env: str
    first: str
    second: str
    agents: tuple[str, str]
    tasks: int
    overall: PairedResult
    test: Test
    means: dict[str, Change]
    errors: tuple[int, int]
    tags: dict[str, dict[str, PairedResult]] = field(default_factory=dict)
    won: list[tuple[str, int, int]] = field(default_factory=list)
    lost: list[tuple[str, int, int]] = field(default_factory=list)
    differ: list[Difference] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return asdict(self)


def compare(a: EvalRun, b: EvalRun, *, except_: Collection[str] = (), seed: int = 0) -> Comparison:
    """Compare `b` with `a`.  `seed` is that of the bootstrap.

    Raises `IncomparableRuns`, see `check_comparable`.
    """
    differ = check_comparable(a, b, except_)
    pairs = [(a.episodes[k], b.episodes[k]) for k in sorted(a.episodes.keys() & b.episodes.keys())]
    return Comparison(
        env=str(a.config["env"]),
        first=str(a.path),
        second=str(b.path),
        agents=(str(a.config["agent"]), str(b.config["agent"])),
        tasks=len({x.seed for x, _ in pairs}),
        overall=_result(pairs, seed),
        test=mcnemar(*_successes(pairs), [x.seed for x, _ in pairs], seed=seed),
        means={name: _change(pairs, value, seed) for name, value in _MEANS.items()},
        errors=(sum(x.status != OK for x, _ in pairs), sum(y.status != OK for _, y in pairs)),
        tags=_by_tag(pairs, seed),
        won=[_name(y) for x, y in pairs if succeeded(y) and not succeeded(x)],
        lost=[_name(y) for x, y in pairs if succeeded(x) and not succeeded(y)],
        differ=differ,
    )


_MEANS: dict[str, Callable[[Trajectory], float]] = {
    "reward": lambda t: t.total_reward,
    "turns": lambda t: float(t.turns),
    "sampled tokens": lambda t: t.metrics.get("sampled_tokens", float(t.sampled)),
    "context tokens": lambda t: t.metrics.get("context_tokens", float(t.context)),
}


def _result(pairs: Sequence[Pair], seed: int) -> PairedResult:
    first, second = _successes(pairs)
    success = _change(pairs, lambda t: float(succeeded(t)), seed)
    if len({x.seed for x, _ in pairs}) == len(pairs):
        interval = newcombe(first, second)
        success = Change(success.first, success.second, success.difference, interval)
    return PairedResult(
        pairs=len(pairs),
        success=success,
        success_outcomes=Outcomes.of(first, second),
        score=_change(pairs, score, seed),
        score_outcomes=Outcomes.of(*([score(t) for t in side] for side in zip(*pairs, strict=True))),
    )


def _change(pairs: Sequence[Pair], value: Callable[[Trajectory], float], seed: int) -> Change:
    first, second = ([value(t) for t in side] for side in zip(*pairs, strict=True))
    differences = [y - x for x, y in zip(first, second, strict=True)]
    interval = bootstrap_mean(differences, clusters=[x.seed for x, _ in pairs], seed=seed)
    return Change(float(np.mean(first)), float(np.mean(second)), float(np.mean(differences)), interval)


def _successes(pairs: Sequence[Pair]) -> tuple[list[bool], list[bool]]:
    return [succeeded(x) for x, _ in pairs], [succeeded(y) for _, y in pairs]


def _by_tag(pairs: Sequence[Pair], seed: int) -> dict[str, dict[str, PairedResult]]:
    groups: dict[str, dict[str, list[Pair]]] = {}
    for x, y in pairs:
        for tag, value in (x.tags or y.tags).items():  # an episode that never began has none
            groups.setdefault(tag, {}).setdefault(value, []).append((x, y))
    return {
        tag: {value: _result(members, seed) for value, members in sorted(values.items())}
        for tag, values in sorted(groups.items())
    }


def _name(trajectory: Trajectory) -> tuple[str, int, int]:
    return trajectory.task_id, trajectory.seed, trajectory.sample_index
