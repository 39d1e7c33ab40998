"""Conversations with watched text in place of foreign text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolstep.envs.chat.holes import HISTORY, LABELS, Hole, Piece
from toolstep.envs.chat.watched import Trace, Watched


def revealed(value: Any) -> Any:
    """JSON-like data with watched text replaced by what it stands for."""
    if isinstance(value, Watched):
        return value.text
    if isinstance(value, Mapping):
        return {k: revealed(v) for k, v in value.items()}
    return [revealed(v) for v in value] if isinstance(value, (list, tuple)) else value


class Watcher:
    """Stands in for a `Marker`: hands out watched text in place of marked text."""

    plain = False

    def __init__(self, trace: Trace, side: str, *, labels: bool = False):
        self.trace = trace
        self.required: list[int] = []
        self._side, self._labels = side, labels

    def wrap(self, text: str, *, required: bool = True, at: int = -1) -> Any:
        """Watched `text` of message `at`; without an `at`, text that is part of the memo's key."""
        required = required and at >= 0 and self._side != HISTORY
        if required:
            self.required.append(at)
        return Watched((Hole(Piece(text, self._side if at >= 0 else "", at, required)),), self.trace)

    def label(self, text: str) -> Any:
        """A name or an id."""
        return Watched((Hole(Piece(text, LABELS)),), self.trace) if self._labels else text

    def wrap_values(self, value: Any) -> Any:
        """JSON-like data with every string value watched; keys stay as they are."""
        if isinstance(value, str):
            return self.wrap(value, required=False)
        if isinstance(value, Mapping):
            return {k: self.wrap_values(v) for k, v in value.items()}
        return [self.wrap_values(v) for v in value] if isinstance(value, (list, tuple)) else value
