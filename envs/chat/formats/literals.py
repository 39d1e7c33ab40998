"""Literals in the syntax of a programming language, read strictly.  Nothing is evaluated."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from toolstep.envs.chat.formats.scan import MAX_DEPTH, BadJSON, read_float, read_int

_SPACE = re.compile(r"\s*+")
_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*+)(\.[0-9]*+)?|(\.[0-9]++))([eE][+-]?[0-9]++)?(?![\w.])", re.ASCII)
_WORD = re.compile(r"[^\W\d]\w*+")


class NotALiteral(ValueError):
    """The text at a position is no literal."""


class Literals(ABC):
    """Reads values from a text: numbers, strings, constants, lists and mappings."""

    constants: ClassVar[Mapping[str, Any]]

    def __init__(self, text: str):
        self.text = text

    def space(self, pos: int) -> int:
        if not self.text[pos : pos + 1].isspace():  # mostly
            return pos
        m = _SPACE.match(self.text, pos)
        return m.end() if m else pos

    def value(self, pos: int, depth: int = 0) -> tuple[Any, int]:
        """The value at `pos` (white space skipped) and its end.  Raises NotALiteral."""
        pos = self.space(pos)
        if depth > MAX_DEPTH:
            raise NotALiteral(f"values are nested more than {MAX_DEPTH} deep")
        first = self.text[pos : pos + 1]
        if first in ("[", "{"):
            return self._items(pos + 1, depth) if first == "[" else self._members(pos + 1, depth)
        if (string := self.string(pos)) is not None:
            return string
        if m := _NUMBER.match(self.text, pos):
            try:
                return (read_float if m[1] or m[2] or m[3] else read_int)(m.group()), m.end()
            except (BadJSON, ValueError) as e:
                raise NotALiteral(str(e)) from e
        if (m := _WORD.match(self.text, pos)) and m.group() in self.constants:
            return self.constants[m.group()], m.end()
        shown = self.text[pos : pos + 40]
        raise NotALiteral(f"no literal begins with {shown!r}" if shown else "the text ends where a value must stand")

    @abstractmethod
    def string(self, pos: int) -> tuple[str, int] | None:
        """The string that begins at `pos` and its end; None where none begins.  Raises NotALiteral."""

    def key(self, pos: int) -> tuple[str, int]:
        """A key of a mapping, and its end.  Raises NotALiteral."""
        string = self.string(pos)
        if string is None:
            raise NotALiteral(f"a key is a string, found {self.text[pos : pos + 40]!r}")
        return string

    def _items(self, pos: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while not self.text.startswith("]", pos := self.space(pos)):
            item, pos = self.value(pos, depth + 1)
            items.append(item)
            pos = self._comma(pos, "]")
        return items, pos + 1

    def _members(self, pos: int, depth: int) -> tuple[dict[str, Any], int]:
        members: dict[str, Any] = {}
        while not self.text.startswith("}", pos := self.space(pos)):
            key, pos = self.key(pos)
            pos = self.space(pos)
            if not self.text.startswith(":", pos):
                raise NotALiteral(f"a colon must stand behind the key {key[:40]!r}")
            members[key], pos = self.value(pos + 1, depth + 1)
            pos = self._comma(pos, "}")
        return members, pos + 1

    def _comma(self, pos: int, close: str) -> int:
        pos = self.space(pos)
        if self.text.startswith(",", pos):
            return pos + 1
        if not self.text.startswith(close, pos):
            raise NotALiteral(f"a comma or {close!r} must stand where {self.text[pos : pos + 40]!r} stands")
        return pos
