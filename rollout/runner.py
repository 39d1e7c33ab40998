"""RolloutRunner: fresh rollouts when they are due, and the last ones for as many optimizer steps as they may serve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from toolstep.rollout.generator import RolloutGenerator, RolloutResult


class StaleWeights(RuntimeError):
    """The weights were trained, but the agent still samples with what it computed from the old ones."""


@runtime_checkable
class Trainable(Protocol):
    """An agent whose weights a learner changes in place."""

    @property
    def weight_version(self) -> int: ...
    def update_weights(self) -> int:
        """Forget what the old weights computed; the new version."""


class RolloutRunner:
    """Hands out one `RolloutResult` for `rollout_interval` optimizer steps, then makes a new one.

    A result answers the batch of tasks that it was made for and no other: another batch gets a fresh one at once.

        for tasks in batches:
            for _ in range(runner.rollout_interval):
                result, is_fresh = runner(tasks)
                ...  # one optimizer step
                runner.step()
    """

    def __init__(self, generator: RolloutGenerator, rollout_interval: int = 1) -> None:
        if rollout_interval < 1:
            raise ValueError(f"RolloutRunner: rollout_interval must be >= 1, got {rollout_interval}")
        self.generator = generator
        self.rollout_interval = rollout_interval
        self._tasks: tuple[int, ...] = ()
        self._result: RolloutResult | None = None
        self._steps = 0  # optimizer steps since the result was made
        self._trained = False  # whether the weights changed since the agent was last told

    def __call__(self, tasks: Sequence[int]) -> tuple[RolloutResult, bool]:
        """(result, is_fresh) for the seeds of a batch of tasks.

        Before a fresh rollout the agent is told of trained weights (`update_weights`).  Raises `StaleWeights` where its
        version does not go up, or where it was given other weights between a rollout and its reuse.
        """
        wanted = tuple(tasks)
        agent: Any = self.generator.agent
        if self._result is not None and wanted == self._tasks and self._steps < self.rollout_interval:
            version = agent.weight_version if isinstance(agent, Trainable) else self._result.weight_version
            if self._result.weight_version not in (-1, version):
                raise StaleWeights(
                    f"the rollouts are of weights {self._result.weight_version}, the agent has weights {version} now: "
                    "call clear_cache() after weights from elsewhere"
                )
            return self._result, False
        self.clear_cache()
        if self._trained:
            self._tell(agent)
        self._result, self._tasks = self.generator(wanted), wanted
        return self._result, True

    def step(self) -> None:
        """Count one optimizer step."""
        self._steps += 1
        self._trained = True

    def clear_cache(self) -> None:
        """Forget the last result: the next call makes a fresh one."""
        self._result, self._tasks, self._steps = None, (), 0

    def _tell(self, agent: Any) -> None:
        if not isinstance(agent, Trainable):
            raise StaleWeights(f"{type(agent).__name__} has no update_weights(): it cannot be told of trained weights")
        before = agent.weight_version
        if agent.update_weights() <= before:
            raise StaleWeights(f"{type(agent).__name__}.update_weights() left the version at {before}; it must go up")
        self._trained = False
