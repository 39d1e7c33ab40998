"""Environments: what an agent acts in.  Importing this registers the `toolstep/...` ids with Gymnasium."""

from __future__ import annotations

import gymnasium as gym

from toolstep.envs.spaces import TokenSequence, UnicodeText
from toolstep.envs.tasks.families import FAMILIES
from toolstep.envs.tool_use import ToolUseEnv
from toolstep.envs.types import (
    CallStatus,
    EpisodeRecord,
    EpisodeStatus,
    Message,
    Source,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    Turn,
)
from toolstep.envs.vector import ToolUseVectorEnv

__all__ = [
    "CallStatus",
    "EpisodeRecord",
    "EpisodeStatus",
    "Message",
    "Source",
    "StopReason",
    "Task",
    "TokenSequence",
    "ToolCall",
    "ToolResult",
    "ToolUseEnv",
    "ToolUseVectorEnv",
    "Turn",
    "UnicodeText",
]

_IDS = {
    "toolstep/Calculator-v0": "calculator",
    "toolstep/UnitConvert-v0": "unit_convert",
    "toolstep/Lookup-v0": "lookup",
    "toolstep/Assistant-v0": "assistant",
    "toolstep/SQL-v0": "sql",
    "toolstep/Search-v0": "search",
    "toolstep/Files-v0": "files",
    "toolstep/Python-v0": "python",
    "toolstep/Jsonl-v0": "jsonl",
}

_KWARGS = {
    **{_id: {"tasks": _tasks} for _id, _tasks in _IDS.items()},
    **{f.id(m): {"tasks": f.id(m), **f.options} for f in FAMILIES for m in f.members},
}

for _id, _kwargs in _KWARGS.items():
    gym.register(
        id=_id,
        # Strings, so that a spec survives JSON, pickling and a spawned worker.
        entry_point="toolstep.envs.tool_use:ToolUseEnv",
        vector_entry_point="toolstep.envs.vector:ToolUseVectorEnv",
        kwargs=_kwargs,
    )
