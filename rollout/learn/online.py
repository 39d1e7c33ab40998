"""OnlineLearner: rollouts, an update, and again; GRPO and DPO are two ways to update."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from gymnasium.vector import VectorEnv
from tqdm import tqdm

from toolstep.agents.llm import LLMAgent
from toolstep.rollout.advantages import Estimator
from toolstep.rollout.evaluate import mean_terms, succeeded
from toolstep.rollout.generator import Reward, RolloutGenerator, RolloutResult
from toolstep.rollout.learn.learner import Callback, Learner, Training
from toolstep.rollout.learn.reference import Kind, Reference
from toolstep.rollout.runner import RolloutRunner
from toolstep.rollout.types import OK


class OnlineLearner(Learner):
    """Learns from what the agent samples in `envs`.

    groups, group_size: tasks of one rollout, and samples of each.  rollout_interval: optimizer steps that one rollout
    serves; each is of the whole rollout.
    reward, credit, max_length, overlong: see `RolloutGenerator`.
    reference, ema_decay: see `Reference`.
    seed: decides tasks and samples; those of iteration i depend on nothing else, so that a resumed run plays the same.
    """

    def __init__(
        self,
        agent: LLMAgent,
        envs: VectorEnv[Any, Any, Any],
        training: Training | None = None,
        *,
        groups: int = 8,
        group_size: int = 8,
        rollout_interval: int = 1,
        estimator: Estimator = "grpo",
        reward: Reward | None = None,
        credit: Literal["episode", "turn"] = "episode",
        max_length: int | None = None,
        overlong: Literal["drop", "cut"] = "drop",
        reference: Kind | None = None,
        ema_decay: float = 0.99,
        seed: int = 0,
    ) -> None:
        s = agent.sampling
        plain = replace(s, temperature=1.0, max_new_tokens=0, top_logprobs=0)
        if plain != type(s)(max_new_tokens=0) or s.temperature == 0:
            raise ValueError(
                f"{type(self).__name__}: the agent must sample from the model's whole distribution (temperature > 0, "
                f"no top-k, top-p, min-p, penalties or logit bias): the learner knows no other; got {s}"
            )
        if groups < 1:
            raise ValueError(f"{type(self).__name__}: groups must be >= 1, got {groups}")
        super().__init__(agent, training or Training(), temperature=s.temperature)
        if reference is not None:
            self.reference = Reference(self.policy, reference, ema_decay)
        self.envs = envs
        self.groups = groups
        self.seed = seed
        generator = RolloutGenerator(
            agent,
            envs,
            group_size,
            reward=reward,
            estimator=estimator,
            credit=credit,
            max_length=max_length,
            overlong=overlong,
            seed=seed,
        )
        self.runner = RolloutRunner(generator, rollout_interval)

    @abstractmethod
    def update(self, result: RolloutResult, is_fresh: bool, remaining: float) -> dict[str, float]:
        """One optimizer step; what to log of it.

        is_fresh: the first step on this result.  remaining: the share of the training that is left.
        """

    def learn(
        self, total_episodes: int, *, callbacks: Sequence[Callback] = (), progress_bar: bool = False
    ) -> OnlineLearner:
        """Train until `total_episodes` have been played since the beginning, those before `save` included.

        Each callback is called after each iteration with the learner and its metrics; one that returns False ends the
        training.  An exception, Ctrl-C included, leaves the last checkpoint as it is; `load` goes on from there.
        """
        size = self.groups * self.runner.generator.group_size
        bar = tqdm(total=total_episodes, initial=self.episodes, unit="episode", disable=None if progress_bar else True)
        with bar:
            if self.log is not None and not self.iteration and (first := self.evaluate()):
                self.log.write(0, first)
            goes_on = self.episodes < total_episodes
            while goes_on:
                start = time.perf_counter()
                result, metrics = self._iterate(1.0 - self.episodes / total_episodes)
                self.iteration += 1
                self.episodes += size
                metrics |= _described(result, time.perf_counter() - start)
                metrics["episodes"] = float(self.episodes)
                goes_on = self._finish_iteration(metrics, callbacks, last=self.episodes >= total_episodes)
                bar.set_postfix({k: f"{metrics[k]:.3f}" for k in ("reward", "success", "eval/success") if k in metrics})
                bar.update(size)
        return self

    def _iterate(self, remaining: float) -> tuple[RolloutResult, dict[str, float]]:
        words = np.random.SeedSequence(self.seed, spawn_key=(self.iteration,)).generate_state(self.groups, np.uint64)
        tasks = [int(w) >> 11 for w in words]
        self.runner.generator.calls = self.iteration
        metrics: dict[str, float] = {}
        for step in range(self.runner.rollout_interval):
            result, fresh = self.runner(tasks)
            found = self.update(result, fresh, remaining)
            # What the first step says of a fresh rollout is kept beside what the last one says.
            metrics |= found if step == 0 else {k: v for k, v in found.items() if not k.startswith("first_")}
            self.runner.step()
            if self.reference is not None and not found["skipped"]:
                self.reference.follow()
        return result, metrics

    def _take_counters(self, state: Mapping[str, Any]) -> None:
        super()._take_counters(state)
        self.runner.clear_cache()


def _described(result: RolloutResult, seconds: float) -> dict[str, float]:
    """What a rollout was like, and where the time of the iteration went."""
    rows, batch, m = result.trajectories, result.batch, result.metrics
    usable = [t.status == OK for t in rows]
    n = max(1, sum(usable))
    out = {
        "reward": float(result.rewards.reshape(-1)[usable].sum()) / n,
        "success": sum(map(succeeded, rows)) / len(rows),
        "failed": 1.0 - sum(usable) / len(rows),
        "turns": sum(t.turns for t in rows) / len(rows),
        "sampled_tokens": sum(t.sampled for t in rows) / len(rows),
        "mask_fraction": float(batch.action_mask.sum()) / max(1, int(batch.attention_mask.sum())),
        "zero_variance": batch.counts.zero_variance_groups / max(1, batch.counts.groups),
        "dropped": float(batch.counts.dropped_rows),
        "cut": float(batch.counts.cut_rows),
    }
    out |= {f"reward/{name}": value for name, value in mean_terms(rows).items()}
    for reason, count in Counter(t.stop_reason for t in rows).items():
        out[f"stop/{reason}"] = count / len(rows)
    learner = max(1e-9, seconds - m.seconds)
    out["rollout_tokens_per_second"] = m.tokens_per_second
    out["training_tokens_per_second"] = float(batch.attention_mask.sum()) / learner
    template = m.template_seconds or 0.0
    # Parsing and scoring are the env's time, and tools too where the env runs them in its own steps.
    env = max(0.0, m.env_seconds - template)
    parts = {"model": m.agent_seconds, "tools": m.wait_seconds, "template": template, "env": env, "learner": learner}
    out |= {f"share/{name}": part / seconds for name, part in parts.items()}
    return out
