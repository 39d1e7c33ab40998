"""Envs that fail and that print, registered on import: `toolstep eval noisy_env:noisy/Fails-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.tasks import FunctionTasks


def task(seed: int, split: str) -> dict[str, Any]:
    """A problem without sense."""
    return {"prompt": f"{split} {seed}", "answer": "x", "data": seed}


def score(record: Any) -> float:
    """Half right, or nothing that could be judged."""
    if record.task.data % 3 == 0:
        raise RuntimeError("the judge is away")
    return 0.5


def shout(text: str) -> str:
    """Write in capitals."""
    print("the tool prints", text)
    return text.upper()


class Fails(ToolUseVectorEnv):
    """A third of the episodes ends in an error of the env."""

    def __init__(self, num_envs: int, **options: Any):
        tasks = FunctionTasks(task, score=score)
        super().__init__(num_envs, tasks, **options)


class Prints(ToolUseVectorEnv):
    """The env prints when it is made, and the tool when it is called."""

    def __init__(self, num_envs: int, **options: Any):
        print("the env prints")
        super().__init__(num_envs, "calculator", tools=[shout], **options)

    def send(self, actions: Any, rows: Any) -> None:
        print("the env prints again")
        super().send(actions, rows)

    def step(self, actions: Any) -> Any:
        print("the env prints again")
        return super().step(actions)


for env in (Fails, Prints):
    gym.register(f"noisy/{env.__name__}-v0", entry_point="toolstep.envs:ToolUseEnv", vector_entry_point=env)
