"""Built-in tools: made anew for each episode, bounded in time, memory and text, closed with it.

    ToolUseEnv(tasks, tools=["calculator", "clock", "finish"])
    ToolUseEnv(tasks, tools=[Clock(datetime(2030, 5, 1, 8, 0, tzinfo=UTC)), Finish("submit")])

A name stands for the factory with its defaults (`sql`: an empty database that can be written).  Importing this loads
none of them.
"""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.envs.tools.builtin.clock import Clock
    from toolstep.envs.tools.builtin.corpus import Document
    from toolstep.envs.tools.builtin.files import Files
    from toolstep.envs.tools.builtin.finish import Finish
    from toolstep.envs.tools.builtin.python import Python
    from toolstep.envs.tools.builtin.search import Search
    from toolstep.envs.tools.builtin.sql import SQL
    from toolstep.envs.tools.factory import Offer

__all__ = ["SQL", "Clock", "Document", "Files", "Finish", "Python", "Search", "builtin", "builtin_names"]

_HERE = "toolstep.envs.tools.builtin"
_CLASSES = {
    "Clock": "clock",
    "Document": "corpus",
    "Files": "files",
    "Finish": "finish",
    "Python": "python",
    "SQL": "sql",
    "Search": "search",
}
# name: where what makes it is, and what it is called with
_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "calculator": ("toolstep.envs.tools.calculator:calculator_tool", {}),
    "units": ("toolstep.envs.tools.units:units_tool", {}),
    "python": (f"{_HERE}.python:Python", {}),
    "sql": (f"{_HERE}.sql:SQL", {"read_only": False}),
    "files": (f"{_HERE}.files:Files", {}),
    "clock": (f"{_HERE}.clock:Clock", {}),
    "finish": (f"{_HERE}.finish:Finish", {"name": "finish"}),
    "submit": (f"{_HERE}.finish:Finish", {"name": "submit"}),
}


def builtin_names() -> tuple[str, ...]:
    """The names that `tools=` of an env takes."""
    return tuple(_NAMES)


def builtin(name: str) -> Offer:
    """The built-in tool of that name, with its defaults.

    Raises:
        ValueError: there is none; the message has the nearest and all that are.
    """
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no built-in tool {name!r}; {hint}Known: {', '.join(_NAMES)}")
    where, options = _NAMES[name]
    module, _, attribute = where.partition(":")
    offer: Offer = getattr(importlib.import_module(module), attribute)(**options)
    return offer


def __getattr__(name: str) -> Any:
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{_HERE}.{_CLASSES[name]}"), name)
