"""What there is to play: the registered envs, and one of them in detail."""

from __future__ import annotations

import inspect
from typing import Any

from toolstep.rollout.build import env_ids, env_options, find_env


def list_envs() -> list[dict[str, str]]:
    """id and description of each env that comes with toolstep."""
    return [{"id": i, "description": _description(_task_set(i))} for i in env_ids()]


def describe(name: str, *, seed: int = 0, level: int | None = None) -> dict[str, Any]:
    """One env: its description, its options, the prompt of that seed's episode, the schemas of its tools."""
    import gymnasium as gym

    env_id = find_env(name)
    env: Any = gym.make(env_id, disable_env_checker=True, **env_options(level=level))
    try:
        prompt, info = env.reset(seed=seed)
        tasks = env.unwrapped.config.tasks
        return {
            "id": env_id,
            "description": _description(tasks),
            "options": _options(tasks),
            "observation_space": str(env.observation_space),
            "action_space": str(env.action_space),
            "task_id": info["task_id"],
            "tags": info["tags"],
            "messages": info["new_messages"],
            "prompt": prompt,
            "tools": env.unwrapped.schemas,
        }
    finally:
        env.close()


def _task_set(env_id: str) -> Any:
    import gymnasium as gym

    from toolstep.envs.tasks import load_tasks

    return load_tasks(gym.spec(env_id).kwargs["tasks"])


def _description(tasks: Any) -> str:
    return (inspect.getdoc(type(tasks)) or "").strip().partition("\n\n")[0].replace("\n", " ")


def _options(tasks: Any) -> list[str]:
    parameters = inspect.signature(type(tasks)).parameters.values()
    return [str(p.replace(annotation=p.empty)) for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
