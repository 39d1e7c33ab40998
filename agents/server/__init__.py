"""Agents whose model is elsewhere: token servers (vLLM, SGLang, llama.cpp, `toolstep serve`) and text APIs.

Names are imported when they are first used: an error's class must not cost the import of a tokenizer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.agents.server.agent import ServerAgent
    from toolstep.agents.server.chat import ChatAgent
    from toolstep.agents.server.errors import ServerError
    from toolstep.agents.server.retry import Retries

_MODULE = {"ChatAgent": "chat", "Retries": "retry", "ServerAgent": "agent", "ServerError": "errors"}

__all__ = ["ChatAgent", "Retries", "ServerAgent", "ServerError"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
