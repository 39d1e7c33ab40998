"""Agents whose model is elsewhere: token servers (vLLM, SGLang, llama.cpp, `toolstep serve`) and text APIs."""

from toolstep.agents.server.agent import ServerAgent
from toolstep.agents.server.errors import ServerError
from toolstep.agents.server.retry import Retries

__all__ = ["Retries", "ServerAgent", "ServerError"]
