"""Contexts of finished requests, kept so that the next turn of a conversation finds its beginning computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.engine import Engine


class KeptContexts:
    """Rows of the engine that are over, the least recently used first; `tokens` is the sum of their lengths.

    limit: most tokens that may be kept.  The engine finds by itself what a new prompt has in common with them.
    """

    def __init__(self, engine: Engine, limit: int) -> None:
        self._engine, self._limit = engine, limit
        self._rows: dict[int, NDArray[np.int32]] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: int) -> None:
        """Keep a finished row; a context that it continues is in it, and goes."""
        ids = self._engine.context(row)
        for other, known in list(self._rows.items()):
            if len(known) <= len(ids) and np.array_equal(known, ids[: len(known)]):
                self._release(other)
        self._rows[row] = ids
        self.tokens += len(ids)
        while self.tokens > self._limit:
            self.drop_oldest()

    def touch(self, prompt_ids: Sequence[int]) -> None:
        """The context that has most in common with a new prompt is used now."""
        prompt = np.asarray(prompt_ids)
        best = max(self._rows, key=lambda row: common(self._rows[row], prompt), default=None)
        if best is not None and common(self._rows[best], prompt):
            self._rows[best] = self._rows.pop(best)

    def drop_oldest(self) -> bool:
        """Release the least recently used context; False where there is none."""
        if not self._rows:
            return False
        self._release(next(iter(self._rows)))
        return True

    def clear(self) -> None:
        while self.drop_oldest():
            pass

    def _release(self, row: int) -> None:
        self.tokens -= len(self._rows.pop(row))
        self._engine.release(row)


def common(a: NDArray[np.int32], b: NDArray[np.integer]) -> int:
    """Number of ids with which both begin."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
