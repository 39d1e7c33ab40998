"""Who a tool's memory belongs to.

A tool that is a method of an object may remember things there.  Such an object serves one episode: two rows that share
it would see one another's calls, and the next episode those of the last.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from toolstep.envs.tools.tool import Tool

_IMMUTABLE = (type, types.ModuleType, str, bytes, int, float, complex, tuple, frozenset, type(None))


class SharedStateError(ValueError):
    """One object was to serve two episodes."""


def owner_of(tool: Tool) -> Any | None:
    """The object in which `tool` may keep something between calls; None where there is none, or it is `shared`.

    That is the object of a bound method, or a callable object itself.  Classes, modules, immutable values and frozen
    dataclasses remember nothing.  What a function keeps in a closure or in a global variable can't be seen.
    """
    if tool.shared:
        return None
    function = tool.function
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    owner = getattr(function, "__self__", None) if inspect.isroutine(function) else function
    if isinstance(owner, _IMMUTABLE):
        return None
    parameters = getattr(owner, "__dataclass_params__", None)
    frozen = dataclasses.is_dataclass(owner) and parameters is not None and parameters.frozen
    return None if frozen else owner


def distinct(owners: Iterable[Any]) -> list[Any]:
    """The owners without repetition, by identity, in order."""
    return list({id(owner): owner for owner in owners if owner is not None}.values())


class Claims:
    """Which objects serve or have served an episode, in the whole process.  Nothing is kept alive by it."""

    def __init__(self) -> None:
        self._served: dict[int, Callable[[], Any]] = {}

    def claim(self, owner: Any, names: Iterable[str]) -> None:
        """This object serves an episode from now on.

        Raises:
            SharedStateError: it serves another one, or has served one.
        """
        key = id(owner)
        known = self._served.get(key)
        if known is not None and known() is owner:
            raise SharedStateError(shared_message(owner, names))
        try:
            self._served[key] = weakref.ref(owner, lambda _: self._served.pop(key, None))
        except TypeError:  # slots without __weakref__
            self._served[key] = lambda: owner

    def release(self, owner: Any) -> None:
        """The episode is over; an object that can't be watched is forgotten, any other one has served."""
        if not isinstance(self._served.get(id(owner)), weakref.ref):
            self._served.pop(id(owner), None)


def shared_message(owner: Any, names: Iterable[str]) -> str:
    """What is wrong where an object is to serve several episodes, and what to do."""
    kind = type(owner).__name__
    return (
        f"one {kind} object stands behind {', '.join(map(repr, names))} in more than one episode, which would share "
        f"what it remembers: pass the class ({kind}) or per_episode(function) to tools=, so that each episode gets an "
        f"object of its own, or say tool(..., shared=True) if it remembers nothing and takes several calls at once"
    )
