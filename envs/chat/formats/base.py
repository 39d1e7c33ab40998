"""What a tool-call format is, and what formats share: thoughts, and calls written as JSON objects."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from toolstep.envs.chat.formats.scan import BadJSON, Value, item_starts, read_members, read_value
from toolstep.envs.types import CallStatus, ToolCall, Turn

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One thing in a turn that is, or tries to be, a call.  See `toolstep.envs.types.ToolCall`."""

    name: str = ""
    arguments: str = "{}"
    parsed: dict[str, Any] | None = None
    status: CallStatus = CallStatus.OK
    error: str = ""


@dataclass
class Scan:
    """What a format found in a turn, in the order written."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] | None = None
    attempts: list[Attempt] = field(default_factory=list)

    def think(self, text: str) -> None:
        self.reasoning = [*(self.reasoning or []), text.strip()]


class ToolCallFormat(ABC):
    """How one family of models writes thoughts and calls into a turn.  Stateless."""

    name: ClassVar[str]
    think_open: ClassVar[str] = "<think>"
    think_close: ClassVar[str] = "</think>"

    @abstractmethod
    def scan(self, text: str, pos: int, finish: Finish, found: Scan) -> None:
        """Read `text` from `pos`, where no thought is open, into `found`.  Never raises."""

    @abstractmethod
    def write_calls(self, calls: Sequence[ToolCall]) -> str:
        """The calls as a model writes them, "" for none; malformed attempts as they were sampled."""

    def parse(self, text: str, *, finish: Finish = "stop", prompt_tail: str = "", first_id: int = 0) -> Turn:
        """The turn in `text`, which has no stop token.

        prompt_tail: the end of the prompt, which may have opened a thought.
        first_id: the number of the first call's id.

        Every attempted call is there, in the order written, malformed ones with a status and an error.
        """
        found, pos = Scan(), 0
        if self.opens_thought(prompt_tail):
            if text.lstrip().startswith(self.think_open):  # a model may open it once more
                pos = text.index(self.think_open) + len(self.think_open)
            pos = self.thought(text, pos, found)
        if pos < len(text):
            self.scan(text, pos, finish, found)
        calls = tuple(
            ToolCall(f"call{first_id + i:05d}", a.name, a.arguments, a.parsed, a.status, a.error)
            for i, a in enumerate(found.attempts)
        )
        content = "\n".join(part for p in found.content if (part := p.strip()))
        reasoning = None if found.reasoning is None else "\n".join(found.reasoning)
        return Turn(content, reasoning, calls)

    def write(self, turn: Turn, *, prompt_tail: str = "") -> str:
        """The text that a model would sample for `turn` after a prompt that ends in `prompt_tail`."""
        opened = self.opens_thought(prompt_tail)
        head = ""
        if turn.reasoning is not None or opened:
            unclosed = any(c.status is CallStatus.UNCLOSED_REASONING for c in turn.calls)
            head = "" if opened else self.think_open + "\n"
            head += turn.reasoning or ""
            head += "" if unclosed else f"\n{self.think_close}\n\n"
        calls = self.write_calls([c for c in turn.calls if c.status is not CallStatus.UNCLOSED_REASONING])
        return head + turn.content + ("\n" if turn.content and calls else "") + calls

    def opens_thought(self, prompt_tail: str) -> bool:
        """Whether a prompt that ends like this leaves a thought open."""
        return prompt_tail.rstrip().endswith(self.think_open)

    def thought(self, text: str, pos: int, found: Scan) -> int:
        """Read a thought that is open at `pos`; the position behind its close, or the end of the text."""
        end = text.find(self.think_close, pos)
        if end < 0:
            found.think(text[pos:])
            found.attempts.append(
                Attempt(
                    status=CallStatus.UNCLOSED_REASONING,
                    arguments="",
                    error=f"the thought was not closed with {self.think_close}, so nothing was acted on",
                )
            )
            return len(text)
        found.think(text[pos:end])
        return end + len(self.think_close)


# ---------------------------------------------------------------------- calls as JSON objects
def call_from_members(members: dict[str, Value], source: str, keys: Sequence[str]) -> Attempt:
    """A call from the members of its JSON object; `keys` are the names under which arguments may stand."""
    name = members["name"].value if "name" in members else None
    if not isinstance(name, str) or not name:
        what = "has no name" if "name" not in members else "has a name that is not a text"
        return Attempt(arguments=source, status=CallStatus.MISSING_NAME, error=f'the call {what}: give "name" a string')
    given = next((members[k] for k in keys if k in members), None)
    if given is None:
        return Attempt(name, "{}", {})
    value = given.value
    if isinstance(value, str):  # some models dump the arguments twice
        try:
            value = read_value(value, 0).value
        except BadJSON as e:
            return Attempt(
                name,
                given.source,
                status=CallStatus.ARGUMENTS_NOT_OBJECT,
                error=f"the arguments are no object: {e}",
            )
    if not isinstance(value, dict):
        kind = {list: "a list", type(None): "null", bool: "a boolean"}.get(type(value), "a number or text")
        error = f"the arguments must be a JSON object, not {kind}"
        return Attempt(name, given.source, status=CallStatus.ARGUMENTS_NOT_OBJECT, error=error)
    return Attempt(name, given.source, value)


def calls_from_json(text: str, pos: int, keys: Sequence[str]) -> tuple[list[Attempt], int]:
    """The call, or the list of calls, that is the JSON value at `pos`, and its end.  Raises BadJSON."""
    whole = read_value(text, pos)
    if isinstance(whole.value, dict):
        members, end = read_members(text, pos)
        return [call_from_members(members, whole.source, keys)], end
    if not isinstance(whole.value, list):
        raise BadJSON("a call is a JSON object with a name and arguments")
    attempts = []
    for item, start in zip(whole.value, item_starts(text, pos), strict=True):
        attempt = Attempt(status=CallStatus.MISSING_NAME, error="an element of the list of calls is no object")
        if isinstance(item, dict):
            attempt = call_from_members(read_members(text, start)[0], whole.source, keys)
        if attempt.status is not CallStatus.OK:  # one list holds all calls: a bad element spoils it
            return [Attempt(arguments=whole.source, status=attempt.status, error=attempt.error)], whole.end
        attempts.append(attempt)
    return attempts, whole.end


def arguments_text(call: ToolCall) -> str:
    """JSON text of a good call's arguments: as sampled, where that is what `parsed` says."""
    parsed = dict(call.parsed or {})
    try:
        same = read_value(call.arguments, 0)
        value = read_value(same.value, 0).value if isinstance(same.value, str) else same.value
        if value == parsed and not call.arguments[same.end :].strip():
            return call.arguments
    except BadJSON:
        pass
    return json.dumps(parsed, ensure_ascii=False)


def call_object(call: ToolCall, key: str) -> str:
    """`{"name": ..., key: {...}}`."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{{"name": {name}, "{key}": {arguments_text(call)}}}'
