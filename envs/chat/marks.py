"""Marks around text that is not the template's own, so that it can be found again in a rendering.

A mark is made of private-use characters that occur nowhere in the unmarked rendering.  Taken out again, what is left
must equal the unmarked rendering; then the spans between the marks are exactly the foreign text, whatever the template
did around it (JSON dumps included, also those that escape to ASCII).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Span = tuple[int, int]


@dataclass
class Found:
    """text: the rendering without marks.  spans: of each piece written, in order.  order: their numbers.

    broken: the template cut a piece, so that only one of its marks is left.
    """

    text: str
    spans: list[Span] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    broken: bool = False


class Marker:
    """Hands out numbered marks.  `plain=True` makes one that leaves text as it is."""

    def __init__(self, taken: str = "", *, plain: bool = False):
        self.plain = plain
        self.texts: list[str] = []
        self.required: list[int] = []
        if not plain:
            used = set(taken)
            # Nor dumped as ASCII JSON, from which `find` takes the marks back.
            private = map(chr, range(0xF0000, 0xFFFFD))
            free = (c for c in private if c not in used and json.dumps(c)[1:-1] not in taken)
            self._open, self._middle, self._close = next(free), next(free), next(free)

    def wrap(self, text: str, *, required: bool = True, at: int = -1) -> str:
        """`text` between marks; white space at its ends stays outside, so that a template's trimming works.

        A required piece must be written by the template.  at: the index of its message, which a `Watcher` notes.
        """
        if self.plain:
            return text
        number = len(self.texts)
        self.texts.append(text)
        if required:
            self.required.append(number)
        core = text.strip()
        lead = text[: len(text) - len(text.lstrip())] if core else ""
        tail = text[len(lead) + len(core) :]
        return f"{lead}{self._open}{number}{self._middle}{core}{self._close}{tail}"

    def label(self, text: str) -> str:
        """A name or an id: never marked."""
        return text

    def wrap_values(self, value: Any) -> Any:
        """JSON-like data with every string value wrapped; keys stay as they are."""
        if self.plain:
            return value
        if isinstance(value, str):
            return self.wrap(value, required=False)
        if isinstance(value, Mapping):
            return {k: self.wrap_values(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.wrap_values(v) for v in value]
        return value

    def find(self, shown: str) -> Found:
        """A rendering's text without the marks, and where they stood."""
        for ch in (self._open, self._middle, self._close):  # a template may dump JSON as ASCII
            shown = shown.replace(json.dumps(ch)[1:-1], ch)
        found = Found("")
        pieces: list[str] = []
        length = pos = 0
        pending: tuple[int, int] | None = None
        for m in re.finditer(f"{self._open}(\\d+){self._middle}|{self._close}", shown):
            pieces.append(shown[pos : m.start()])
            length += m.start() - pos
            pos = m.end()
            if m.group(1) is not None:
                found.broken |= pending is not None
                pending = (int(m.group(1)), length)
            elif pending is None:
                found.broken = True
            else:
                found.order.append(pending[0])
                found.spans.append((pending[1], length))
                pending = None
        pieces.append(shown[pos:])
        found.text = "".join(pieces)
        found.broken |= pending is not None
        return found
