"""Batched decoding of a causal language model; purely token ids."""

from toolstep.agents.base import Finished
from toolstep.agents.engine.attention import UnsupportedModel
from toolstep.agents.engine.engine import Engine
from toolstep.agents.engine.interface import EngineStats, Partial, RowFailed, Ticket, TokenEngine

__all__ = ["Engine", "EngineStats", "Finished", "Partial", "RowFailed", "Ticket", "TokenEngine", "UnsupportedModel"]
