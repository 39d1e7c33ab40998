"""Solar Open: each call with an id and its name between marks."""

from __future__ import annotations

from typing import ClassVar

from toolstep.envs.chat.formats.section import HeadedJSON

_NAME = "<|tool_call:name|>"


class Solar(HeadedJSON):
    """`<|tool_call:begin|>id<|tool_call:name|>name<|tool_call:args|>{...}<|tool_call:end|>`."""

    name: ClassVar[str] = "solar"
    think_open: ClassVar[str] = "<|think|>"
    think_close: ClassVar[str] = "<|end|>"
    begin: ClassVar[str] = "<|tool_calls|>"
    call_open: ClassVar[str] = "<|tool_call:begin|>"
    separator: ClassVar[str] = "<|tool_call:args|>"
    close: ClassVar[str] = "<|tool_call:end|>"

    def name_of(self, head: str) -> str | None:
        _id, sep, name = head.partition(_NAME)
        return name.strip() if sep else None

    def head_of(self, name: str, index: int) -> str:
        return f"call{index:05d}{_NAME}{name}"
