"""Learners: SFT, GRPO and its kin, online DPO; names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.rollout.learn.dpo import DPO as DPO
    from toolstep.rollout.learn.grpo import GRPO as GRPO
    from toolstep.rollout.learn.learner import Training as Training
    from toolstep.rollout.learn.optimizer import warmup as warmup
    from toolstep.rollout.learn.sft import SFT as SFT

_HOME = {"DPO": "dpo", "GRPO": "grpo", "SFT": "sft", "Training": "learner", "warmup": "optimizer"}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
