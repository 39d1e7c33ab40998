"""What has to be known of any `gymnasium.vector.VectorEnv`: one row of its infos, and the forms that are broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

_FINAL = frozenset({"final_obs", "final_info"})


def row_info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The info of `row`, as its env returned it: `VectorEnv._add_info` undone.

    Batched infos hold, for each key, an array over the rows and a mask `_key` that says which rows have the key; dicts
    are nested in the same form.  numpy scalars come back as Python ones.
    """
    out: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key.startswith("_") or key in _FINAL or mask is None or not mask[row]:
            continue
        if isinstance(values, Mapping):
            out[key] = row_info(values, row)
        else:
            value = values[row]
            out[key] = value.item() if isinstance(value, np.generic) else value
    return out


def recorded(envs: Any) -> bool:
    """Whether the env has a tape, on which episodes of one task have to be told apart by their samples."""
    return bool(getattr(envs.unwrapped, "recorded", False))


def ended_row(infos: Mapping[str, Any], observation: Any, row: int) -> tuple[Any, dict[str, Any]]:
    """Last observation and info of a row whose episode just ended.

    Under SAME_STEP they are in `final_obs` and `final_info`, and the row's place holds the next episode's first ones.
    """
    mask = infos.get("_final_info")
    if mask is None or not mask[row]:
        return observation, row_info(infos, row)
    return infos["final_obs"][row], row_info(infos["final_info"], row)


def refuse_broken(envs: VectorEnv[Any, Any, Any]) -> None:
    """ValueError for the forms of gymnasium 1.4's AsyncVectorEnv that return wrong results without a word."""
    base = envs.unwrapped
    if not isinstance(base, AsyncVectorEnv):
        return
    if base.shared_memory and not _numeric(base.single_observation_space):
        raise ValueError(
            "AsyncVectorEnv with shared_memory=True returns stale text (gymnasium 1.4); pass "
            "shared_memory=False, or use ToolUseVectorEnv"
        )
    if not base.shared_memory and base.metadata.get("autoreset_mode") == AutoresetMode.NEXT_STEP:
        raise ValueError(
            "AsyncVectorEnv in NEXT_STEP mode swallows the first action after an explicit reset "
            "(gymnasium 1.4); pass autoreset_mode=AutoresetMode.SAME_STEP, or use ToolUseVectorEnv"
        )


def _numeric(space: spaces.Space[Any]) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return all(map(_numeric, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))
