"""Cohere's Command R7B and later models."""

from __future__ import annotations

from typing import ClassVar

from toolstep.envs.chat.formats.block import JSONBlock
from toolstep.envs.chat.formats.json_calls import call_object
from toolstep.envs.types import ToolCall


class CommandR7B(JSONBlock):
    """`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}, ...]<|END_ACTION|>`."""

    name: ClassVar[str] = "command_r7b"
    think_open: ClassVar[str] = "<|START_THINKING|>"
    think_close: ClassVar[str] = "<|END_THINKING|>"
    frames: ClassVar[tuple[str, ...]] = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    markers: ClassVar[tuple[str, ...]] = ("<|START_ACTION|>",)
    close: ClassVar[str] = "<|END_ACTION|>"
    brackets: ClassVar[tuple[str, str, str]] = ("[\n    ", ",\n    ", "\n]")
    name_key: ClassVar[str] = "tool_name"
    argument_keys: ClassVar[tuple[str, ...]] = ("parameters",)

    def element(self, call: ToolCall, index: int) -> str:
        if call.parsed is None:
            return call_object(call, "parameters", "tool_name")
        return f'{{"tool_call_id": "{index}", ' + call_object(call, "parameters", "tool_name")[1:]

    def write_content(self, content: str, before_calls: bool) -> str:
        if before_calls or not content:
            return super().write_content(content, before_calls)
        return f"<|START_RESPONSE|>{content}<|END_RESPONSE|>"
