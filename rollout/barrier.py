"""The loop with a barrier: all live rows take a turn together, by `VectorEnv.step`.

It never relies on an autoreset: every episode is begun by an explicit masked reset with the episode's own seed,
`reset(seed=[...], options={"reset_mask": mask})`, which clears a pending autoreset as well.  So no turn is generated
for an action that the env would ignore, and no transition is made of a reset (invariant I18).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

from toolstep.agents.base import Agent
from toolstep.envs.vector_envs import ended_row, recorded, row_info
from toolstep.rollout.metrics import Clock, RunMetrics
from toolstep.rollout.player import make_player
from toolstep.rollout.recorder import EpisodeRecorder
from toolstep.rollout.specs import EpisodeSpec, sampling_seed
from toolstep.rollout.types import Trajectory


class BarrierRun:
    """State of one run: which episode each row plays, and which rows are over."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], agent: Agent, seed: int, metrics: RunMetrics, *, tokens: bool):
        self.envs = envs
        self.seed = seed
        self.metrics = metrics
        self.tokens = tokens
        self.player = make_player(envs, agent, tokens=tokens)
        self.live: dict[int, tuple[int, EpisodeRecorder]] = {}
        self.observation: Any = None
        self.fresh = True
        # Over, hence not to be stepped: the env's own autoreset takes care of such a row, except where it is
        # off.
        self.over = np.zeros(envs.num_envs, dtype=np.bool_)
        mode = envs.metadata.get("autoreset_mode")
        self.autoreset = mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
        self.clock = Clock(metrics)

    def episodes(self, specs: Iterable[EpisodeSpec]) -> Iterator[tuple[int, Trajectory]]:
        """Yields (index in specs, trajectory) as they finish."""
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
        options: dict[str, Any] = {"reset_mask": mask.copy()}
        if recorded(self.envs):
            options["samples"] = [begin[r][1].sample_index if r in begin else 0 for r in rows]
        with self.clock("env_seconds"):
            # The annotation of the base class leaves lists of seeds out.
            batch, infos = self.envs.reset(seed=seeds, options=options)  # type: ignore[arg-type]
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
                with self.clock("agent_seconds"):
                    self.player.begin(row, sampling_seed(spec, self.seed))
        return ended

    def turn(self) -> list[int]:
        """One turn in every live row; returns the rows whose episode is over."""
        rows = list(self.live)
        with self.clock("agent_seconds"):
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
        with self.clock("env_seconds"):
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
