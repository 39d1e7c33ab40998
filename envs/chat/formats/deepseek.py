"""DeepSeek V3, R1 and V3.1: a section of calls, each between its own marks."""

from __future__ import annotations

from typing import ClassVar

from toolstep.envs.chat.formats.section import HeadedJSON
from toolstep.envs.chat.formats.tools_prompt import DEEPSEEK_V3, DEEPSEEK_V31, ToolsPrompt

_SEP = "<｜tool▁sep｜>"


class DeepSeekV31(HeadedJSON):
    """`<｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>`."""

    name: ClassVar[str] = "deepseek_v31"
    prompt: ClassVar[ToolsPrompt] = DEEPSEEK_V31
    begin: ClassVar[str] = "<｜tool▁calls▁begin｜>"
    end: ClassVar[str] = "<｜tool▁calls▁end｜>"
    call_open: ClassVar[str] = "<｜tool▁call▁begin｜>"
    separator: ClassVar[str] = _SEP
    close: ClassVar[str] = "<｜tool▁call▁end｜>"


class DeepSeekV3(DeepSeekV31):
    """The call's type in front of its name, and the arguments in a fenced block."""

    name: ClassVar[str] = "deepseek_v3"
    prompt: ClassVar[ToolsPrompt] = DEEPSEEK_V3
    between: ClassVar[str] = "\n"
    separator: ClassVar[str] = "\n```json\n"
    fence: ClassVar[str] = "\n```"

    def name_of(self, head: str) -> str | None:
        _kind, sep, name = head.partition(_SEP)
        return name.strip() if sep else None

    def head_of(self, name: str, index: int) -> str:
        return f"function{_SEP}{name}"
