"""Task sets by name."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolstep.envs.tasks.base import TaskError, TaskSet, nearest
from toolstep.envs.tasks.families import FAMILIES, by_family, family_of
from toolstep.envs.tasks.jsonl import SUFFIX, JsonlTasks
from toolstep.envs.tasks.lists import FunctionTasks, TaskList


class TaskOptionError(TypeError):
    """An option that the task set does not have."""


# "module:attribute", so that naming a task set does not import it.
_REGISTRY: dict[str, str | Callable[..., TaskSet]] = {
    "toolstep/Calculator-v0": "toolstep.envs.tasks.calculator:CalculatorTasks",
    "toolstep/UnitConvert-v0": "toolstep.envs.tasks.unit_convert:UnitConvertTasks",
    "toolstep/Lookup-v0": "toolstep.envs.tasks.lookup:LookupTasks",
    "toolstep/Assistant-v0": "toolstep.envs.tasks.assistant:AssistantTasks",
    "toolstep/SQL-v0": "toolstep.envs.tasks.sql:SQLTasks",
    "toolstep/Search-v0": "toolstep.envs.tasks.search:SearchTasks",
    "toolstep/Files-v0": "toolstep.envs.tasks.files:FilesTasks",
    "toolstep/Python-v0": "toolstep.envs.tasks.python:PythonTasks",
    "toolstep/Jsonl-v0": "toolstep.envs.tasks.jsonl:JsonlTasks",
}


_MEMBERS = tuple(family.id(member) for family in FAMILIES for member in family.members)


def task_names() -> tuple[str, ...]:
    """The registered names, those of families (`toolstep/BFCL-<category>-v0`) included."""
    return (*_REGISTRY, *_MEMBERS)


def register_tasks(name: str, factory: str | Callable[..., TaskSet]) -> None:
    """Make `load_tasks(name, **options)` call `factory(**options)`; "module:attribute" is imported then.

    Raises:
        TaskError: another factory has that name.
    """
    if _REGISTRY.get(name, factory) != factory or name in _MEMBERS:
        raise TaskError(f"task set {name!r} is registered already, as {_REGISTRY.get(name, name)!r}")
    _REGISTRY[name] = factory


def load_tasks(spec: object, **options: Any) -> TaskSet:
    """A task set.

    spec: a registered name (`"toolstep/Calculator-v0"`, or short `"calculator"`); a `*.jsonl` file (see
        `JsonlTasks`); a TaskSet; a sequence of Tasks or dicts (see `TaskList`); or a function from a seed to a Task
        (see `FunctionTasks`).
    options: what the task set's constructor takes, for instance `level=1`.

    Raises:
        TaskError: an unknown name, or something that no task set can be made of.
        TaskOptionError: an option that the task set does not have; the message names the nearest and
        all of them.
    """
    if isinstance(spec, TaskSet):
        if options:
            raise TaskOptionError(
                f"options {sorted(options)} given for a task set that exists already: "
                f"give them to {type(spec).__name__}(...)"
            )
        return spec
    if isinstance(spec, str):
        if spec.endswith(SUFFIX):
            return _construct(JsonlTasks, (spec,), options, spec)
        return _construct(task_factory(spec), (), options, spec)
    if isinstance(spec, type) and issubclass(spec, TaskSet):
        return _construct(spec, (), options, spec.__name__)
    if isinstance(spec, Sequence):
        return _construct(TaskList, (spec,), options, "a list of tasks")
    if callable(spec):
        return _construct(FunctionTasks, (spec,), options, "a task function")
    raise TaskError(
        f"cannot make a task set of {spec!r:.80}: give a name ({', '.join(by_family(task_names()))}), a TaskSet, "
        f"a list of {{'prompt', 'answer'}} or a function from a seed to a Task"
    )


def _short(name: str) -> str:
    base = name.rpartition("/")[2].casefold().replace("_", "").replace("-", "")
    return base.removesuffix("v0")


def task_factory(name: str) -> Callable[..., TaskSet]:
    """What makes the task set of that name: its class, or a function.  Raises TaskError for an unknown name."""
    names = task_names()
    known = name if name in names else next((n for n in names if _short(n) == _short(name)), None)
    if known is None:
        raise TaskError(f"unknown task set {name!r}; {nearest(name, task_names())}")
    member = family_of(known)
    found = _REGISTRY[known] if member is None else member[0].factory
    if not isinstance(found, str):
        return found
    module, _, attribute = found.partition(":")
    factory: Callable[..., TaskSet] = getattr(importlib.import_module(module), attribute)
    return factory if member is None else functools.partial(factory, member[1])


def _construct(
    factory: Callable[..., TaskSet], given: tuple[Any, ...], options: Mapping[str, Any], name: str
) -> TaskSet:
    parameters = list(inspect.signature(factory).parameters.values())[len(given) :]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = [p.name for p in parameters]
        for option in options:
            if option not in known:
                raise TaskOptionError(f"{name} has no option {option!r}; {nearest(option, known)}")
    for p in parameters:
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in options:
            raise TaskOptionError(f"{name} needs the option {p.name!r}: give {p.name}=...")
    return factory(*given, **options)
