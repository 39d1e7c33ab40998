"""Rollouts in the form that the trainers of others read.  Names are imported where they are first used.

Every export keeps the same promises: a sampled stop token is on the mask, the mask comes from who wrote an id,
log-probs stand at their own id and are 0.0 off the mask, an episode that failed is masked.
`docs/exports.md` says what each consumer gets and how it was checked.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.rollout.export.datasets import to_dataset, to_table
    from toolstep.rollout.export.formats import Format
    from toolstep.rollout.export.rows import ExportError
    from toolstep.rollout.export.skyrl import to_skyrl
    from toolstep.rollout.export.torchrl import to_torchrl
    from toolstep.rollout.export.trl import env_reward, rollout_func, task_rows, to_trl
    from toolstep.rollout.export.trl_environment import environment_factory, environment_reward
    from toolstep.rollout.export.verl import to_verl, to_verl_batch

_HOME = {
    "ExportError": "rows",
    "Format": "formats",
    "env_reward": "trl",
    "environment_factory": "trl_environment",
    "environment_reward": "trl_environment",
    "rollout_func": "trl",
    "task_rows": "trl",
    "to_dataset": "datasets",
    "to_skyrl": "skyrl",
    "to_table": "datasets",
    "to_torchrl": "torchrl",
    "to_trl": "trl",
    "to_verl": "verl",
    "to_verl_batch": "verl",
}

__all__ = [
    "ExportError",
    "Format",
    "env_reward",
    "environment_factory",
    "environment_reward",
    "rollout_func",
    "task_rows",
    "to_dataset",
    "to_skyrl",
    "to_table",
    "to_torchrl",
    "to_trl",
    "to_verl",
    "to_verl_batch",
]


def __getattr__(name: str) -> Any:
    # PEP 562: none of the consumers is imported by this.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
