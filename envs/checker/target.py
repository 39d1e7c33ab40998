"""From what a user names on a command line to the object, and to what kind of thing it is."""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym

from toolstep.envs.checker.report import Kind
from toolstep.envs.tasks.base import TaskSet, nearest
from toolstep.envs.tasks.registry import task_names
from toolstep.envs.tools.builtin import builtin_names
from toolstep.envs.tools.factory import ToolFactory, tools_of
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import Task

FORMS = "MODULE:OBJECT, FILE.py:OBJECT, FILE.jsonl, the id of an env, or the name of a built-in tool"


class UnknownTarget(ValueError):
    """What was named is not there, or is nothing that can be checked; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Target:
    """kind: how it is checked.  value: the object, or the id of an env.  name: as it was given."""

    kind: Kind
    value: Any
    name: str


def find_target(name: str, kind: Kind | None = None) -> Target:
    """What `name` means; its module is imported, nothing else of it is run.

    kind: how to check it, where that cannot be told from the object.

    Raises:
        UnknownTarget: no such thing.  Whatever its module raises when it is imported.
    """
    where, colon, attribute = name.rpartition(":")
    if colon:
        module = _module(where)
        if attribute in gym.registry and not hasattr(module, attribute):
            return Target(kind or "env", attribute, name)
        value = _attribute(module, attribute, where)
        return Target(kind or kind_of(value, name), value, name)
    if name.endswith(".jsonl"):
        if not Path(name).is_file():
            raise UnknownTarget(f"there is no file {name!r}")
        return Target(kind or "task", name, name)
    if name.endswith(".py"):
        raise UnknownTarget(f"say what of {name!r} is to be checked: {name}:OBJECT")
    if kind == "tool" and name in builtin_names():
        return Target(kind, name, name)
    ids = {**{_short(i): i for i in gym.registry if i in task_names()}, **{i: i for i in gym.registry}}
    found = ids.get(name) or ids.get(_short(name))
    if found is not None:
        return Target(kind or "env", found, name)
    if name in builtin_names():
        return Target(kind or "tool", name, name)
    known = [*task_names(), *builtin_names()]
    raise UnknownTarget(f"there is no {name!r} to check: give {FORMS}; {nearest(name, known)}")


def kind_of(value: Any, name: str) -> Kind:
    """How an object is to be checked.

    Raises:
        UnknownTarget: it is nothing of the three, or it could be more than one of them.
    """
    if isinstance(value, gym.Env) or (isinstance(value, type) and issubclass(value, gym.Env)):
        return "env"
    if isinstance(value, TaskSet) or (isinstance(value, type) and issubclass(value, TaskSet)):
        return "task"
    if isinstance(value, Tool | ToolFactory) or (isinstance(value, type) and issubclass(value, ToolFactory)):
        return "tool"
    if not callable(value) and not isinstance(value, str) and tools_of(value):
        return "tool"
    if isinstance(value, list | tuple) and value:
        return "task" if all(isinstance(item, Task | Mapping) for item in value) else "tool"
    if isinstance(value, type) and tools_of(value):
        return "tool"
    if callable(value) and not isinstance(value, type):
        return _of_function(value, name)
    raise UnknownTarget(
        f"{name} is a {type(value).__name__}, which is neither a tool (a function, a Tool, a class with @tool methods, "
        "a factory, a list of them), nor tasks (a TaskSet, a list of tasks, a function of a seed), nor an env (an id, "
        "a function that makes one)"
    )


def _of_function(function: Any, name: str) -> Kind:
    """A function may be any of the three: its signature tells."""
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind not in (p.VAR_KEYWORD,)]
    except (TypeError, ValueError):
        return "tool"
    returned = _returns(function)
    if returned:
        return returned
    required = [p.name for p in parameters if p.default is p.empty]
    if required in (["seed"], ["seed", "split"]):
        return "task"
    if required or returned is None:
        return "tool"
    raise UnknownTarget(
        f"{name} takes no arguments and does not say what it returns: it may be a tool or make an env; "
        "annotate it (-> gymnasium.Env, -> str), or say --kind env or --kind tool"
    )


def _returns(function: Any) -> Kind | Literal[""] | None:
    """The kind that its annotation of what it returns shows; None for another annotation; "" where there is none."""
    try:
        annotation = typing.get_type_hints(inspect.unwrap(function)).get("return", "")
    except Exception:  # a name that cannot be resolved
        annotation = getattr(function, "__annotations__", {}).get("return", "")
    if annotation == "":
        return ""
    kind = typing.get_origin(annotation) or annotation
    if isinstance(kind, type):
        return "env" if issubclass(kind, gym.Env) else "task" if issubclass(kind, Task | TaskSet) else None
    return "env" if str(annotation).rpartition(".")[2].endswith("Env") else None


def _module(where: str) -> Any:
    if not where.endswith(".py"):
        sys.path[:0] = [] if str(Path.cwd()) in sys.path else [str(Path.cwd())]
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            if error.name is None or not where.startswith(error.name):
                raise
            raise UnknownTarget(f"there is no module {where!r}: give {FORMS}") from None
    path = Path(where).resolve()
    if not path.is_file():
        raise UnknownTarget(f"there is no file {where!r}")
    if not path.stem.isidentifier():
        raise UnknownTarget(f"{where!r} cannot be imported: rename it to letters, digits and _")
    # As a module of its folder, so that worker processes can import its functions too.
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise UnknownTarget(f"{where!r} cannot be imported: another module is named {path.stem!r} ({found}); rename it")
    return module


def _attribute(module: Any, attribute: str, where: str) -> Any:
    value = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise UnknownTarget(f"there is no {attribute!r} in {where!r}; {nearest(part, _own(module))}")
        value = getattr(value, part)
    return value


def _own(module: Any) -> list[str]:
    """What a module defines itself, and does not import."""
    found = {n: v for n, v in vars(module).items() if not n.startswith("_") and not inspect.ismodule(v)}
    return [n for n, v in found.items() if getattr(v, "__module__", module.__name__) == module.__name__]


def _short(name: str) -> str:
    return name.rpartition("/")[2].casefold().replace("_", "").replace("-", "").removesuffix("v0")
