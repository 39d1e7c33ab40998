"""Tasks and tools that are given on the command line: a file of problems or one prompt, and servers of tools."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

from toolstep.envs.tasks import JsonlTasks, TaskList
from toolstep.envs.tasks.jsonl import TEST_SHARE
from toolstep.envs.tools import MCP, Offer, OpenAPI, as_offer
from toolstep.rollout.build import Settings, UnknownEnv, find_env, import_from_here


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
        if found == JsonlTasks.name:
            raise UnknownEnv(f"{found} plays a file: give it with --tasks FILE.jsonl")
        return replace(settings, env=found, env_module=module or None, split=settings.split or "test"), None
    if settings.tasks is not None:
        share = settings.test_share
        if share is None:
            share = 0.0 if settings.split is None else TEST_SHARE
        settings = replace(settings, test_share=share)
        tasks: TaskList = JsonlTasks(str(settings.tasks), test_share=share)
        name = Path(str(settings.tasks)).name
    else:
        tasks = TaskList([{"prompt": settings.prompt, "answer": settings.answer, "id": "prompt"}])
        name = "prompt"
    split = settings.split or ("test" if tasks.size("test") else "train")
    return replace(settings, env=name, split=split), tasks


def given_tools(settings: Settings) -> list[Offer]:
    """What the options name, in their order."""
    tools: list[Offer] = [named_tool(name) for name in settings.tool or ()]
    if settings.playback is not None:
        return tools  # what servers offered stands in the recording
    tools += [MCP(server) for server in settings.mcp or ()]
    if settings.openapi is not None:
        tools.append(OpenAPI(settings.openapi, settings.base_url, auth=settings.auth_env))
    return tools


def named_tool(name: str) -> Offer:
    """A built-in tool, or what stands behind "module:attribute".  Raises ValueError for what is neither."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return as_offer(name)
    import_from_here()
    try:
        found = getattr(importlib.import_module(module), attribute)
        return as_offer(found)
    except (ImportError, AttributeError, TypeError) as error:
        raise ValueError(f"--tool {name}: {error}") from error
