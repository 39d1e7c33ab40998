"""A tiny agent in a small env, for the tests of learners: random weights, a reward that can be learned in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tiny import tiny_model, tiny_tokenizer

from toolstep.agents import LLMAgent, SamplingParams
from toolstep.envs import ToolUseVectorEnv
from toolstep.rollout import Trajectory

TOKENIZER = tiny_tokenizer()


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def make_task(seed: int) -> dict[str, Any]:
    return {"prompt": f"{seed % 7} + {seed % 11}?", "answer": str(seed % 7 + seed % 11)}


def make_agent(*, seed: int = 0, max_new_tokens: int = 8, model: Any = None, **sampling: Any) -> LLMAgent:
    model = tiny_model(len(TOKENIZER), seed=seed) if model is None else model
    return LLMAgent(model, TOKENIZER, sampling=SamplingParams(max_new_tokens=max_new_tokens, **sampling))


def make_envs(agent: LLMAgent, num_envs: int = 4, **options: Any) -> ToolUseVectorEnv:
    return ToolUseVectorEnv(num_envs=num_envs, tasks=make_task, **{"max_turns": 2, **agent.env_kwargs, **options})


def even(groups: Sequence[Sequence[Trajectory]]) -> list[list[float]]:
    """The share of sampled ids that are even numbers."""
    return [[float(np.mean(t.token_ids[t.action_mask] % 2 == 0)) if t.sampled else 0.0 for t in g] for g in groups]


def weights(learner: Any) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in learner.model.named_parameters()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
