"""SFT: imitation of what an oracle, or the agent itself at its best, has done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from toolstep.agents.llm import LLMAgent
from toolstep.rollout.batch import BatchError, RolloutBatch
from toolstep.rollout.learn.learner import Callback, Learner, Training
from toolstep.rollout.learn.policy import micro_batches
from toolstep.rollout.learn.shared_prefix import alone
from toolstep.rollout.types import OK, Trajectory


class SFT(Learner):
    """Supervised fine-tuning on the sampled ids of trajectories: stop tokens count, observations do not.

        SFT(agent, Training(learning_rate=1e-4)).learn(collect(envs, OracleAgent(), specs), epochs=2)

    batch_rows: trajectories of one optimizer step.  max_length: longer rows are left out (counted as `dropped`).
    seed: decides the order.  For rejection sampling give the trajectories that are worth it.
    """

    def __init__(
        self,
        agent: LLMAgent,
        training: Training | None = None,
        *,
        batch_rows: int = 32,
        max_length: int | None = None,
        seed: int = 0,
    ) -> None:
        if batch_rows < 1:
            raise ValueError(f"SFT: batch_rows must be >= 1, got {batch_rows}")
        super().__init__(agent, training or Training(learning_rate=1e-4))
        self.batch_rows = batch_rows
        self.max_length = max_length
        self.seed = seed
        self._data = ""

    def learn(
        self,
        trajectories: Sequence[Trajectory],
        *,
        epochs: int = 1,
        callbacks: Sequence[Callback] = (),
        progress_bar: bool = False,
    ) -> SFT:
        """Train until each trajectory was seen `epochs` times since the beginning, the time before `save` included.

        An iteration is one optimizer step.  Raises `BatchError` where nothing is to be learned, and where a resumed run
        is given other trajectories.
        """
        data = _fingerprint(trajectories)
        if self.iteration and data != self._data:
            raise BatchError(
                "SFT: these are not the trajectories that the run was begun with; it cannot go on with them"
            )
        self._data = data
        rows, dropped = self._usable(trajectories)
        steps = -(-len(rows) // self.batch_rows)
        hidden = None if progress_bar else True
        with tqdm(total=epochs * steps, initial=self.iteration, unit="step", disable=hidden) as bar:
            if self.log is not None and not self.iteration and (first := self.evaluate()):
                self.log.write(0, first)
            goes_on = self.iteration < epochs * steps
            while goes_on:
                epoch, at = divmod(self.iteration, steps)
                order = np.random.default_rng([self.seed, epoch]).permutation(rows)
                chosen = order[at * self.batch_rows : (at + 1) * self.batch_rows]
                parts: list[float] = []
                remaining = 1.0 - self.iteration / (epochs * steps)
                # Nothing is compared, so groups do not matter.
                batch = RolloutBatch.from_trajectories([replace(trajectories[i], group_id=None) for i in chosen])
                step = self.optimizer.step(self._losses(batch, parts), remaining)
                self.iteration += 1
                self.episodes += len(chosen)
                metrics = {**step, "loss": sum(parts), "dropped": float(dropped)}
                goes_on = self._finish_iteration(metrics, callbacks, last=self.iteration >= epochs * steps)
                bar.set_postfix({k: f"{metrics[k]:.3f}" for k in ("loss", "eval/success") if k in metrics})
                bar.update()
        return self

    def _usable(self, trajectories: Sequence[Trajectory]) -> tuple[list[int], int]:
        """Numbers of the trajectories to learn from, and how many were left out because they are too long."""
        good = [i for i, t in enumerate(trajectories) if t.status == OK and t.action_mask[1:].any()]
        rows = [i for i in good if self.max_length is None or _longest(trajectories[i]) <= self.max_length]
        if not rows:
            bad = len(trajectories) - len(good)
            raise BatchError(
                f"SFT: nothing to learn from {len(trajectories)} trajectories: {bad} failed or have no sampled ids, "
                f"{len(good)} are longer than max_length={self.max_length}"
            )
        return rows, len(good) - len(rows)

    def _losses(self, batch: RolloutBatch, parts: list[float]) -> Iterator[Tensor]:
        total = int(batch.action_mask[:, 1:].sum())
        for rows in micro_batches(alone(batch.lengths), self.training.micro_tokens):
            part = batch.select([row for one in rows for row in one.rows])
            mask = torch.from_numpy(part.action_mask[:, 1:]).to(self.policy.device)
            logprobs, _ = self.policy(torch.from_numpy(part.input_ids).to(self.policy.device), mask)
            loss = -logprobs.sum() / total
            parts.append(float(loss.detach()))
            yield loss

    def _counters(self) -> dict[str, Any]:
        return {**super()._counters(), "data": self._data}

    def _take_counters(self, state: Mapping[str, Any]) -> None:
        super()._take_counters(state)
        self._data = state["data"]


def _longest(trajectory: Trajectory) -> int:
    return max(int(segment.stop - segment.start) for segment in trajectory.segments)


def _fingerprint(trajectories: Sequence[Trajectory]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for t in trajectories:
        digest.update(t.token_ids.tobytes())
        digest.update(t.source.tobytes())
    return digest.hexdigest()
