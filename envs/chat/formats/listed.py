"""One JSON list of calls between marks: Firefunction, Phi-4-mini, Hunyuan, Apriel, Apertus, InternLM2, xLAM."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.chat.formats.base import Attempt, Finish, Scan, ToolCallFormat, Tools
from toolstep.envs.chat.formats.block import JSONBlock
from toolstep.envs.chat.formats.json_calls import arguments_text, call_object, call_with, calls_from_json
from toolstep.envs.chat.formats.scan import BadJSON, item_starts, read_members, read_value, unreadable
from toolstep.envs.chat.formats.tools_prompt import FIREFUNCTION, ToolsPrompt
from toolstep.envs.types import CallStatus, ToolCall


class Firefunction(JSONBlock):
    """`functools[{"name": ..., "arguments": {...}}, ...]`."""

    name: ClassVar[str] = "firefunction"
    prompt: ClassVar[ToolsPrompt] = FIREFUNCTION
    opening: ClassVar[str] = " functools"
    markers: ClassVar[tuple[str, ...]] = ("functools[",)  # the word alone may stand in a text

    def read(self, text: str, pos: int, marker: str, found: Scan) -> int:
        return super().read(text, pos - 1, marker, found)


class Phi4Mini(Firefunction):
    """The same: so its template asks for it, though it writes earlier calls in another way."""

    name: ClassVar[str] = "phi4_mini"
    announcements: ClassVar[tuple[str, ...]] = ("functools[",)
    opening: ClassVar[str] = "functools"


class Hunyuan(JSONBlock):
    """`<tool_calls>[{"name": ..., "arguments": {...}}, ...]</tool_calls>`."""

    name: ClassVar[str] = "hunyuan"
    frames: ClassVar[tuple[str, ...]] = ("<answer>", "</answer>")
    markers: ClassVar[tuple[str, ...]] = ("<tool_calls>",)
    close: ClassVar[str] = "</tool_calls>"


class Apriel(JSONBlock):
    """The same behind thoughts that end in a line of text."""

    name: ClassVar[str] = "apriel"
    think_open: ClassVar[str] = "Here are my reasoning steps:"
    think_close: ClassVar[str] = "[BEGIN FINAL RESPONSE]"
    markers: ClassVar[tuple[str, ...]] = ("<tool_calls>",)
    close: ClassVar[str] = "</tool_calls>"


class InternLM2(JSONBlock):
    """`<|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>`."""

    name: ClassVar[str] = "internlm2"
    markers: ClassVar[tuple[str, ...]] = ("<|action_start|><|plugin|>",)
    close: ClassVar[str] = "<|action_end|>"
    as_list: ClassVar[bool] = False
    lead: ClassVar[str] = "\n"


class Apertus(JSONBlock):
    """`<|tools_prefix|>[{name: {...}}, ...]<|tools_suffix|>`: the name is the key of its arguments."""

    name: ClassVar[str] = "apertus"
    think_open: ClassVar[str] = "<|inner_prefix|>"
    think_close: ClassVar[str] = "<|inner_suffix|>"
    markers: ClassVar[tuple[str, ...]] = ("<|tools_prefix|>",)
    close: ClassVar[str] = "<|tools_suffix|>"

    def calls_at(self, text: str, pos: int) -> tuple[list[Attempt], int]:
        whole = read_value(text, pos)
        if not isinstance(whole.value, list):
            raise BadJSON("the calls are a list of objects {name: arguments}")
        attempts = []
        for item, at in zip(whole.value, item_starts(text, pos), strict=True):
            if not isinstance(item, dict) or len(item) != 1 or "" in item:
                error = "each element of the list is an object with one key, the name of the tool"
                return [Attempt("", whole.source, None, CallStatus.MISSING_NAME, error)], whole.end
            ((name, given),) = read_members(text, at)[0].items()
            attempt = call_with(name, given)
            if attempt.status is not CallStatus.OK:
                return [Attempt("", whole.source, None, attempt.status, attempt.error)], whole.end
            attempts.append(attempt)
        return attempts, whole.end

    def element(self, call: ToolCall, index: int) -> str:
        return f"{{{json.dumps(call.name, ensure_ascii=False)}: {arguments_text(call)}}}"


_LOOKS_LIKE_CALLS = re.compile(r'\s*+\[\s*+\{\s*+"(?:name|arguments|parameters)"\s*+:')


class JSONList(ToolCallFormat):
    """The turn is `[{"name": ..., "arguments": {...}}, ...]` (xLAM).  A list of anything else is an answer."""

    name: ClassVar[str] = "json_list"

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        pos = self.leading_thought(text, pos, found)
        if not _LOOKS_LIKE_CALLS.match(text, pos):
            found.content.append(text[pos:])
            return
        try:
            attempts, end = calls_from_json(text, pos)
        except BadJSON as e:
            body = text[pos:].lstrip()
            found.bad(unreadable(body, at_end=True), body, f"the list of calls is not strict JSON: {e}")
            return
        found.attempts += attempts
        found.content.append(text[end:])

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        if any(c.parsed is None for c in calls):
            return "\n".join(c.arguments for c in calls)
        return "[" + ", ".join(map(call_object, calls)) + "]" if calls else ""
