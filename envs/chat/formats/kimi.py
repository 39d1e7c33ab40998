"""Kimi K2: a section of calls, whose ids hold the names."""

from __future__ import annotations

import re
from typing import ClassVar

from toolstep.envs.chat.formats.section import HeadedJSON

_NUMBER = re.compile(r":\d+\Z")


class Kimi(HeadedJSON):
    """`<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>`."""

    name: ClassVar[str] = "kimi"
    announcements: ClassVar[tuple[str, ...]] = ("<|im_system|>tool_declare<|im_middle|>",)
    begin: ClassVar[str] = "<|tool_calls_section_begin|>"
    end: ClassVar[str] = "<|tool_calls_section_end|>"
    call_open: ClassVar[str] = "<|tool_call_begin|>"
    separator: ClassVar[str] = "<|tool_call_argument_begin|>"
    close: ClassVar[str] = "<|tool_call_end|>"

    def name_of(self, head: str) -> str | None:
        return _NUMBER.sub("", head.strip()).removeprefix("functions.")

    def head_of(self, name: str, index: int) -> str:
        return f"functions.{name}:{index}"
