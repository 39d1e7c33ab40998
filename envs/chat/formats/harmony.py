"""OpenAI's Harmony (gpt-oss): a turn is a row of messages, each to a channel and perhaps to a recipient."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.chat.formats.base import Finish, Scan, ToolCallFormat, Tools
from toolstep.envs.chat.formats.json_calls import arguments_text, call_with
from toolstep.envs.chat.formats.scan import BadJSON, read_value, skip_space, unreadable
from toolstep.envs.types import CallStatus, ToolCall, Turn

_MARK = re.compile(r"<\|(start|channel|message|end|call|return)\|>")
_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_LEADING = re.compile(r"\s*+to=[^\s<]")
_CHANNEL = re.compile(r"<\|channel\|>\s*+(\w+)")
_NEXT = "<|start|>assistant"


class Harmony(ToolCallFormat):
    """`<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}`.

    Messages on the channel `analysis` are thoughts, those without a recipient content.  The recipient may stand in
    front of the channel too.  Arguments left out are an error: there is no text that could be an object.
    """

    name: ClassVar[str] = "harmony"
    think_open: ClassVar[str] = "<|channel|>analysis<|message|>"
    think_close: ClassVar[str] = "<|end|>"

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        head: int | None = pos  # where the head of a message begins; the prompt has begun the first
        while pos < len(text):
            m = _MARK.search(text, pos)
            mark, at = (m[1], m.start()) if m else ("", len(text))
            if mark == "message":
                pos, head = self._message(text, text[pos if head is None else head : at], at + 11, found), None
                continue
            begun = head is not None and (head < pos or _LEADING.match(text, head) is not None)
            if head is not None and mark == "channel":
                pos = at + len("<|channel|>")
                continue
            if begun and head is not None and (m is None or _RECIPIENT.search(text, head, at)):
                self._headless(text[head:at], m is None, found)
            elif head is None or not begun:
                found.content.append(text[pos:at])
            elif text[head:at].strip():
                found.content.append(text[head:at])
            head = {"start": at, "channel": at}.get(mark)
            pos = at + (len(mark) + 4 if m else 0)

    @staticmethod
    def _headless(head: str, at_end: bool, found: Scan) -> None:
        """The head of a message that never comes."""
        if _RECIPIENT.search(head):
            status = CallStatus.TRUNCATED if at_end else CallStatus.MALFORMED_MARKUP
            found.bad(status, head, "the call ends before <|message|>")
        else:
            found.content.append(head)

    def _message(self, text: str, head: str, pos: int, found: Scan) -> int:
        """Read the message whose text begins at `pos`; the position behind it."""
        recipient, channel = _RECIPIENT.search(head), _CHANNEL.search(head)
        if recipient:
            return self._call(text, pos, recipient[1].removeprefix("functions."), found)
        if channel and channel[1] == "analysis":
            return self.thought(text, pos, found)
        m = _END.search(text, pos)
        end = m.start() if m else len(text)
        found.content.append(text[pos:end])
        return end

    @staticmethod
    def _call(text: str, pos: int, name: str, found: Scan) -> int:
        try:
            given = read_value(text, pos)
        except BadJSON as e:
            error = str(e)
        else:
            end = skip_space(text, given.end)
            if end == len(text) or _END.match(text, end):
                found.attempts.append(call_with(name, given))
                return end
            error = f"there is text behind the JSON: {text[end : end + 40]!r}"
        m = _END.search(text, pos)
        body = text[pos : m.start() if m else len(text)]
        status = unreadable(body, at_end=m is None) if body.strip() else CallStatus.INVALID_JSON
        found.bad(status, body, f"the arguments are not strict JSON: {error}", name)
        return pos + len(body)

    def write_turn(self, turn: Turn, prompt_tail: str, tools: Tools) -> str:
        opened = self.opens_thought(prompt_tail)
        parts = []
        unclosed = any(c.status is CallStatus.UNCLOSED_REASONING for c in turn.calls)
        calls = [c for c in turn.calls if c.status is not CallStatus.UNCLOSED_REASONING]
        if turn.reasoning is not None or opened:
            head = "" if opened else self.think_open
            parts.append(head + (turn.reasoning or "") + ("" if unclosed else self.think_close))
        if turn.content or not (calls or unclosed):
            channel, end = ("commentary", "<|end|>") if calls else ("final", "")
            parts.append(f"<|channel|>{channel}<|message|>{turn.content}{end}")
        if calls:
            parts.append(self.write_calls(calls, tools))
        return _NEXT.join(parts)

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        return f"<|call|>{_NEXT}".join(map(self._written, calls))

    @staticmethod
    def _written(call: ToolCall) -> str:
        if not call.name:
            return call.arguments
        head = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
        return head + arguments_text(call)
