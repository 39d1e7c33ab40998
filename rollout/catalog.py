"""What there is to play: the registered envs, and one of them in detail."""

from __future__ import annotations

import inspect
from typing import Any

from toolstep.envs.tasks.families import family_of
from toolstep.envs.tasks.registry import task_factory
from toolstep.rollout.build import env_ids, env_options, find_env


def list_envs() -> list[dict[str, str]]:
    """Each env that comes with toolstep: id, description, the family that it belongs to and what that needs, "" for
    none."""
    return [_item(i) for i in env_ids()]


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
            "description": _about(env_id, type(tasks)),
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


def _item(env_id: str) -> dict[str, str]:
    import gymnasium as gym

    member = family_of(env_id)
    if member is not None:  # its package may not be installed
        family, _ = member
        return {"id": env_id, "description": family.about, "family": family.pattern, "needs": family.needs}
    factory = task_factory(gym.spec(env_id).kwargs["tasks"])
    return {"id": env_id, "description": _about(env_id, factory), "family": "", "needs": ""}


def _about(env_id: str, factory: Any) -> str:
    member = family_of(env_id)
    if member is not None:
        return member[0].about
    return (inspect.getdoc(factory) or "").strip().partition("\n\n")[0].replace("\n", " ")


def _options(tasks: Any) -> list[str]:
    parameters = inspect.signature(type(tasks)).parameters.values()
    # What has no default is what the name of a family's member stands for.
    return [str(p.replace(annotation=p.empty)) for p in parameters if p.default is not p.empty]
