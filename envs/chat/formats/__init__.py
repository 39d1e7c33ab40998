"""Tool-call formats: how a model writes calls into a turn, and how they are read back.

A format is a class with a `name`, `scan` and `write_calls` (see `base.ToolCallFormat`); most are a few class variables
of `block.JSONBlock` (JSON behind a marker), `section.HeadedJSON` (each call with a head and JSON arguments) or
`xml.XMLFormat`.  `register_format` makes one of your own known by its name and to detection.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from toolstep.envs.chat.errors import UnknownToolCallFormat
from toolstep.envs.chat.formats.base import ToolCallFormat
from toolstep.envs.chat.formats.cohere import CommandR7B
from toolstep.envs.chat.formats.deepseek import DeepSeekV3, DeepSeekV31
from toolstep.envs.chat.formats.functionary import FunctionaryV31, FunctionaryV32
from toolstep.envs.chat.formats.gemma import Gemma4
from toolstep.envs.chat.formats.glm import GLM
from toolstep.envs.chat.formats.granite import Granite3, Granite20B
from toolstep.envs.chat.formats.harmony import Harmony
from toolstep.envs.chat.formats.hermes import HermesJSON, MiniMind
from toolstep.envs.chat.formats.kimi import Kimi
from toolstep.envs.chat.formats.listed import Apertus, Apriel, Firefunction, Hunyuan, InternLM2, JSONList, Phi4Mini
from toolstep.envs.chat.formats.llama3 import Llama3JSON, Llama3PythonTag
from toolstep.envs.chat.formats.minimax import MiniMaxM2
from toolstep.envs.chat.formats.mistral import MistralV3, MistralV11
from toolstep.envs.chat.formats.pythonic import LFM2, Pythonic
from toolstep.envs.chat.formats.qwen3_coder import Qwen3CoderXML
from toolstep.envs.chat.formats.solar import Solar
from toolstep.envs.types import CallStatus, ToolCall

__all__ = ["FORMATS", "ToolCallFormat", "announced_format", "detect_format", "get_format", "register_format"]

_ALL: tuple[type[ToolCallFormat], ...] = (
    *(HermesJSON, MiniMind, Llama3PythonTag, Llama3JSON, MistralV3, MistralV11, Granite3, Granite20B, Qwen3CoderXML),
    *(GLM, MiniMaxM2, DeepSeekV3, DeepSeekV31, Kimi, Harmony, CommandR7B, FunctionaryV31, FunctionaryV32, Pythonic),
    *(LFM2, Firefunction, Phi4Mini, Hunyuan, Apriel, Apertus, InternLM2, JSONList, Gemma4, Solar),
)
# In the order in which detection tries them.
FORMATS: dict[str, ToolCallFormat] = {f.name: f() for f in _ALL}


def register_format(form: ToolCallFormat | type[ToolCallFormat]) -> Any:
    """Make a format of your own known by its name and to detection; also as a decorator of its class.

    One of the same name is replaced.  Raises TypeError for what is no format, ValueError for one without a name.
    """
    made = form() if isinstance(form, type) and issubclass(form, ToolCallFormat) else form
    if not isinstance(made, ToolCallFormat):
        raise TypeError(f"a format is a subclass of ToolCallFormat or an instance of one, got {form!r}")
    if not isinstance(getattr(made, "name", None), str) or not made.name:
        raise ValueError(f"{type(made).__name__} needs a class variable `name`, by which it is asked for")
    FORMATS[made.name] = made
    return form


def get_format(name: str) -> ToolCallFormat:
    """The format called `name`."""
    try:
        return FORMATS[name]
    except KeyError:
        near = difflib.get_close_matches(name, FORMATS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownToolCallFormat(f"no tool-call format {name!r}, known are {sorted(FORMATS)}{hint}") from None


def detect_format(turns: Iterable[tuple[str, dict[str, Any]]], name: str, prompt: str = "") -> ToolCallFormat | None:
    """The format that reads exactly the call `name(**arguments)` from a rendering of it.

    turns: a template's renderings of a call, each with the call's arguments.  prompt: what the model writes behind.

    Of several formats the one that would write the call so is taken, then one that leaves no text over, then one whose
    thoughts the prompt opens.  Without the first, a reading counts only where marks frame the call.
    """
    best: tuple[tuple[bool, bool, bool], ToolCallFormat] | None = None
    for text, arguments in turns:
        for form in FORMATS.values():
            turn = form.parse(text)
            if [(c.status, c.name, c.parsed) for c in turn.calls] != [(CallStatus.OK, name, arguments)]:
                continue
            fresh = [ToolCall("", name, "", arguments)]
            written = any(w in text for w in (form.write_calls(fresh), form.write_calls(turn.calls)))
            if written or not text.lstrip().startswith("{"):
                rank = (written, not turn.content, form.opens_thought(prompt))
                if best is None or rank > best[0]:
                    best = rank, form
    return best[1] if best else None


def announced_format(given: str, without: str) -> ToolCallFormat | None:
    """The format that a template's list of tools asks of its models; the longest announcement counts.

    given, without: the same prompt with tools and without.
    """
    texts = ((a, f) for f in FORMATS.values() for a in f.announcements)
    found = [(len(a), f) for a, f in texts if a in given and a not in without]
    return max(found, key=lambda pair: pair[0])[1] if found else None
