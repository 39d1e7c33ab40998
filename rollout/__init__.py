"""What connects agents and environments: collect episodes, batch them, measure them, store them.

Names are imported where they are first used: `import toolstep.rollout` loads neither torch nor gymnasium.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.rollout.advantages import group_advantages as group_advantages
    from toolstep.rollout.batch import RolloutBatch as RolloutBatch
    from toolstep.rollout.collect import RunMetrics as RunMetrics
    from toolstep.rollout.collect import collect as collect
    from toolstep.rollout.collect import play as play
    from toolstep.rollout.evaluate import Summary as Summary
    from toolstep.rollout.evaluate import evaluate as evaluate
    from toolstep.rollout.evaluate import summarize as summarize
    from toolstep.rollout.generator import RolloutGenerator as RolloutGenerator
    from toolstep.rollout.generator import RolloutResult as RolloutResult
    from toolstep.rollout.logprobs import token_logprobs as token_logprobs
    from toolstep.rollout.objective import OBJECTIVES as OBJECTIVES
    from toolstep.rollout.objective import Objective as Objective
    from toolstep.rollout.packed import PackedBatch as PackedBatch
    from toolstep.rollout.packed import ShiftedBatch as ShiftedBatch
    from toolstep.rollout.runner import RolloutRunner as RolloutRunner
    from toolstep.rollout.specs import EpisodeSpec as EpisodeSpec
    from toolstep.rollout.specs import group_specs as group_specs
    from toolstep.rollout.storage import load_batch as load_batch
    from toolstep.rollout.storage import read_episodes as read_episodes
    from toolstep.rollout.storage import save_batch as save_batch
    from toolstep.rollout.types import Trajectory as Trajectory
    from toolstep.rollout.types import Transition as Transition

_HOME = {
    "EpisodeSpec": "specs",
    "OBJECTIVES": "objective",
    "Objective": "objective",
    "PackedBatch": "packed",
    "RolloutBatch": "batch",
    "RolloutGenerator": "generator",
    "RolloutResult": "generator",
    "RolloutRunner": "runner",
    "RunMetrics": "collect",
    "ShiftedBatch": "packed",
    "Summary": "evaluate",
    "Trajectory": "types",
    "Transition": "types",
    "collect": "collect",
    "evaluate": "evaluate",
    "group_advantages": "advantages",
    "group_specs": "specs",
    "load_batch": "storage",
    "play": "collect",
    "read_episodes": "storage",
    "save_batch": "storage",
    "summarize": "evaluate",
    "token_logprobs": "logprobs",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


class _Package(types.ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # The import system binds a submodule to its package by name; `collect` and `evaluate` are the
        # functions here, whatever was imported first.
        if name in _HOME and isinstance(value, types.ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
