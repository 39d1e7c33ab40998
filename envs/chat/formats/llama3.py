"""Llama 3.1 and later: the turn is `{"name": ..., "parameters": {...}}`, with or without `<|python_tag|>` before it.

Several calls are separated by semicolons.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.chat.formats.base import Attempt, Finish, Scan, ToolCallFormat, Tools
from toolstep.envs.chat.formats.json_calls import call_from_members, call_object
from toolstep.envs.chat.formats.scan import BadJSON, is_open, read_members, read_value, skip_space, unreadable
from toolstep.envs.types import CallStatus, ToolCall

TAG = "<|python_tag|>"
_KEYS = ("parameters", "arguments")
_LOOKS_LIKE_A_CALL = re.compile(r'\{\s*"(?:name|parameters|arguments|type|function)"\s*:')


class Llama3JSON(ToolCallFormat):
    """Bare JSON.  An object without a name, parameters or arguments is an answer, not a call; so is JSON in prose."""

    name: ClassVar[str] = "llama3_json"
    prefix: ClassVar[str] = ""

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        start = skip_space(text, self.leading_thought(text, pos, found))
        if text.startswith("{", start) and self._is_attempt(text, start, finish):
            self._calls(text, start, found)
        elif (tag := text.find(TAG, start)) >= 0:
            found.content.append(text[start:tag])
            self._calls(text, tag + len(TAG), found)
        else:
            found.content.append(text[start:])

    @staticmethod
    def _is_attempt(text: str, start: int, finish: Finish) -> bool:
        try:
            value = read_value(text, start).value
        except BadJSON:
            cut = finish == "length" and is_open(text[start:])
            return cut or _LOOKS_LIKE_A_CALL.match(text, start) is not None
        return any(key in value for key in ("name", *_KEYS))

    def _calls(self, text: str, pos: int, found: Scan) -> None:
        """Objects from `pos` on; what cannot be read ends the turn, as nothing says where the next one starts."""
        while (pos := skip_space(text, pos)) < len(text):
            try:
                members, end = read_members(text, pos)
            except BadJSON as e:
                body = text[pos:]
                status = unreadable(body, at_end=True)
                what = "ends in the middle of its JSON" if status is CallStatus.TRUNCATED else "is not strict JSON"
                found.attempts.append(Attempt(arguments=body, status=status, error=f"the call {what}: {e}"))
                return
            found.attempts.append(call_from_members(members, text[pos:end], _KEYS))
            pos = skip_space(text, end)
            if text.startswith(";", pos):
                pos += 1
            elif not text.startswith("{", pos):
                found.content.append(text[pos:])
                return

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return self.prefix + "; ".join(call_object(c, "parameters") for c in calls) if calls else ""


class Llama3PythonTag(Llama3JSON):
    """Behind `<|python_tag|>`, where everything is a call."""

    name: ClassVar[str] = "llama3_python_tag"
    prefix: ClassVar[str] = TAG
