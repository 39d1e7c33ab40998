"""Tasks and tools that are given on the command line: a file of problems or one prompt, and servers of tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from toolstep.envs.tasks import TaskList, read_tasks
from toolstep.envs.tools import MCP, OpenAPI, ToolFactory
from toolstep.rollout.build import Settings, UnknownEnv, find_env


def checked(settings: Settings) -> tuple[Settings, TaskList | None]:
    """The settings with the full name of their env and a split that it has, and the tasks that were given, if any.

    Raises:
        ValueError: not exactly one of an env, a file of tasks and a prompt; tasks that cannot be read (TaskError).
        UnknownEnv: no such env.
    """
    named = [name for name in ("env", "tasks", "prompt") if getattr(settings, name) is not None]
    if len(named) != 1:
        found = " and ".join(named) or "none"
        raise ValueError(f"give one of ENV, --tasks FILE and --prompt TEXT; found {found}")
    for option, owner in (("answer", "prompt"), ("base_url", "openapi"), ("auth_env", "openapi")):
        if getattr(settings, option) is not None and getattr(settings, owner) is None:
            raise ValueError(f"--{option.replace('_', '-')} belongs to --{owner}")
    if settings.env is not None:
        if settings.env.endswith(".jsonl"):
            raise UnknownEnv(f"{settings.env!r} is a file: give it with --tasks {settings.env}")
        module, _, name = settings.env.rpartition(":")
        module = module or settings.env_module or ""
        found = find_env(f"{module}:{name}" if module else name)
        return replace(settings, env=found, env_module=module or None, split=settings.split or "test"), None
    if settings.tasks is not None:
        tasks = read_tasks(settings.tasks)
        name = Path(settings.tasks).name
    else:
        tasks = TaskList([{"prompt": settings.prompt, "answer": settings.answer, "id": "prompt"}])
        name = "prompt"
    split = settings.split or ("test" if tasks.size("test") else "train")
    return replace(settings, env=name, split=split), tasks


def given_tools(settings: Settings) -> list[ToolFactory]:
    """What the options name, in their order."""
    tools: list[ToolFactory] = [MCP(server) for server in settings.mcp or ()]
    if settings.openapi is not None:
        tools.append(OpenAPI(settings.openapi, settings.base_url, auth=settings.auth_env))
    return tools
