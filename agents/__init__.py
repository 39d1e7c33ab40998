"""What acts: the batched language model, and agents without one.  Names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.agents.base import Agent, Completion, FinishReason, SamplingParams, TokenAgent
    from toolstep.agents.batch import Sampled, run_batch
    from toolstep.agents.constrain import ToolCalls
    from toolstep.agents.engine import Engine, EngineStats, UnsupportedModel
    from toolstep.agents.llm import LLMAgent
    from toolstep.agents.registry import AGENTS, make_agent
    from toolstep.agents.sb3 import GymnasiumVecEnv, SB3Agent
    from toolstep.agents.scripted import OracleAgent, RandomAgent, ReplayAgent
    from toolstep.agents.server import ChatAgent, ServerAgent, ServerError
    from toolstep.agents.weights import ModelNotFound, load_model

_HOME = {
    "base": ("Agent", "Completion", "FinishReason", "SamplingParams", "TokenAgent"),
    "batch": ("Sampled", "run_batch"),
    "constrain": ("ToolCalls",),
    "engine": ("Engine", "EngineStats", "UnsupportedModel"),
    "llm": ("LLMAgent",),
    "registry": ("AGENTS", "make_agent"),
    "sb3": ("GymnasiumVecEnv", "SB3Agent"),
    "scripted": ("OracleAgent", "RandomAgent", "ReplayAgent"),
    "server": ("ChatAgent", "ServerAgent", "ServerError"),
    "weights": ("ModelNotFound", "load_model"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AGENTS",
    "Agent",
    "ChatAgent",
    "Completion",
    "Engine",
    "EngineStats",
    "FinishReason",
    "GymnasiumVecEnv",
    "LLMAgent",
    "ModelNotFound",
    "OracleAgent",
    "RandomAgent",
    "ReplayAgent",
    "SB3Agent",
    "Sampled",
    "SamplingParams",
    "ServerAgent",
    "ServerError",
    "TokenAgent",
    "ToolCalls",
    "UnsupportedModel",
    "load_model",
    "make_agent",
    "run_batch",
]


def __getattr__(name: str) -> Any:
    # PEP 562: `import toolstep.agents` must not import torch.
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
