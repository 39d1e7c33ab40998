"""Mistral: one list of calls behind `[TOOL_CALLS]`, and since tokenizer version 11 each call behind its own."""

from __future__ import annotations

from typing import ClassVar

from toolstep.envs.chat.formats.block import JSONBlock
from toolstep.envs.chat.formats.section import HeadedJSON


class MistralV3(JSONBlock):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`; text in front of it, and behind it, is content."""

    name: ClassVar[str] = "mistral_v3"
    markers: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)
    lead: ClassVar[str] = " "


class MistralV11(HeadedJSON):
    """`[TOOL_CALLS]name[ARGS]{...}`, with or without `[CALL_ID]...` behind the name."""

    name: ClassVar[str] = "mistral_v11"
    think_open: ClassVar[str] = "[THINK]"
    think_close: ClassVar[str] = "[/THINK]"
    call_open: ClassVar[str] = "[TOOL_CALLS]"
    separator: ClassVar[str] = "[ARGS]"

    def name_of(self, head: str) -> str | None:
        return head.partition("[CALL_ID]")[0].strip()
