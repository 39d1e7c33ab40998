"""Evaluation: exactly the listed (task, sample) pairs, errors counted, intervals on all that is a mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from toolstep.agents.base import Agent
from toolstep.rollout.collect import RunMetrics, collect
from toolstep.rollout.specs import group_specs
from toolstep.rollout.stats import Interval, bootstrap_mean, clustered_wilson, pass_all, pass_at
from toolstep.rollout.types import OK, Trajectory


@dataclass(frozen=True, slots=True)
class Speed:
    """Wall-clock measurements of a run; the only part of a summary that is not reproducible.

    episodes: those that were played in it; fewer than the summary's where the run was resumed.  tool_seconds,
    template_seconds: as in `RunMetrics`, None where the env does not tell.
    """

    seconds: float
    agent_seconds: float
    env_seconds: float
    tokens_per_second: float
    episodes_per_second: float
    wait_seconds: float = 0.0
    tool_seconds: float | None = None
    template_seconds: float | None = None
    episodes: int = 0


@dataclass(frozen=True, slots=True)
class TagResult:
    """The episodes that share one tag value."""

    episodes: int
    successes: int
    success_rate: float
    success_interval: Interval | None
    mean_reward: float


@dataclass(frozen=True, slots=True)
class PassResult:
    """What k samples of a task come to, as a mean over the `tasks` that have so many, errors among them.

    pass_at: probability that one of them succeeds (pass@k).  pass_all: that all of them do (pass^k).
    """

    k: int
    tasks: int
    pass_at: float
    pass_at_interval: Interval | None
    pass_all: float
    pass_all_interval: Interval | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What an evaluation found.

    episodes: finished ones, all of them in every denominator.  requested: those that were listed; more than `episodes`
        only where the run was interrupted.
    errors: episodes whose status is not "ok" (by status in `statuses`): no success, whatever reward they got.
    success_rate: with Wilson's interval (`clustered_wilson`).  mean_score, mean_reward: with bootstrap intervals over
        tasks; the score is the task set's, in [0, 1], and 0 for an error.
    passes: pass@k and pass^k for k = 1, 2, 4, ... and the number of samples; nothing where there is one sample a task.
    turns, sampled_tokens, observed_tokens, context_tokens: means an episode.  truncated_responses: their number.
    calls, stop_reasons, statuses: numbers by name, most frequent first.  tags: results by tag and value.
    reward_terms: mean of each reward term over the episodes that have it, before its weight.
    """

    episodes: int
    requested: int
    successes: int
    errors: int
    success_rate: float
    success_interval: Interval | None
    mean_score: float
    score_interval: Interval | None
    mean_reward: float
    reward_interval: Interval | None
    turns: float
    sampled_tokens: float
    observed_tokens: float
    context_tokens: float
    truncated_responses: int
    calls: dict[str, int] = field(default_factory=dict)
    stop_reasons: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    tags: dict[str, dict[str, TagResult]] = field(default_factory=dict)
    passes: list[PassResult] = field(default_factory=list)
    reward_terms: dict[str, float] = field(default_factory=dict)
    speed: Speed | None = None

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict."""
        return asdict(self)


def evaluate(
    envs: VectorEnv[Any, Any, Any],
    agent: Agent,
    episodes: int,
    seed: int = 0,
    *,
    samples: int = 1,
    metrics: RunMetrics | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> Summary:
    """Play `samples` samples of each of `episodes` tasks and sum up (invariant I19).

    The tasks and the samples' seeds are functions of `seed` alone: the result does not depend on the number of rows or
    on which episode finishes first.  `on_episode` is called with each trajectory as it finishes; on Ctrl-C, what it got
    is what there is (see `summarize`).
    """
    metrics = metrics if metrics is not None else RunMetrics()
    specs = group_specs(episodes, samples, seed)
    trajectories = collect(envs, agent, specs, seed=seed, metrics=metrics, on_episode=on_episode)
    return summarize(trajectories, requested=len(specs), metrics=metrics, seed=seed)


def summarize(
    trajectories: Iterable[Trajectory],
    *,
    requested: int | None = None,
    metrics: RunMetrics | None = None,
    speed: Speed | None = None,
    seed: int = 0,
) -> Summary:
    """Sum finished episodes up; their order does not matter.  `seed` is that of the bootstrap.

    The speed is that of `metrics`, else what is given.
    """
    rows = sorted(trajectories, key=lambda t: (t.group_id is None, t.group_id, t.seed, t.sample_index))
    successes = sum(map(succeeded, rows))
    statuses = Counter(t.status for t in rows)
    tasks = [t.seed for t in rows]
    rewards = [t.total_reward for t in rows]
    scores = [score(t) for t in rows]
    calls: Counter[str] = Counter()
    for t in rows:
        calls.update(call_counts(t))
    return Summary(
        episodes=len(rows),
        requested=len(rows) if requested is None else requested,
        successes=successes,
        errors=len(rows) - statuses[OK],
        success_rate=successes / len(rows) if rows else 0.0,
        success_interval=clustered_wilson([succeeded(t) for t in rows], tasks),
        mean_score=_mean(scores),
        score_interval=bootstrap_mean(scores, clusters=tasks, seed=seed),
        mean_reward=_mean(rewards),
        reward_interval=bootstrap_mean(rewards, clusters=tasks, seed=seed),
        turns=_mean([t.turns for t in rows]),
        sampled_tokens=_mean([t.metrics.get("sampled_tokens", t.sampled) for t in rows]),
        observed_tokens=_mean([t.metrics.get("observed_tokens", t.observed) for t in rows]),
        context_tokens=_mean([t.metrics.get("context_tokens", t.context) for t in rows]),
        truncated_responses=int(sum(t.metrics.get("truncated_responses", 0) for t in rows)),
        calls=_ranked(calls),
        stop_reasons=_ranked(Counter(t.stop_reason for t in rows)),
        statuses=_ranked(statuses),
        tags=_by_tag(rows),
        passes=_passes(rows, seed),
        reward_terms=mean_terms(rows),
        speed=speed if metrics is None else _speed(metrics),
    )


def succeeded(trajectory: Trajectory) -> bool:
    """Whether the episode is a success; one that failed for another reason than the agent is none."""
    return trajectory.status == OK and trajectory.metrics.get("success", 0.0) == 1.0


def score(trajectory: Trajectory) -> float:
    """The task set's score of the episode, in [0, 1]; 0 where it failed for another reason than the agent."""
    return trajectory.metrics.get("score", 0.0) if trajectory.status == OK else 0.0


