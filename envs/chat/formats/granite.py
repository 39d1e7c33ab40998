"""IBM's Granite: a list behind `<|tool_call|>`; the function-calling 20B: objects behind `<function_call>`."""

from __future__ import annotations

from typing import ClassVar

from toolstep.envs.chat.formats.block import JSONBlock


class Granite3(JSONBlock):
    """`<|tool_call|>[{...}, ...]`, or the same behind `<tool_call>` as text."""

    name: ClassVar[str] = "granite3"
    announcements: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<|start_of_role|>available_tools<|end_of_role|>")
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<tool_call>")


class Granite20B(JSONBlock):
    """`<function_call> {...}`, one line for each call."""

    name: ClassVar[str] = "granite20b"
    markers: ClassVar[tuple[str, ...]] = ("<function_call>",)
    as_list: ClassVar[bool] = False
    lead: ClassVar[str] = " "
