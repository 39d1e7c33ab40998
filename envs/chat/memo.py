"""What renderings of a template have taught: deltas and prompts as texts with holes, found again without rendering.

The key of an entry holds everything that a rendering depends on: the shape of the conversation (roles, calls), tools
and variables as they are, and of each watched text its answers to *all* questions that this template was ever seen to
ask.  By induction over the steps of the rendering, a conversation with the same key takes the same steps: each step
depends on constants, on the key, and on answers, and the answers are those of the entry.  So the entry's text, its
holes filled anew, is what a rendering would be.  A question that was not known yet makes a new set of entries.
"""

from __future__ import annotations

import marshal
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

from toolstep.envs.chat.holes import HISTORY, LABELS, NEW, Hole, Piece, Question, answer
from toolstep.envs.chat.provenance import Written, place
from toolstep.envs.chat.turns import safe_name
from toolstep.envs.types import Message, ToolCall

_MAX_QUESTIONS = 256  # a template that asks more is not remembered
_LOOK_BACK = 16  # messages: more than one step adds
_ENTRY = 400  # bytes of an entry besides its text


class NoKey(Exception):
    """Something is of a kind that can't be compared by value: the conversation is rendered each time."""


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A text with holes.  parts: literals, holes of constants, and (side, index, operations, required) for the rest."""

    parts: tuple[Any, ...]
    inserted: str
    notes: tuple[str, ...]

    @classmethod
    def of(cls, written: Written) -> Skeleton:
        """Raises NoKey for a text that was not traced, or in which a name or an id of the history stands."""
        if written.holes is None or any(h.piece.side == LABELS for _, _, h in written.holes):
            raise NoKey
        parts: list[Any] = []
        end = 0
        for a, b, hole in written.holes:
            piece = hole.piece
            parts += [written.text[end:a], (piece.side, piece.at, hole.ops, piece.required) if piece.side else hole]
            end = b
        return cls((*parts, written.text[end:]), written.inserted, written.notes)

    def fill(self, sides: Mapping[str, Sequence[Message]]) -> Written:
        """The text with the contents of these messages in its holes."""
        parts: list[str | Hole] = []
        for p in self.parts:
            if type(p) is tuple:
                side, at, ops, required = p
                parts.append(Hole(Piece(sides[side][at].content, side, at, required), ops))
            else:
                parts.append(p)
        return replace(place(parts), inserted=self.inserted, notes=self.notes)

    @property
    def size(self) -> int:
        return _ENTRY + sum(len(p) for p in self.parts if isinstance(p, str))


class Known:
    """Everything that is known under one set of questions.

    contents: whether the history's tool results are written as they are, so that they may be asked.
    labels: whether names and ids of the history are watched, or part of the key as they are.
    """

    def __init__(self, questions: Mapping[str, tuple[Question, ...]], *, contents: bool, labels: bool):
        self.questions, self.contents, self.labels = questions, contents, labels
        self.entries: OrderedDict[Any, Skeleton | None] = OrderedDict()
        self.size = 0  # of the entries
        self.shapes = 0  # of what the keys are made of
        self._numbers: dict[Any, int] = {}
        self._histories: dict[int, tuple[tuple[Message, ...], int]] = {}  # by the identity of the last message
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ keys
    def delta_key(
        self,
        history: Sequence[Message],
        calls: Sequence[tuple[str, str]],
        new: Sequence[Message],
        given: list[Any],
        *rest: Any,
    ) -> Any:
        """Raises NoKey.  given: tools and variables."""
        shapes = tuple(map(self._shape, new))
        return "delta", self._history(history), tuple(calls), shapes, self._constants(given), rest

    def prompt_key(self, messages: Sequence[Message], given: list[Any]) -> Any:
        """Raises NoKey."""
        shapes = (_all_of(m) if m.role == "assistant" else self._shape(m) for m in messages)
        return "prompt", self._number(tuple(shapes)), self._constants(given)

    def _history(self, history: Sequence[Message]) -> int:
        """A number that two histories share if all of their messages have the same shapes.

        A history is mostly one that was seen a step ago, with a few messages more: only those are looked into.
        """
        n = len(history)
        number, more = -1, n
        for back in range(min(n, _LOOK_BACK)):
            seen = self._histories.get(id(history[n - 1 - back]))
            if seen is not None and len(seen[0]) == n - back and all(map(is_, seen[0], history)):
                number, more = seen[1], back
                break
        for m in history[n - more :]:
            number = self._number((number, self._history_shape(m)))
        if more:
            with self._lock:
                self._histories[id(history[-1])] = (tuple(history), number)
                self.shapes += 8 * n + sum(_ENTRY + len(m.content) for m in history[n - more :])
        return number

    def _history_shape(self, m: Message) -> Any:
        """What is left of an earlier message when a delta is written (`Turns.skeleton`)."""
        if m.role == "assistant":
            if self.contents:
                return m.role
            calls = ((self._label(safe_name(c.name)), self._label(c.id)) for c in m.tool_calls)
            return m.role, bool(m.content), bool(m.reasoning), *calls
        if m.role == "tool" and not self.contents:
            return m.role, *self._labels(m)
        return (*self._shape(m, HISTORY)[:1], *self._labels(m), self._answers(HISTORY, m.content))

    def _shape(self, m: Message, side: str = NEW) -> Any:
        if m.tool_calls or m.reasoning is not None or type(m.content) is not str:
            raise NoKey
        return m.role, m.name, m.tool_call_id, self._answers(side, m.content)

    def _labels(self, m: Message) -> tuple[Any, Any]:
        return tuple(  # type: ignore[return-value]
            None if text is None else self._label(safe_name(text)) for text in (m.name, m.tool_call_id)
        )

    def _label(self, text: str) -> Any:
        return self._answers(LABELS, text) if self.labels else text

    def _answers(self, side: str, text: str) -> tuple[Any, ...]:
        asked = self.questions.get(side)
        return tuple([answer(q, text) for q in asked]) if asked else ()

    def _constants(self, given: list[Any]) -> int:
        try:
            return self._number(marshal.dumps(given, 0))  # version 0: equal values give equal bytes
        except ValueError as e:
            raise NoKey from e

    def _number(self, shape: Any) -> int:
        number = self._numbers.get(shape)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(shape, len(self._numbers))
                self.shapes += _ENTRY + (len(shape) if isinstance(shape, bytes) else 0)
        return number


def _all_of(m: Message) -> Any:
    def call(c: ToolCall) -> Any:
        try:
            parsed = None if c.parsed is None else marshal.dumps(dict(c.parsed), 0)
        except ValueError as e:
            raise NoKey from e
        return c.id, c.name, c.arguments, c.status, parsed

    return m.role, m.content, m.reasoning, m.name, m.tool_call_id, *map(call, m.tool_calls)


class _Absent:
    pass


_ABSENT = _Absent()


class Memo:
    """Bounded, thread-safe, one for all rows of a template.  A copy in another process begins empty.

    entries, size: the most entries, and about the most bytes of them, that are kept; the least recently used go first.
    The shapes of messages from which keys are made take at most as many bytes again; then all is begun anew.
    """

    def __init__(self, *, contents: bool, entries: int = 4096, size: int = 32 << 20):
        self._contents, self._entries, self._size = contents, entries, size
        self._lock = threading.Lock()
        self.known = Known({}, contents=contents, labels=True)
        self.hits = self.misses = 0

    def __reduce__(self) -> Any:
        return _empty, (self._contents, self._entries, self._size)

    def find(self, known: Known, key: Any) -> tuple[bool, Skeleton | None]:
        """(whether there is an entry, the entry); the entry is None where the template is known to be untraceable."""
        with self._lock:
            entry = known.entries.get(key, _ABSENT)
            found = not isinstance(entry, _Absent)
            self.hits += found
            self.misses += not found
            if found:
                known.entries.move_to_end(key)
            if known.shapes > self._size and known is self.known:  # begin anew
                self.known = Known(known.questions, contents=self._contents, labels=known.labels)
        return (True, entry) if not isinstance(entry, _Absent) else (False, None)

    def add(self, questions: Iterable[Question], key_of: Callable[[Known], Any], skeleton: Skeleton | None) -> None:
        """Keep an entry that asked `questions`."""
        known = self._asking(questions)
        if known is None or not self._entries:
            return
        try:
            key = key_of(known)
        except NoKey:
            return
        with self._lock:
            if key not in known.entries:
                known.size += _ENTRY + (skeleton.size if skeleton else 0)
                known.entries[key] = skeleton
            while len(known.entries) > self._entries or (known.size > self._size and known.entries):
                _, gone = known.entries.popitem(last=False)
                known.size -= _ENTRY + (gone.size if gone else 0)

    def watch_no_labels(self) -> None:
        """From now on names and ids of the history are part of the key: the template compares them."""
        with self._lock:
            self.known = Known(self.known.questions, contents=self._contents, labels=False)

    def _asking(self, questions: Iterable[Question]) -> Known | None:
        with self._lock:
            old = {q for asked in self.known.questions.values() for q in asked}
            more = old.union(questions)
            if len(more) > _MAX_QUESTIONS:
                return None
            if len(more) > len(old):
                sides = {q[0] for q in more}
                ordered = {side: tuple(sorted((q for q in more if q[0] == side), key=repr)) for side in sides}
                self.known = Known(ordered, contents=self._contents, labels=self.known.labels)
            return self.known


def _empty(contents: bool, entries: int, size: int) -> Memo:
    return Memo(contents=contents, entries=entries, size=size)
