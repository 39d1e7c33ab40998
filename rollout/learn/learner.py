"""Learner: what SFT, GRPO and DPO share: the model, its optimizer, checkpoints, evaluations, the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from toolstep.agents.llm import LLMAgent
from toolstep.rollout.evaluate import evaluate
from toolstep.rollout.learn.checkpoint import check_weights, read_checkpoint, write_checkpoint
from toolstep.rollout.learn.log import TrainingLog
from toolstep.rollout.learn.optimizer import Optimizer, Schedule
from toolstep.rollout.learn.policy import Policy
from toolstep.rollout.learn.reference import Reference
from toolstep.rollout.storage import StorageError

# Called with the learner and the metrics of each iteration; False ends the training.
Callback = Callable[[Any, Mapping[str, float]], bool | None]


@dataclass(frozen=True, slots=True)
class Training:
    """How any learner trains.

    learning_rate: a number or a schedule (`optimizer.warmup`).  weight_decay, betas, max_grad_norm: see `Optimizer`.
    micro_tokens: ids in one forward and backward pass, padding included; it changes memory and speed, not the result.
    autocast: see `Policy`.
    log: folder of `metrics.jsonl` and TensorBoard's files.  save: file of the checkpoint, written every `save_every`
    iterations and at the end.
    eval_envs: a vector env of tasks that are not trained on, of which `eval_episodes` are played before the first and
    after every `eval_every` iterations, and at the end; greedily, or at `eval_temperature`.
    """

    learning_rate: Schedule = 1e-6
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float | None = 1.0
    micro_tokens: int = 8192
    autocast: bool | None = None
    log: Path | str | None = None
    save: Path | str | None = None
    save_every: int = 10
    eval_envs: Any = None
    eval_every: int = 10
    eval_episodes: int = 100
    eval_seed: int = 0
    eval_temperature: float = 0.0

    def __post_init__(self) -> None:
        for name in ("micro_tokens", "save_every", "eval_every", "eval_episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"Training.{name} must be >= 1, got {getattr(self, name)}")


class Learner:
    """Trains the model of an agent in place; the agent samples with it between the steps, nothing is copied.

    Dropout stays off: the log-probs that are trained are those of the distribution that is sampled from.

    iteration: finished ones.  episodes: those trained on.
    """

    def __init__(self, agent: LLMAgent, training: Training, *, temperature: float = 1.0) -> None:
        self.agent = agent
        self.training = training
        self.model: Any = agent.model.eval()
        self.policy = Policy(self.model, temperature=temperature, autocast=training.autocast)
        self.optimizer = Optimizer(
            self.model,
            training.learning_rate,
            weight_decay=training.weight_decay,
            betas=training.betas,
            max_grad_norm=training.max_grad_norm,
        )
        self.reference: Reference | None = None
        self.iteration = 0
        self.episodes = 0
        self.log = None if training.log is None else TrainingLog(training.log)

    def save(self, path: Path | str) -> None:
        """Write all that `load` needs to go on as if nothing had happened; `path` keeps its last content until then."""
        tensors = {f"model.{name}": p for name, p in self._weights().items()}
        tensors |= {f"optimizer.{name}": t for name, t in self.optimizer.state().items()}
        if self.reference is not None:
            tensors |= {f"reference.{name}": t for name, t in self.reference.weights().items()}
        write_checkpoint(path, tensors, {"learner": type(self).__name__, **self._counters()})

    @classmethod
    def load(cls, path: Path | str, *args: Any, **kwargs: Any) -> Self:
        """A learner made of the same arguments as the one that was saved, at the point where it was saved."""
        learner = cls(*args, **kwargs)
        learner.restore(path)
        return learner

    @torch.no_grad()
    def restore(self, path: Path | str) -> None:
        """Take over weights, optimizer and counters.  Raises `StorageError` for a checkpoint of another model."""
        tensors, state = read_checkpoint(path)
        if state["learner"] != type(self).__name__:
            raise StorageError(f"{path} is a checkpoint of {state['learner']}, not of {type(self).__name__}")
        own = self._weights()
        check_weights(path, _part(tensors, "model."), own)
        references = _part(tensors, "reference.")
        check_weights(path, references, {} if self.reference is None else self.reference.weights())
        for name, weight in _part(tensors, "model.").items():
            own[name].copy_(weight)
        self.optimizer.load(_part(tensors, "optimizer."))
        if self.reference is not None:
            self.reference.load(references)
        self._take_counters(state)
        self.agent.update_weights()
        if self.log is not None:
            self.log.resume_at(self.iteration)

    def _weights(self) -> dict[str, Tensor]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def _counters(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "episodes": self.episodes}

    def _take_counters(self, state: Mapping[str, Any]) -> None:
        self.iteration, self.episodes = state["iteration"], state["episodes"]

    def evaluate(self) -> dict[str, float]:
        """Success and reward on `eval_envs`; nothing where there are none."""
        t = self.training
        if t.eval_envs is None:
            return {}
        self.agent.update_weights()
        sampling = self.agent.sampling
        self.agent.sampling = replace(sampling, temperature=t.eval_temperature)
        try:
            summary = evaluate(t.eval_envs, self.agent, t.eval_episodes, t.eval_seed)
        finally:
            self.agent.sampling = sampling
        return {"eval/success": summary.success_rate, "eval/reward": summary.mean_reward}

    def _finish_iteration(self, metrics: dict[str, float], callbacks: Sequence[Callback], *, last: bool) -> bool:
        """Evaluate, log and save what is due; whether the training goes on."""
        t = self.training
        self.agent.update_weights()  # callbacks, and whoever plays with the agent afterwards, see what was trained
        if last or self.iteration % t.eval_every == 0:
            metrics |= self.evaluate()
        if self.log is not None:
            self.log.write(self.iteration, metrics)
        verdicts = [callback(self, metrics) for callback in callbacks]
        goes_on = not last and not any(verdict is False for verdict in verdicts)
        if t.save is not None and (not goes_on or self.iteration % t.save_every == 0):
            self.save(t.save)
        if not goes_on and self.log is not None:
            self.log.close()
        return goes_on


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
