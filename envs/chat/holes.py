"""Places in a rendering where foreign text goes, what is done to it on the way, and what can be asked about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Op = tuple[str, Any]
Question = tuple[str, tuple[Op, ...], str, Any]  # side, operations before it, what is asked, its argument


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """One foreign text.

    side: whose questions it shares ("history", "new", ...); "" for a text that is part of the memo's key, so that
    its answers need no record.  at: the index of its message.  required: the template must write it.
    """

    text: str
    side: str = ""
    at: int = -1
    required: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """A place where a piece goes, after some operations."""

    piece: Piece
    ops: tuple[Op, ...] = ()

    @property
    def text(self) -> str:
        return "".join(shown(self.ops, self.piece.text))

    def then(self, op: str, argument: Any) -> Hole:
        return Hole(self.piece, (*self.ops, (op, argument)))


def shown(ops: Iterable[Op], text: str) -> tuple[str, str, str]:
    """`text` after the operations, as white space before its core, the core, white space behind it."""
    parts = _around_core(text)
    for op, argument in ops:
        if op == "json":
            before, core, behind = (json.dumps(p, ensure_ascii=argument)[1:-1] for p in parts)
            parts = (before, core, behind)
        else:
            parts = _around_core(CUTS[op]("".join(parts), argument))
    return parts


def _around_core(text: str) -> tuple[str, str, str]:
    core = text.strip()
    start = text.find(core) if core else 0
    return text[:start], core, text[start + len(core) :]


CUTS: dict[str, Callable[[str, Any], str]] = {
    "lstrip": str.lstrip,
    "rstrip": str.rstrip,
    "without": lambda text, part: text.replace(part, ""),
}
_ANSWERS: dict[str, Callable[[str, Any], Any]] = {
    "filled": lambda text, _: text != "",
    "blank": lambda text, chars: text.strip(chars) == "",
    "starts": lambda text, prefix: text.startswith(prefix),
    "ends": lambda text, suffix: text.endswith(suffix),
    "holds": lambda text, part: part in text,
    "equals": lambda text, other: text == other,
    "length": lambda text, _: len(text),
    "longer": lambda text, n: len(text) > n,
}
HISTORY, NEW = "history", "new"  # sides: messages before the turn, and behind it (or in a first prompt)
LABELS = "label"  # the side of names and ids: short, so that even their length may be asked


def answer(question: Question, text: str) -> Any:
    """What `text` answers."""
    _, ops, asked, argument = question
    return _ANSWERS[asked]("".join(shown(ops, text)) if ops else text, argument)
