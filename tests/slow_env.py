"""An env that takes its time, registered on import as any package's is: `toolstep eval slow_env:slow/Slow-v0`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym

from toolstep.envs import ToolUseVectorEnv


class SlowVectorEnv(ToolUseVectorEnv):
    """Each step takes 50 ms.  The file named by SLOW_ENV_MARK says that an episode has ended."""

    def step(self, actions: Any) -> Any:
        time.sleep(0.05)
        out = super().step(actions)
        if (out[2] | out[3]).any() and os.environ.get("SLOW_ENV_MARK"):
            Path(os.environ["SLOW_ENV_MARK"]).touch()
        return out


gym.register(
    "slow/Slow-v0",
    entry_point="toolstep.envs:ToolUseEnv",
    vector_entry_point="slow_env:SlowVectorEnv",
    kwargs={"tasks": "calculator"},
)
