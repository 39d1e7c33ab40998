"""Tool-call formats: how a model writes calls into a turn, and how they are read back."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from toolstep.envs.chat.errors import UnknownToolCallFormat
from toolstep.envs.chat.formats.base import ToolCallFormat
from toolstep.envs.chat.formats.hermes import HermesJSON, MiniMind
from toolstep.envs.chat.formats.json_list import Granite3, MistralV3
from toolstep.envs.chat.formats.llama3 import Llama3JSON, Llama3PythonTag
from toolstep.envs.types import CallStatus

__all__ = ["FORMATS", "ToolCallFormat", "detect_format", "get_format", "register_format"]

# In the order in which detection tries them.
FORMATS: dict[str, ToolCallFormat] = {
    f.name: f for f in (HermesJSON(), MiniMind(), Llama3PythonTag(), Llama3JSON(), MistralV3(), Granite3())
}


def register_format(form: ToolCallFormat) -> None:
    """Make a format of your own known by its name and to detection."""
    FORMATS[form.name] = form


def get_format(name: str) -> ToolCallFormat:
    """The format called `name`."""
    try:
        return FORMATS[name]
    except KeyError:
        near = difflib.get_close_matches(name, FORMATS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownToolCallFormat(f"no tool-call format {name!r}, known are {sorted(FORMATS)}{hint}") from None


def detect_format(turns: Iterator[str], name: str, arguments: dict[str, str]) -> ToolCallFormat | None:
    """The format that reads exactly the call `name(**arguments)` from a rendering of it.

    turns: a template's renderings of the call.  Of several formats the one that would write it so is taken;
    without that a reading counts only where tags frame the call.
    """
    readers: list[ToolCallFormat] = []
    for text in turns:
        for form in FORMATS.values():
            calls = form.parse(text).calls
            if [(c.status, c.name, c.parsed) for c in calls] == [(CallStatus.OK, name, arguments)]:
                if form.write_calls(calls) in text:
                    return form
                if not text.lstrip().startswith("{"):
                    readers.append(form)
    return readers[0] if readers else None
