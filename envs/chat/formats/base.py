"""What a tool-call format is, and the thoughts that all formats share."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

from toolstep.envs.chat.errors import UnwritableTurn
from toolstep.envs.chat.formats.tools_prompt import LISTED, ToolsPrompt
from toolstep.envs.chat.formats.typed import Parameters
from toolstep.envs.types import CallStatus, ToolCall, Turn

Finish = Literal["stop", "length"]
Tools = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Attempt:
    """One thing in a turn that is, or tries to be, a call.  See `toolstep.envs.types.ToolCall`."""

    name: str = ""
    arguments: str = "{}"
    parsed: dict[str, Any] | None = None
    status: CallStatus = CallStatus.OK
    error: str = ""


@dataclass
class Scan:
    """What a format found in a turn, in the order written.  `parameters`: those of the tools on offer."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] | None = None
    attempts: list[Attempt] = field(default_factory=list)
    parameters: Parameters = field(default_factory=lambda: Parameters(()))

    def think(self, text: str) -> None:
        if self.reasoning is None:
            self.reasoning = []
        self.reasoning.append(text.strip())

    def bad(self, status: CallStatus, arguments: str, error: str, name: str = "") -> None:
        """Add a malformed attempt."""
        self.attempts.append(Attempt(name, arguments, None, status, error))


