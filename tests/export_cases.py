"""Real trajectories for the tests of exports: what a tiny model, an oracle and a thinker did in real envs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from test_history_policies import FORGETFUL, THINKS, Talk, Thinker
from tiny import tiny_model, tiny_tokenizer

from toolstep.agents import LLMAgent, OracleAgent, SamplingParams
from toolstep.envs import ToolUseVectorEnv
from toolstep.rollout import Trajectory, collect, group_specs


@cache
def tokenizer() -> Any:
    """Its pad token is the stop token."""
    return tiny_tokenizer()


def talker() -> Any:
    """A new random model that ends most of its turns by itself: it is bent towards the stop token."""
    import torch

    made = tiny_model(len(tokenizer()))
    with torch.no_grad():
        ids = torch.randint(0, 256, (8, 64), generator=torch.Generator().manual_seed(0))
        mean = made.model(ids).last_hidden_state.mean((0, 1))
        made.lm_head.weight[tokenizer().eos_token_id] = mean * (4 / mean.dot(mean))
    return made


@cache
def model() -> Any:
    return talker()


def agent(made: Any = None, **sampling: Any) -> LLMAgent:
    params = SamplingParams(max_new_tokens=6, **sampling)
    return LLMAgent(model() if made is None else made, tokenizer(), sampling=params)


def talk_envs(num_envs: int, **options: Any) -> ToolUseVectorEnv:
    return ToolUseVectorEnv(num_envs, Talk(), autoreset_mode="SameStep", **options)


@cache
def talked() -> Sequence[Trajectory]:
    """Three groups of four: up to three turns with user messages between them; some are cut."""
    player = agent()
    envs = talk_envs(5, **player.env_kwargs)
    out = collect(envs, player, group_specs(3, 4, seed=1))
    envs.close()
    assert {t.turns for t in out} == {1, 2, 3}
    assert len({t.total_reward for t in out}) > 1
    return tuple(out)


@cache
def solved() -> Sequence[Trajectory]:
    """An oracle's tool calls in token ids: no log-probs."""
    envs = ToolUseVectorEnv(3, "calculator", view="tokens", tokenizer=tokenizer(), autoreset_mode="SameStep")
    out = collect(envs, OracleAgent(), group_specs(2, 2, seed=3))
    envs.close()
    assert all(t.total_reward == 1 and t.observed for t in out)
    return tuple(out)


@cache
def segmented() -> Sequence[Trajectory]:
    """One group of two episodes, each in three contexts."""
    forgetful = tiny_tokenizer()
    forgetful.chat_template = FORGETFUL
    thinker = Thinker(forgetful, [THINKS, THINKS, "done"])
    envs = talk_envs(2, history="rerender", **thinker.env_kwargs)
    out = collect(envs, thinker, group_specs(1, 2, seed=0))
    envs.close()
    assert all(len(t.segments) == 3 for t in out)
    return tuple(out)


@cache
def as_text() -> Sequence[Trajectory]:
    """An oracle in the text view: messages and rewards, no ids."""
    envs = ToolUseVectorEnv(2, "calculator", autoreset_mode="SameStep")
    out = collect(envs, OracleAgent(), group_specs(2, 1, seed=0))
    envs.close()
    return tuple(out)


def failed(t: Trajectory) -> Trajectory:
    """The same episode, had the env failed in it: what it had paid until then is no fair reward."""
    return replace(t, status="env_error", error="it broke", terminated=False, truncated=True)
