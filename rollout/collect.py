"""From episode specs to trajectories.

Any `gymnasium.vector.VectorEnv` is played, in each of the three autoreset modes, and the trajectories are the same from
each of them, for any number of rows, and from both loops: the one that steps all rows together (`rollout.barrier`), and
the one that decodes some rows while the tools of others run (`rollout.continuous`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from toolstep.agents.base import Agent
from toolstep.envs.vector_envs import refuse_broken
from toolstep.rollout.barrier import BarrierRun
from toolstep.rollout.continuous import ContinuousRun, plays_continuously
from toolstep.rollout.metrics import RunMetrics
from toolstep.rollout.specs import EpisodeSpec, group_specs, sampling_seed, task_seeds
from toolstep.rollout.types import Trajectory

__all__ = ["EpisodeSpec", "RunMetrics", "collect", "group_specs", "play", "sampling_seed", "task_seeds"]


def collect(
    envs: VectorEnv[Any, Any, Any],
    agent: Agent,
    specs: Iterable[EpisodeSpec],
    *,
    seed: int | None = None,
    metrics: RunMetrics | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play every episode of `specs` and return their trajectories in the order of `specs`.

    `on_episode` is called with each trajectory as soon as it is finished, so that what is done survives an exception or
    Ctrl-C, which are passed on.  `seed` and `metrics` as in `play`.
    """
    specs = list(specs)
    done: list[Trajectory | None] = [None] * len(specs)
    for index, trajectory in play(envs, agent, specs, seed=seed, metrics=metrics):
        done[index] = trajectory
        if on_episode is not None:
            on_episode(trajectory)
    return [t for t in done if t is not None]


def play(
    envs: VectorEnv[Any, Any, Any],
    agent: Agent,
    specs: Iterable[EpisodeSpec],
    *,
    seed: int | None = None,
    metrics: RunMetrics | None = None,
) -> Iterator[tuple[int, Trajectory]]:
    """Play every episode of `specs`; yields (index in specs, trajectory) as they finish.

    A token agent (`start`, `act`) samples one turn for each live row and nothing else; any other agent acts by
    `predict`, with the whole batch, and the actions of rows without work are replaced by the null action.  An agent
    that has `start(row, seed)` gets it at each episode's beginning, one that has `bind(envs)` gets that once.

    Where both can do it (`ToolUseVectorEnv`, and an agent with `submit` and `step`: `ContinuousAgent`), a row's tools
    run while the agent decodes the other rows; the trajectories are the same.  Whatever ends the run early, nothing is
    left under way in such an env or agent.

    An episode's sampling seed is a hash of its task seed, its sample index and `seed` (default: the agent's own `seed`,
    else 0): it depends on neither row nor order.  `metrics` is kept up to date while the run goes on.

    An episode that the env or the agent gave up is yielded like any other, with its `status` ("env_error",
    "agent_error").  Raises TypeError or ValueError, before the first step, where `envs` and `agent` do not fit.
    """
    _check(envs)
    run_seed = int((getattr(agent, "seed", 0) or 0) if seed is None else seed)
    metrics = metrics if metrics is not None else RunMetrics()
    make: Any = ContinuousRun if plays_continuously(envs, agent) else BarrierRun
    run = make(envs, agent, run_seed, metrics, tokens=is_token_view(envs))
    before = {name: value - (getattr(metrics, name) or 0.0) for name, value in _told_seconds(envs).items()}
    for item in run.episodes(specs):
        for name, value in _told_seconds(envs).items():
            setattr(metrics, name, value - before[name])
        yield item


def is_token_view(envs: VectorEnv[Any, Any, Any]) -> bool:
    """Whether observations and actions of the env are sequences of token ids."""
    space = envs.single_observation_space
    return isinstance(space, spaces.Sequence) and isinstance(space.feature_space, spaces.Discrete)


def _told_seconds(envs: VectorEnv[Any, Any, Any]) -> dict[str, float]:
    """Seconds that the env's tools and its template took so far; nothing where it does not tell."""
    told = {name: getattr(envs.unwrapped, f"total_{name}", None) for name in ("tool_seconds", "template_seconds")}
    return {name: seconds for name, seconds in told.items() if isinstance(seconds, float)}


def _check(envs: Any) -> None:
    if not isinstance(envs, VectorEnv):
        hint = "; wrap it: SyncVectorEnv([lambda: env])" if isinstance(envs, gym.Env) else ""
        raise TypeError(f"collect needs a gymnasium.vector.VectorEnv, got {type(envs).__name__}{hint}")
    refuse_broken(envs)
