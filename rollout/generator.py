"""RolloutGenerator: groups of episodes of given tasks, their rewards, and the batch that a learner trains on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import ArrayLike, NDArray

from toolstep.agents.base import TokenAgent, check_trainable
from toolstep.rollout.advantages import Estimator
from toolstep.rollout.batch import BatchError, RolloutBatch
from toolstep.rollout.collect import EpisodeSpec, RunMetrics, collect
from toolstep.rollout.types import Trajectory


class RewardError(ValueError):
    """What a reward function returned is not one finite number for each episode."""


class Reward(Protocol):
    """A number for each episode, in place of what the env paid.

    groups: B groups of G whole trajectories (messages, tool results, tags, metrics).  Returns [B,G], finite; that of an
    episode whose `status` is not "ok" is not used.
    """

    def __call__(self, groups: Sequence[Sequence[Trajectory]]) -> ArrayLike: ...


@dataclass(frozen=True, slots=True, eq=False)
class RolloutResult:
    """What one call of a `RolloutGenerator` made.

    groups: B groups of G trajectories, in the order of the tasks.  rewards: f64[B,G], what they were compared by.
    batch: their rows.  weight_version: of the weights that sampled all of it.  metrics: seconds and counts.
    """

    groups: list[list[Trajectory]]
    rewards: NDArray[np.float64]
    batch: RolloutBatch
    weight_version: int
    metrics: RunMetrics

    @property
    def trajectories(self) -> list[Trajectory]:
        """All of them, group after group."""
        return [t for group in self.groups for t in group]


class RolloutGenerator:
    """Plays `group_size` samples of each task of a batch of tasks.

    agent, envs: as in `collect`; an env without tools is played by the same code (one turn an episode).
    reward: what episodes are compared by; None: the rewards that the env paid.
    estimator, credit, pad_id, max_length, overlong: see `RolloutBatch.from_trajectories`; credit "turn" goes with the
    env's own rewards only, since a `Reward` has one number an episode.
    seed: with the number of the call, decides the samples: the same tasks are sampled anew at the next call.
    """

    def __init__(
        self,
        agent: TokenAgent,
        envs: VectorEnv[Any, Any, Any],
        group_size: int,
        *,
        reward: Reward | None = None,
        estimator: Estimator = "grpo",
        credit: Literal["episode", "turn"] = "episode",
        pad_id: int = 0,
        max_length: int | None = None,
        overlong: Literal["drop", "cut"] = "drop",
        seed: int = 0,
    ) -> None:
        if group_size < 1:
            raise ValueError(f"RolloutGenerator: group_size must be >= 1, got {group_size}")
        check_trainable(agent)
        if reward is not None and credit == "turn":
            raise ValueError("RolloutGenerator: credit='turn' needs the env's own rewards; a reward function has one")
        self.agent = agent
        self.envs = envs
        self.group_size = group_size
        self.reward = reward
        self.seed = seed
        self.calls = 0
        self._credit = credit
        self._options: dict[str, Any] = {
            "estimator": estimator,
            "pad_id": pad_id,
            "max_length": max_length,
            "overlong": overlong,
        }

    def __call__(self, tasks: Sequence[int], *, metrics: RunMetrics | None = None) -> RolloutResult:
        """tasks: the seeds of B tasks.

        Raises `RewardError` for rewards of the wrong shape or not finite, and `BatchError` where one batch was sampled
        by weights of several versions (somebody updated them meanwhile).
        """
        metrics = RunMetrics() if metrics is None else metrics
        size = self.group_size
        specs = [EpisodeSpec(task, i, group) for group, task in enumerate(tasks) for i in range(size)]
        run = int(np.random.SeedSequence(self.seed, spawn_key=(self.calls,)).generate_state(1, np.uint64)[0])
        self.calls += 1
        done = collect(self.envs, self.agent, specs, seed=run, metrics=metrics)
        groups = [done[i : i + size] for i in range(0, len(done), size)]
        rewards = self._rewards(groups)
        given = None if self.reward is None else list(rewards.reshape(-1))
        batch = RolloutBatch.from_trajectories(done, rewards=given, credit=self._credit, **self._options)
        return RolloutResult(groups, rewards, batch, self._version(batch), metrics)

    def _rewards(self, groups: list[list[Trajectory]]) -> NDArray[np.float64]:
        shape = (len(groups), self.group_size)
        if self.reward is None:
            return np.array([[t.total_reward for t in group] for group in groups], np.float64).reshape(shape)
        name = getattr(self.reward, "__name__", type(self.reward).__name__)
        given = self.reward(groups)
        try:
            rewards = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise RewardError(f"reward {name!r} must return numbers of shape {list(shape)}, got {given!r}") from error
        if rewards.shape != shape:
            raise RewardError(
                f"reward {name!r} must return [groups, members] = {list(shape)}, got shape {list(rewards.shape)}"
            )
        if not np.isfinite(rewards).all():
            group, member = map(int, np.argwhere(~np.isfinite(rewards))[0])
            task = groups[group][member].task_id
            raise RewardError(
                f"reward {name!r} of group {group}, member {member} (task {task!r}) must be a finite number, "
                f"got {rewards[group, member]}"
            )
        return rewards

    def _version(self, batch: RolloutBatch) -> int:
        versions = np.unique(batch.weight_versions[batch.action_mask])
        if versions.size > 1:
            raise BatchError(
                f"RolloutGenerator: one batch was sampled by weights of the versions {versions.tolist()}; "
                "update them between two calls only"
            )
        return int(versions[0]) if versions.size else -1