def call_counts(trajectory: Trajectory) -> dict[str, int]:
    """Attempted tool calls of the episode by status."""
    prefix = "calls/"
    return {k.removeprefix(prefix): int(v) for k, v in trajectory.metrics.items() if k.startswith(prefix)}


def mean_terms(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Mean of each reward term over the episodes that have it, before its weight; errors have none."""
    prefix = "reward/"
    found: dict[str, list[float]] = {}
    for t in trajectories:
        for key, value in t.metrics.items():
            if key.startswith(prefix) and t.status == OK:
                found.setdefault(key.removeprefix(prefix), []).append(value)
    return {name: _mean(values) for name, values in found.items()}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _ranked(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))


def _by_tag(rows: Sequence[Trajectory]) -> dict[str, dict[str, TagResult]]:
    groups: dict[str, dict[str, list[Trajectory]]] = {}
    for t in rows:
        for tag, value in t.tags.items():
            groups.setdefault(tag, {}).setdefault(value, []).append(t)
    return {
        tag: {value: _tag_result(members) for value, members in sorted(values.items())}
        for tag, values in sorted(groups.items())
    }


def _tag_result(members: Sequence[Trajectory]) -> TagResult:
    successes = sum(map(succeeded, members))
    return TagResult(
        episodes=len(members),
        successes=successes,
        success_rate=successes / len(members),
        success_interval=clustered_wilson([succeeded(t) for t in members], [t.seed for t in members]),
        mean_reward=_mean([t.total_reward for t in members]),
    )


def _passes(rows: Sequence[Trajectory], seed: int) -> list[PassResult]:
    counts: dict[int, list[int]] = {}
    for t in rows:
        count = counts.setdefault(t.seed, [0, 0])
        count[0] += succeeded(t)
        count[1] += 1
    most = max((n for _, n in counts.values()), default=0)
    if most < 2:
        return []
    return [_pass_result(counts.values(), k, seed) for k in sorted({1 << i for i in range(most.bit_length())} | {most})]


def _pass_result(counts: Iterable[Sequence[int]], k: int, seed: int) -> PassResult:
    enough = [(good, n) for good, n in counts if n >= k]
    some, all_ = ([f(good, n, k) for good, n in enough] for f in (pass_at, pass_all))
    return PassResult(
        k,
        len(enough),
        _mean(some),
        bootstrap_mean(some, seed=seed),
        _mean(all_),
        bootstrap_mean(all_, seed=seed),
    )


def _speed(m: RunMetrics) -> Speed:
    return Speed(
        seconds=m.seconds,
        agent_seconds=m.agent_seconds,
        env_seconds=m.env_seconds,
        tokens_per_second=m.tokens_per_second,
        episodes_per_second=m.episodes_per_second,
        wait_seconds=m.wait_seconds,
        tool_seconds=m.tool_seconds,
        template_seconds=m.template_seconds,
        episodes=m.episodes,
    )
