"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes, Qwen 2.5 and 3, MiniMind, SmolLM, Reka, ..."""

from __future__ import annotations

from typing import ClassVar

from toolstep.envs.chat.formats.block import JSONBlock
from toolstep.envs.chat.formats.tools_prompt import HERMES, ToolsPrompt


class HermesJSON(JSONBlock):
    """One JSON object, or a list of them, in each pair of tags; text and thoughts between them."""

    name: ClassVar[str] = "hermes_json"
    prompt: ClassVar[ToolsPrompt] = HERMES
    announcements: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    markers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    close: ClassVar[str] = "</tool_call>"
    as_list: ClassVar[bool] = False
    lead: ClassVar[str] = "\n"
    tail: ClassVar[str] = "\n"


class MiniMind(HermesJSON):
    """MiniMind's form of it, which is the same."""

    name: ClassVar[str] = "minimind"
