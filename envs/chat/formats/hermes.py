"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, MiniMind, SmolLM, and
others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.chat.formats.base import (
    Attempt,
    Finish,
    Scan,
    ToolCallFormat,
    call_object,
    calls_from_json,
)
from toolstep.envs.chat.formats.scan import BadJSON, find_outside_strings, skip_space, unreadable
from toolstep.envs.types import CallStatus, ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_START = re.compile(f"{OPEN}|{ToolCallFormat.think_open}")
_KEYS = ("arguments", "parameters")


class HermesJSON(ToolCallFormat):
    """One JSON object, or a list of them, in each pair of tags; text and thoughts between them."""

    name: ClassVar[str] = "hermes_json"

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        last_close = text.rfind(CLOSE)
        while pos < len(text):
            start = _START.search(text, pos)
            found.content.append(text[pos : start.start() if start else len(text)])
            if start is None:
                return
            if start.group() == OPEN:
                pos = self._call(text, start.end(), last_close, found)
            else:
                pos = self.thought(text, start.end(), found)

    def _call(self, text: str, pos: int, last_close: int, found: Scan) -> int:
        """Read what stands behind an opening tag; the position behind it."""
        error: str
        try:
            attempts, end = calls_from_json(text, pos, _KEYS)
        except BadJSON as e:
            error = str(e)
        else:
            after = skip_space(text, end)
            if text.startswith(CLOSE, after):
                found.attempts += attempts
                return after + len(CLOSE)
            if last_close < after or text.startswith(OPEN, after):  # the closing tag was left out, no more
                found.attempts += attempts
                return after
            error = "there is text between the JSON and the closing tag"
        hit = find_outside_strings(text, pos, CLOSE, OPEN)
        if hit is None and (at := text.find(CLOSE, pos)) >= 0:
            hit = at, CLOSE
        end = hit[0] if hit else len(text)
        body = text[pos:end]
        status = unreadable(body, at_end=hit is None)
        if status is CallStatus.TRUNCATED:
            error = f"the call ends in the middle of its JSON: {error}"
        else:
            error = f"the text in {OPEN} is not strict JSON: {error}"
        found.attempts.append(Attempt(arguments=body, status=status, error=error))
        return end + len(CLOSE) if hit and hit[1] == CLOSE else end

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(self._written(c) for c in calls)

    def _written(self, call: ToolCall) -> str:
        if call.status is CallStatus.TRUNCATED:
            return OPEN + call.arguments
        if call.parsed is None and not call.name:  # all of the attempt was kept
            return f"{OPEN}{call.arguments}{CLOSE}"
        if call.parsed is None:
            name = json.dumps(call.name, ensure_ascii=False)
            return f'{OPEN}\n{{"name": {name}, "arguments": {call.arguments}}}\n{CLOSE}'
        return f"{OPEN}\n{call_object(call, 'arguments')}\n{CLOSE}"


class MiniMind(HermesJSON):
    """MiniMind's form of it, which is the same."""

    name: ClassVar[str] = "minimind"