class ToolCallFormat(ABC):
    """How one family of models writes thoughts and calls into a turn.  Stateless.

    A format of your own needs `name`, `scan` and `write_calls`; see `register_format`.
    prompt: what such a model reads about its tools, where its template doesn't write it.
    announcements: texts in a template's list of tools that tell models of this family to write calls so.
    """

    name: ClassVar[str]
    prompt: ClassVar[ToolsPrompt] = LISTED
    announcements: ClassVar[tuple[str, ...]] = ()
    think_open: ClassVar[str] = "<think>"
    think_close: ClassVar[str] = "</think>"

    @abstractmethod
    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        """Read `text` from `pos`, where no thought is open, into `found`.  Never raises."""

    @abstractmethod
    def write_calls(self, calls: Sequence[ToolCall], tools: Tools = ()) -> str:
        """The calls as a model writes them, "" for none; malformed attempts as they were sampled."""

    def parse(
        self, text: str, *, finish: Finish = "stop", prompt_tail: str = "", first_id: int = 0, tools: Tools = ()
    ) -> Turn:
        """The turn in `text`, which has no stop token.  Never raises, on any text.

        Args:
            text: what the model sampled.
            finish: "length" where the sample was cut.
            prompt_tail: the end of the prompt, which may have opened a thought.
            first_id: the number of the first call's id.
            tools: the schemas of the tools on offer, for the types of arguments that are written as plain text.

        Every attempted call is there, in the order written, malformed ones with a status and an error.
        """
        found, pos = Scan(parameters=Parameters(tools)), 0
        if self.opens_thought(prompt_tail):
            at = blank_end(text, 0)
            if text.startswith(self.think_open, at):  # a model may open it once more
                pos = at + len(self.think_open)
            pos = self.thought(text, pos, found)
        if pos < len(text):
            self.scan(text, pos, finish, found)
        calls = [
            ToolCall(f"call{i:05d}", a.name, a.arguments, a.parsed, a.status, a.error)
            for i, a in enumerate(found.attempts, first_id)
        ]
        content = "\n".join(part for p in found.content if (part := p.strip()))
        reasoning = None if found.reasoning is None else "\n".join(found.reasoning)
        return Turn(content, reasoning, tuple(calls))

    def write(self, turn: Turn, *, prompt_tail: str = "", tools: Tools = ()) -> str:
        """The text that a model would sample for `turn` after a prompt that ends in `prompt_tail`.

        `parse` reads the same turn from it.  Raises UnwritableTurn for one that this format cannot express: a name with
        a line break where the name is a line, content that looks like a call, ...
        """
        text = self.write_turn(turn, prompt_tail, tools)
        cut = any(c.status is CallStatus.TRUNCATED for c in turn.calls)
        again = self.parse(text, finish="length" if cut else "stop", prompt_tail=prompt_tail, tools=tools)
        if difference := _difference(turn, again, self.opens_thought(prompt_tail)):
            raise UnwritableTurn(f"the tool-call format {self.name!r} cannot express this turn: {difference}")
        return text

    def write_turn(self, turn: Turn, prompt_tail: str, tools: Tools) -> str:
        """`write` without its check."""
        opened = self.opens_thought(prompt_tail)
        head = ""
        if turn.reasoning is not None or opened:
            unclosed = any(c.status is CallStatus.UNCLOSED_REASONING for c in turn.calls)
            head = "" if opened else self.think_open + "\n"
            head += turn.reasoning or ""
            head += "" if unclosed else f"\n{self.think_close}\n\n"
        calls = self.write_calls([c for c in turn.calls if c.status is not CallStatus.UNCLOSED_REASONING], tools)
        return head + self.write_content(turn.content, bool(calls)) + calls

    def write_content(self, content: str, before_calls: bool) -> str:
        """The text outside of thoughts and calls, as a model frames it."""
        return content + ("\n" if content and before_calls else "")

    def opens_thought(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends like this leaves a thought open."""
        return prompt_tail.rstrip().endswith(self.think_open)

    def thought(self, text: str, pos: int, found: Scan) -> int:
        """Read a thought that is open at `pos`; the position behind its close, or the end of the text."""
        end = text.find(self.think_close, pos)
        if end < 0:
            found.think(text[pos:])
            error = f"the thought was not closed with {self.think_close}, so nothing was acted on"
            found.bad(CallStatus.UNCLOSED_REASONING, "", error)
            return len(text)
        found.think(text[pos:end])
        return end + len(self.think_close)

    def leading_thought(self, text: str, pos: int, found: Scan) -> int:
        """Read the thought that `text` begins with at `pos`, if it does; where the rest begins."""
        start = blank_end(text, pos)
        if not text.startswith(self.think_open, start):
            return pos
        return self.thought(text, start + len(self.think_open), found)


class MarkedFormat(ToolCallFormat):
    """A format whose calls begin with a marker, in the middle of other text.

    frames: marks around content, which are no part of it.
    """

    markers: ClassVar[tuple[str, ...]]
    frames: ClassVar[tuple[str, ...]] = ()

    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        pattern = any_of((*self.markers, self.think_open, *self.frames))
        while pos < len(text):
            m = pattern.search(text, pos)
            if m is None:
                found.content.append(text[pos:])
                return
            mark, start = m.group(), m.start()
            if start > pos:
                found.content.append(text[pos:start])
            if mark == self.think_open:
                pos = self.thought(text, m.end(), found)
            elif mark in self.frames:
                pos = m.end()
            else:
                pos = self.read(text, m.end(), mark, found)

    @abstractmethod
    def read(self, text: str, pos: int, marker: str, found: Scan) -> int:
        """Read what stands behind a marker that ends at `pos`; the position behind it, `pos` or later."""


_BLANK = re.compile(r"\s*+")


def blank_end(text: str, pos: int) -> int:
    """The first position from `pos` on that holds no white space."""
    m = _BLANK.match(text, pos)
    return m.end() if m else pos


@cache
def any_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    """A pattern that finds the first of these texts, empty ones left out."""
    return re.compile("|".join(re.escape(m) for m in sorted(filter(None, markers), key=len, reverse=True)))


def _difference(turn: Turn, again: Turn, opened: bool) -> str:
    """What of a turn is lost when it is written and read; "" if nothing is."""
    if turn.content.strip() != again.content:
        return f"the content {turn.content[:80]!r} would be read as {again.content[:80]!r}"
    reasoning = "" if turn.reasoning is None and opened else turn.reasoning
    if (None if reasoning is None else reasoning.strip()) != again.reasoning:
        return f"the thought {str(reasoning)[:80]!r} would be read as {str(again.reasoning)[:80]!r}"
    for a, b in zip(turn.calls, again.calls):
        if a.name != b.name:
            return f"a call of {a.name[:80]!r} would be read as one of {b.name[:80]!r}"
        if a.status.value in _READING and a.status is not b.status:
            return f"a call of {a.name[:80]!r} ({a.status.value}) would be read as {b.status.value}: {b.error[:200]}"
        if _exact(a.parsed) != _exact(b.parsed):
            return f"the arguments {str(a.parsed)[:80]} of {a.name[:80]!r} would be read as {str(b.parsed)[:80]}"
    if len(turn.calls) != len(again.calls):
        return f"its {len(turn.calls)} calls would be read as {len(again.calls)}"
    return ""


def _exact(parsed: Mapping[str, Any] | None) -> str:
    """A form in which 1, 1.0 and True differ."""
    return json.dumps(None if parsed is None else dict(parsed), sort_keys=True, default=repr)


# Statuses that a reading of text can have; the others come later.
_READING = frozenset(
    s.value
    for s in (
        CallStatus.OK,
        CallStatus.INVALID_JSON,
        CallStatus.TRUNCATED,
        CallStatus.MISSING_NAME,
        CallStatus.ARGUMENTS_NOT_OBJECT,
        CallStatus.MALFORMED_MARKUP,
        CallStatus.POSITIONAL_ARGUMENT,
        CallStatus.NOT_A_LITERAL,
        CallStatus.UNCLOSED_REASONING,
    )
)
