"""One row out of gymnasium's batched infos."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

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
