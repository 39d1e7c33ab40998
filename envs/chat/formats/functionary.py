"""Functionary: 3.1 writes calls in tags, 3.2 addresses each part of the turn to a recipient."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.chat.formats.base import Finish, Scan, ToolCallFormat, Tools, blank_end
from toolstep.envs.chat.formats.json_calls import arguments_text, call_with_arguments_at
from toolstep.envs.chat.formats.section import HeadedJSON
from toolstep.envs.types import CallStatus, ToolCall

_CODE = "<|python_tag|>"
_PART = re.compile(r">>>(?=[^\W\d][\w.\-]{0,127}(?:\n|\Z))")
_HEAD = re.compile(r"[^\S\n]*+([^\W\d][\w.\-]{0,127}+)[^\S\n]*+(?:\n|\Z)")


class FunctionaryV31(HeadedJSON):
    """`<function=name>{...}</function>`.  Code behind `<|python_tag|>` is an attempt that cannot be read."""

    name: ClassVar[str] = "functionary_v31"
    call_open: ClassVar[str] = "<function="
    separator: ClassVar[str] = ">"
    close: ClassVar[str] = "</function>"

    markers: ClassVar[tuple[str, ...]] = ("<function=", _CODE)

    def read(self, text: str, pos: int, marker: str, found: Scan) -> int:
        if marker != _CODE:
            return super().read(text, pos, marker, found)
        error = f"code behind {_CODE} is not run: write <function=NAME>{{...}}</function>"
        found.bad(CallStatus.INVALID_JSON, _CODE + text[pos:], error)
        return len(text)


class FunctionaryV32(ToolCallFormat):
    """`name\\n{...}>>>name\\n{...}`, the first `>>>` being the prompt's; what goes to `all` is content."""

    name: ClassVar[str] = "functionary_v32"

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        pos = blank_end(text, self.leading_thought(text, pos, found))
        if text.startswith(">>>", pos):
            pos += 3
        while pos < len(text):
            m = _HEAD.match(text, pos)
            if m is None:
                found.content.append(text[pos:])
                return
            head, line = m[1], m.end()
            if line == len(text) and text[-1] != "\n":
                status = CallStatus.TRUNCATED if finish == "length" else CallStatus.MALFORMED_MARKUP
                found.bad(status, text[pos:], f"no arguments follow the recipient {head!r}")
                return
            if head == "all":
                m = _PART.search(text, line)
                found.content.append(text[line : m.start() if m else len(text)])
                pos = m.end() if m else len(text)
                continue
            attempt, pos = call_with_arguments_at(text, line, head, ">>>", ">>>")
            found.attempts.append(attempt)

    def write_content(self, content: str, before_calls: bool) -> str:
        if not content and before_calls:
            return ""
        return f"all\n{content}" + (">>>" if before_calls else "")

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return ">>>".join(f"{c.name}\n{arguments_text(c)}" if c.name else c.arguments for c in calls)
