"""A marker and one JSON list of calls: Mistral before Tekken v11, Granite 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.chat.formats.base import Attempt, Finish, Scan, ToolCallFormat, call_object, calls_from_json
from toolstep.envs.chat.formats.scan import BadJSON, skip_space, unreadable
from toolstep.envs.types import CallStatus, ToolCall

_KEYS = ("arguments", "parameters")


class MistralV3(ToolCallFormat):
    """`[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`; text in front of it, and behind it, is content.

    One list holds all calls, so one bad element spoils it.
    """

    name: ClassVar[str] = "mistral_v3"
    marker: ClassVar[str] = "[TOOL_CALLS] "
    markers: ClassVar[tuple[str, ...]] = ("[TOOL_CALLS]",)

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        start = skip_space(text, pos)
        if text.startswith(self.think_open, start):
            pos = self.thought(text, start + len(self.think_open), found)
        hits = [(at, m) for m in self.markers if (at := text.find(m, pos)) >= 0]
        if not hits:
            found.content.append(text[pos:])
            return
        at, marker = min(hits)
        found.content.append(text[pos:at])
        pos = at + len(marker)
        try:
            attempts, end = calls_from_json(text, pos, _KEYS)
        except BadJSON as e:
            body = text[pos:]
            status = unreadable(body, at_end=True)
            what = "ends in the middle of its JSON" if status is CallStatus.TRUNCATED else "is not strict JSON"
            found.attempts.append(Attempt(arguments=body, status=status, error=f"the list of calls {what}: {e}"))
            return
        found.attempts += attempts
        found.content.append(text[end:])

    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        if not calls:
            return ""
        if any(c.parsed is None for c in calls):  # a spoilt list is one attempt, kept whole
            return self.marker.rstrip() + calls[0].arguments
        return self.marker + "[" + ", ".join(call_object(c, "arguments") for c in calls) + "]"


class Granite3(MistralV3):
    """The same behind `<|tool_call|>`, or behind `<tool_call>` as text."""

    name: ClassVar[str] = "granite3"
    marker: ClassVar[str] = "<|tool_call|>"
    markers: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<tool_call>")
