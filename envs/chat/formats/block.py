"""Calls as JSON behind a marker, alone or in a list, with or without a closing tag.

Most formats are of this kind; each of them is a few lines that say which tags and which keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.chat.formats.base import Attempt, MarkedFormat, Scan, Tools, any_of
from toolstep.envs.chat.formats.json_calls import KEYS, call_object, calls_from_json
from toolstep.envs.chat.formats.scan import BadJSON, call_end, skip_space, unreadable
from toolstep.envs.types import CallStatus, ToolCall


class JSONBlock(MarkedFormat):
    """`MARKER {"name": ..., "arguments": {...}} CLOSE`, or a list of such objects.

    markers: what a block can begin with.  opening: what is written, the first of them by default.
    close: what ends a block, "" if nothing does.
    as_list: all calls are written as one list in one block; then one bad element spoils it.
    lead, tail: what is written around the JSON.  brackets: how a list is written.
    name_key, argument_keys: members of a call's object.
    """

    opening: ClassVar[str] = ""
    close: ClassVar[str] = ""
    brackets: ClassVar[tuple[str, str, str]] = ("[", ", ", "]")
    as_list: ClassVar[bool] = True
    lead: ClassVar[str] = ""
    tail: ClassVar[str] = ""
    name_key: ClassVar[str] = "name"
    argument_keys: ClassVar[tuple[str, ...]] = KEYS

    def read(self, text: str, pos: int, marker: str, found: Scan) -> int:
        try:
            attempts, end = self.calls_at(text, pos)
        except BadJSON as e:
            error = str(e)
        else:
            after = skip_space(text, end)
            if self.close and text.startswith(self.close, after):
                found.attempts += attempts
                return after + len(self.close)
            if not self.close or text.find(self.close, after, self._next(text, after)) < 0:  # the tag was left out
                found.attempts += attempts
                return end
            error = f"there is text between the JSON and {self.close}"
        limit = self._next(text, pos)
        end, closed = call_end(text, pos, self.close, limit) if self.close else (limit, False)
        body = text[pos:end]
        status = unreadable(body, at_end=not closed and end == len(text))
        if status is CallStatus.TRUNCATED:
            error = f"the call ends in the middle of its JSON: {error}"
        else:
            error = f"the text behind {marker.strip()} is not strict JSON: {error}"
        found.bad(status, body, error)
        return end + len(self.close) if closed else end

    def _next(self, text: str, pos: int) -> int:
        following = any_of(self.markers).search(text, pos)
        return following.start() if following else len(text)

    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        if self.as_list and calls and all(c.parsed is not None for c in calls):
            return self._block(self._listed([self.element(c, i) for i, c in enumerate(calls)]))
        return "\n".join(self._alone(c, i) for i, c in enumerate(calls))

    def calls_at(self, text: str, pos: int) -> tuple[list[Attempt], int]:
        """The calls in the JSON at `pos`, and where it ends.  Raises BadJSON."""
        attempts, end = calls_from_json(text, pos, self.argument_keys, self.name_key)
        if not attempts:  # the marker says that a call was meant
            attempts = [Attempt("", text[pos:end], None, CallStatus.MISSING_NAME, "the list of calls is empty")]
        return attempts, end

    def element(self, call: ToolCall, index: int) -> str:
        """The JSON object of one call."""
        return call_object(call, self.argument_keys[0], self.name_key)

    def _alone(self, call: ToolCall, index: int) -> str:
        if call.status is CallStatus.TRUNCATED:
            return self._opening + call.arguments
        if call.parsed is None and not call.name:  # all of the attempt was kept
            return self._opening + call.arguments + self.close
        if call.parsed is not None and self.as_list:
            return self._block(self._listed([self.element(call, index)]))
        return self._block(self.element(call, index))

    @property
    def _opening(self) -> str:
        return self.opening or self.markers[0]

    def _listed(self, elements: Sequence[str]) -> str:
        start, between, end = self.brackets
        return start + between.join(elements) + end

    def _block(self, body: str) -> str:
        return self._opening + self.lead + body + self.tail + self.close
