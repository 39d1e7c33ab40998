"""The loop over a vector env: from episode specs to trajectories.

It plays any `gymnasium.vector.VectorEnv`, in each of the three autoreset modes, and the trajectories are the
same from each of them and for any number of rows.  To that end the loop never relies on an autoreset: every
episode is begun by an explicit masked reset with the episode's own seed, `reset(seed=[...],
options={"reset_mask": mask})`, which clears a pending autoreset as well.  So no turn is generated for an
action that the env would ignore, and no transition is made of a reset (invariant I18).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

from toolstep.agents.base import Agent
from toolstep.rollout.infos import ended_row, row_info
from toolstep.rollout.player import make_player
from toolstep.rollout.recorder import EpisodeRecorder
from toolstep.rollout.specs import EpisodeSpec, group_specs, sampling_seed, task_seeds
from toolstep.rollout.types import Trajectory

__all__ = ["EpisodeSpec", "RunMetrics", "collect", "group_specs", "play", "sampling_seed", "task_seeds"]


@dataclass
class RunMetrics:
    """Counters and wall-clock seconds of a run, brought up to date while it goes on; not reproducible, hence
    apart.

    seconds: since the start.  agent_seconds, env_seconds: spent in the agent and in the env.  episodes:
    finished. generations: turns that an agent was asked for.  transitions: env steps that are part of a
    trajectory. sampled_tokens: ids that were sampled.
    """

    seconds: float = 0.0
    agent_seconds: float = 0.0
    env_seconds: float = 0.0
    episodes: int = 0
    generations: int = 0
    transitions: int = 0
    sampled_tokens: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Sampled ids a second of the whole run."""
        return self.sampled_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def episodes_per_second(self) -> float:
        return self.episodes / self.seconds if self.seconds > 0 else 0.0


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

    `on_episode` is called with each trajectory as soon as it is finished, so that what is done survives an
    exception or Ctrl-C, which are passed on.  `seed` and `metrics` as in `play`.
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

    A token agent (`start`, `act`) samples one turn for each live row and nothing else; any other agent acts
    by `predict`, with the whole batch, and the actions of rows without work are replaced by the null action.
    An agent that has `start(row, seed)` gets it at each episode's beginning, one that has `bind(envs)` gets
    that once.

    An episode's sampling seed is a hash of its task seed, its sample index and `seed` (default: the agent's
    own `seed`, else 0): it depends on neither row nor order.  `metrics` is kept up to date while the run goes
    on.

    An episode that the env or the agent gave up is yielded like any other, with its `status` ("env_error",
    "agent_error").  Raises TypeError or ValueError, before the first step, where `envs` and `agent` do not
    fit.
    """
    _check(envs)
    run_seed = int(getattr(agent, "seed", 0) if seed is None else seed)
    yield from _Run(envs, agent, run_seed, metrics if metrics is not None else RunMetrics()).episodes(specs)


def is_token_view(envs: VectorEnv[Any, Any, Any]) -> bool:
    """Whether observations and actions of the env are sequences of token ids."""
    space = envs.single_observation_space
    return isinstance(space, spaces.Sequence) and isinstance(space.feature_space, spaces.Discrete)


class _Run:
    """State of one run: which episode each row plays, and which rows are over."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], agent: Agent, seed: int, metrics: RunMetrics):
        self.envs = envs
        self.seed = seed
        self.metrics = metrics
        self.tokens = is_token_view(envs)
        self.player = make_player(envs, agent, tokens=self.tokens)
        self.live: dict[int, tuple[int, EpisodeRecorder]] = {}
        self.observation: Any = None
        self.fresh = True
        # Over, hence not to be stepped: the env's own autoreset takes care of such a row, except where it is
        # off.
        self.over = np.zeros(envs.num_envs, dtype=np.bool_)
        mode = envs.metadata.get("autoreset_mode")
        self.autoreset = mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
        self.started = time.perf_counter() - metrics.seconds

    def episodes(self, specs: Iterable[EpisodeSpec]) -> Iterator[tuple[int, Trajectory]]:
        queue = iter(enumerate(specs))
        while True:
            idle = [r for r in range(self.envs.num_envs) if r not in self.live]
            begin = dict(zip(idle, queue))
            if not begin and not self.live:
                return
            ended = self.reset(begin) or self.turn()
            for row in sorted(ended):
                index, recorder = self.live.pop(row)
                self.metrics.episodes += 1
                yield index, recorder.close()

    def reset(self, begin: Mapping[int, tuple[int, EpisodeSpec]]) -> list[int]:
        """Begin the episodes of `begin`, by row; returns the rows whose episode is over already."""
        rows = range(self.envs.num_envs)
        mask = self.over & (not self.autoreset)
        mask[list(begin)] = True
        mask |= self.fresh
        if not mask.any():
            return []
        # A row without work needs no seed; at its very first reset it would draw entropy, so it gets one
        # there.
        seeds = [begin[r][1].seed if r in begin else (0 if self.fresh else None) for r in rows]
        with self.clocked("env_seconds"):
            # The annotation of the base class leaves lists of seeds out.
            batch, infos = self.envs.reset(seed=seeds, options={"reset_mask": mask.copy()})  # type: ignore[arg-type]
        self.observation, self.fresh = batch, False
        self.over[mask] = False
        observations = self.unbatched(batch)
        ended = []
        for row, (index, spec) in begin.items():
            recorder = EpisodeRecorder(spec, tokens=self.tokens)
            self.live[row] = (index, recorder)
            if recorder.open(observations[row], row_info(infos, row)):
                ended.append(row)
            else:
                with self.clocked("agent_seconds"):
                    self.player.begin(row, sampling_seed(spec, self.seed))
        return ended

    def turn(self) -> list[int]:
        """One turn in every live row; returns the rows whose episode is over."""
        rows = list(self.live)
        with self.clocked("agent_seconds"):
            turns = self.player.act(rows, self.observation)
        self.metrics.generations += len(rows)
        self.metrics.sampled_tokens += sum(map(turns.sampled, rows))
        ended = list(turns.aborted)
        for row in rows:
            if row in turns.aborted:
                self.live[row][1].abort(turns.aborted[row])
            else:
                self.live[row][1].act(turns.records[row])
        stepped = [r for r in rows if r not in turns.aborted]
        if not stepped:
            return ended
        with self.clocked("env_seconds"):
            batch, rewards, terminated, truncated, infos = self.envs.step(turns.actions)
        self.observation = batch
        self.over |= terminated | truncated
        self.metrics.transitions += len(stepped)
        observations = self.unbatched(batch)
        for row in stepped:
            observation, info = ended_row(infos, observations[row], row)
            ends = bool(terminated[row]), bool(truncated[row])
            if self.live[row][1].step(observation, float(rewards[row]), *ends, info):
                ended.append(row)
            elif info.get("new_segment", False):
                self.player.new_segment(row)
        return ended

    def unbatched(self, batch: Any) -> list[Any]:
        return list(iterate(self.envs.observation_space, batch))

    @contextmanager
    def clocked(self, part: Literal["agent_seconds", "env_seconds"]) -> Iterator[None]:
        """Add the wall-clock time of the block to `part`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            now = time.perf_counter()
            setattr(self.metrics, part, getattr(self.metrics, part) + now - start)
            self.metrics.seconds = now - self.started


def _check(envs: Any) -> None:
    if not isinstance(envs, VectorEnv):
        hint = "; wrap it: SyncVectorEnv([lambda: env])" if isinstance(envs, gym.Env) else ""
        raise TypeError(f"collect needs a gymnasium.vector.VectorEnv, got {type(envs).__name__}{hint}")
    base = envs.unwrapped
    if isinstance(base, AsyncVectorEnv):
        numeric = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        if base.shared_memory and not isinstance(base.single_observation_space, numeric):
            raise ValueError(
                "AsyncVectorEnv with shared_memory=True returns stale text (gymnasium 1.4); pass "
                "shared_memory=False, or use ToolUseVectorEnv"
            )
        if base.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
            raise ValueError(
                "AsyncVectorEnv in NEXT_STEP mode swallows the first action after an explicit reset "
                "(gymnasium 1.4); pass autoreset_mode=AutoresetMode.SAME_STEP, or use ToolUseVectorEnv"
            )
