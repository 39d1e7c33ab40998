"""Calls one after the other in a section of the turn, each behind its own marker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from toolstep.envs.chat.formats.base import Attempt, MarkedFormat, Scan, Tools, any_of
from toolstep.envs.chat.formats.json_calls import arguments_text, call_with_arguments_at
from toolstep.envs.chat.formats.scan import skip_space
from toolstep.envs.types import CallStatus, ToolCall


class SectionFormat(MarkedFormat):
    """`BEGIN call call END`.

    begin, end: marks of the section, "" if there is none.  call_open: what each call begins with; one outside of a
    section counts too.  An attempt of which no name could be read keeps all of its text, from `call_open` on.
    """

    begin: ClassVar[str] = ""
    end: ClassVar[str] = ""
    call_open: ClassVar[str]
    lead: ClassVar[str] = ""  # written behind `begin`
    between: ClassVar[str] = ""  # written between calls
    tail: ClassVar[str] = ""  # written in front of `end`
    one_each: ClassVar[bool] = False  # each call is written in a section of its own

    def __init_subclass__(cls) -> None:
        if "markers" not in cls.__dict__:
            cls.markers = tuple(filter(None, (cls.begin, getattr(cls, "call_open", ""))))

    @abstractmethod
    def read_call(self, text: str, pos: int, found: Scan) -> int:
        """Read the call whose `call_open` ends at `pos`; the position behind it."""

    @abstractmethod
    def write_call(self, call: ToolCall, index: int, tools: Tools) -> str:
        """One call of which at least the name is known; without its closing mark if it is TRUNCATED."""

    def read(self, text: str, pos: int, marker: str, found: Scan) -> int:
        if marker == self.call_open:
            return self.read_call(text, pos, found)
        before = len(found.attempts)
        while True:
            pos = skip_space(text, pos)
            if text.startswith(self.call_open, pos):
                pos = self.read_call(text, pos + len(self.call_open), found)
            elif self.end and text.startswith(self.end, pos):
                pos += len(self.end)
                break
            elif self.begin and text.startswith(self.begin, pos):  # the end of the section was left out
                pos += len(self.begin)
            elif pos >= len(text) or (not self.end and len(found.attempts) > before):
                break
            else:
                m = any_of((self.call_open, self.end)).search(text, pos)
                stop = m.start() if m else len(text)
                what = f"text where {self.call_open.strip()}" + (f" or {self.end}" if self.end else "") + " must stand"
                found.bad(_broken(m is None), text[pos:stop].rstrip(), f"there is {what}")
                pos = stop
        if len(found.attempts) == before:
            cut = not (self.end and text.endswith(self.end, 0, pos))
            found.bad(_broken(cut), "", f"no call follows {self.begin}")
        return pos

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        if not calls:
            return ""
        raw = [c.parsed is None and not c.name for c in calls]
        parts = [c.arguments if r else self.write_call(c, i, tools) for i, (c, r) in enumerate(zip(calls, raw))]
        cut = calls[-1].status is CallStatus.TRUNCATED
        if not self.one_each:
            return self.begin + self.lead + self.between.join(parts) + ("" if cut else self.tail + self.end)
        sections = [self.begin + self.lead + part + self.tail + self.end for part in parts]
        if cut:
            sections[-1] = self.begin + self.lead + parts[-1]
        return "\n".join(sections)

    def unreadable_call(self, text: str, pos: int, close: str, found: Scan, error: str) -> int:
        """Add an attempt without a readable head, whose `call_open` ends at `pos`; the position behind it."""
        m = any_of((self.call_open, close, self.end)).search(text, pos)
        stop = len(text) if m is None else m.end() if m.group() == close else m.start()
        body = text[pos - len(self.call_open) : stop]
        found.bad(_broken(m is None), body, error)
        return stop


class HeadedJSON(SectionFormat):
    """`OPEN head SEPARATOR {arguments} CLOSE`, where the head holds the name.

    close: what ends a call, "" if nothing does.  fence: what stands between the arguments and `close`.
    """

    separator: ClassVar[str]
    close: ClassVar[str] = ""
    fence: ClassVar[str] = ""

    def name_of(self, head: str) -> str | None:
        """The name in a head; None for one that is no head."""
        return head.strip()

    def head_of(self, name: str, index: int) -> str:
        return name

    def read_call(self, text: str, pos: int, found: Scan) -> int:
        m = any_of((self.separator, self.call_open, self.close, self.end)).search(text, pos)
        name = self.name_of(text[pos : m.start()]) if m and m.group() == self.separator else None
        if m is None or name is None:
            error = f"a call begins with {self.call_open}{self.head_of('NAME', 0)}{self.separator}"
            return self.unreadable_call(text, pos, self.close, found, error)
        attempt, end = call_with_arguments_at(text, m.end(), name, self.close, self.call_open, self.fence)
        if not name:
            body = text[pos - len(self.call_open) : end]
            attempt = Attempt("", body, None, CallStatus.MISSING_NAME, "the call has no name")
        elif attempt.parsed is None and self.fence:
            attempt = replace(attempt, arguments=attempt.arguments.removesuffix(self.fence))
        found.attempts.append(attempt)
        return end

    def write_call(self, call: ToolCall, index: int, tools: Tools) -> str:
        head = self.call_open + self.head_of(call.name, index) + self.separator
        if call.status is CallStatus.TRUNCATED:
            return head + call.arguments
        return head + arguments_text(call) + self.fence + self.close


def _broken(at_end: bool) -> CallStatus:
    return CallStatus.TRUNCATED if at_end else CallStatus.MALFORMED_MARKUP
