"""Calls as markup, whose arguments are plain text."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, ClassVar

from toolstep.envs.chat.formats.base import Attempt, Scan, Tools, any_of
from toolstep.envs.chat.formats.scan import BadJSON, skip_space
from toolstep.envs.chat.formats.section import SectionFormat
from toolstep.envs.chat.formats.typed import Parameters
from toolstep.envs.types import CallStatus, ToolCall


class XMLFormat(SectionFormat):
    """`OPEN name HEAD_CLOSE (PARAMETER_OPEN key ... value PARAMETER_CLOSE)* CLOSE`.

    head: matches the name (group 1) and what ends it.  parameter: matches an opening tag and its key (group 1).  Both
    must match a text in time linear in what they take.  trim: one such character at either end of a value belongs to
    the markup.  `ToolCall.arguments` is the markup between head and `close`.
    """

    head: ClassVar[re.Pattern[str]]
    parameter: ClassVar[re.Pattern[str]]
    parameter_close: ClassVar[str]
    close: ClassVar[str]
    trim: ClassVar[str] = ""

    def read_call(self, text: str, pos: int, found: Scan) -> int:
        m = self.head.match(text, pos)
        if m is None:
            error = f"a call begins with {self.write_head('NAME')}"
            return self.unreadable_call(text, pos, self.close, found, error)
        name = m[1].strip()
        values, end, status, error = self._arguments(text, m.end(), name, found.parameters)
        body = text[m.end() : end]
        closed = text.startswith(self.close, end)
        after = end + len(self.close) if closed else end
        if not name:
            whole = text[pos - len(self.call_open) : after]
            found.bad(CallStatus.MISSING_NAME, whole, "the call has no name")
        elif status is CallStatus.OK:
            found.attempts.append(Attempt(name, body, values))
        else:
            found.bad(status, body, error, name)
        return after

    def _arguments(
        self, text: str, pos: int, name: str, parameters: Parameters
    ) -> tuple[dict[str, Any], int, CallStatus, str]:
        """Arguments from `pos` on, where they end (in front of `close`), and what is wrong with them."""
        values: dict[str, Any] = {}
        status, error = CallStatus.OK, ""
        while True:
            at = skip_space(text, pos)
            if text.startswith(self.close, at):
                return values, at, status, error
            m = self.parameter.match(text, at)
            end = text.find(self.parameter_close, m.end()) if m else -1
            if m is None or end < 0:
                return self._broken_off(text, at if m is None else len(text), values)
            value = text[m.end() : end]
            if self.trim:
                value = value.removeprefix(self.trim)
                value = value.removesuffix(self.trim)
            try:
                values[m[1].strip()] = parameters.read(name, m[1].strip(), value)
            except BadJSON as e:
                status, error = CallStatus.INVALID_JSON, f"the value of {m[1].strip()!r} cannot be read: {e}"
            pos = end + len(self.parameter_close)

    def _broken_off(self, text: str, at: int, values: dict[str, Any]) -> tuple[dict[str, Any], int, CallStatus, str]:
        stop = any_of((self.close, self.call_open, self.begin, self.end)).search(text, at)
        if stop is None:
            return values, len(text), CallStatus.TRUNCATED, f"the call ends before {self.close}"
        shown = text[at : at + 40]
        error = f"an argument is written {self.write_argument('KEY', 'VALUE').strip()!r}, found {shown!r}"
        return values, stop.start(), CallStatus.MALFORMED_MARKUP, error

    @abstractmethod
    def write_head(self, name: str) -> str:
        """`call_open`, the name, and what ends the head."""

    @abstractmethod
    def write_argument(self, key: str, value: str) -> str:
        """One argument, with the line break behind it."""

    def write_call(self, call: ToolCall, index: int, tools: Tools) -> str:
        head = self.write_head(call.name)
        if call.status is CallStatus.TRUNCATED:
            return head + call.arguments
        if call.parsed is None:
            return head + call.arguments + self.close
        parameters = Parameters(tools)
        values, end, status, _ = self._arguments(call.arguments + self.close, 0, call.name, parameters)
        if status is CallStatus.OK and end == len(call.arguments) and values == dict(call.parsed):
            return head + call.arguments + self.close  # as sampled
        written = (self.write_argument(k, parameters.write(call.name, k, v)) for k, v in call.parsed.items())
        return head + "\n" + "".join(written) + self.close
