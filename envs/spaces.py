"""Spaces for text and for token ids.

`gymnasium.spaces.Text` with a full Unicode alphabet takes seconds to build and megabytes to pickle, and its default
alphabet does not even hold a space; `UnicodeText` accepts any text that can be encoded, at no cost.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

_SB3 = "stable_baselines3"
_PRINTABLE = "".join(map(chr, range(32, 127))) + "\n\t"


class NotForSB3:
    """What a space has whose observations stable-baselines3 has no policy for.

    SB3 asks each observation space for the attribute `spaces` and then fails on its shape, None, with words that help
    nobody.  It gets told here; everybody else, that there is no such attribute.
    """

    @property
    def spaces(self) -> None:
        module: str = sys._getframe(1).f_globals.get("__name__", "")
        if module.partition(".")[0] == _SB3:
            raise TypeError(
                f"stable-baselines3 cannot learn from {self}: its policies need arrays and a finite choice of actions. "
                'Make the env with view="menu" (docs/sb3.md)'
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'spaces'")


class UnicodeText(NotForSB3, spaces.Text):
    """Any Unicode text of `min_length` to `max_length` characters, lone surrogates excluded.

    It is a `gymnasium.spaces.Text`, so batching, concatenating and iterating work as for that; samples are short
    printable strings.
    """

    def __init__(self, max_length: int, *, min_length: int = 0, seed: int | np.random.Generator | None = None):
        super().__init__(max_length, min_length=min_length, charset=_PRINTABLE, seed=seed)

    def contains(self, x: Any) -> bool:
        if not isinstance(x, str) or not self.min_length <= len(x) <= self.max_length:
            return False
        try:
            x.encode("utf-8")
        except UnicodeEncodeError:  # a lone surrogate: no tokenizer takes it
            return False
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            raise ValueError(f"{type(self).__name__}.sample takes no mask and no probability")
        longest = min(self.max_length, max(self.min_length, 32))
        length = int(self.np_random.integers(self.min_length, longest + 1))
        return "".join(_PRINTABLE[i] for i in self.np_random.integers(len(_PRINTABLE), size=length))

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"UnicodeText({self.min_length}, {self.max_length})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, UnicodeText)
            and self.min_length == other.min_length
            and self.max_length == other.max_length
        )

    __hash__ = None  # type: ignore[assignment]


@create_shared_memory.register(UnicodeText)
def _no_shared_memory(space: UnicodeText, n: int = 1, ctx: Any = None) -> None:
    """Refuse: Gymnasium reads a text out of shared memory once, at construction, and shows that for ever."""
    raise CustomSpaceError(
        "AsyncVectorEnv with shared memory shows stale text; pass shared_memory=False "
        '(make_vec(..., vector_kwargs={"shared_memory": False})), or use the default vectorization mode'
    )


class MessageSequence(NotForSB3, spaces.Sequence):
    """Chat messages, each as the given Dict."""


class TokenSequence(NotForSB3, spaces.Sequence):
    """A ragged sequence of token ids, int64 [T], T >= 0, ids in [0, vocabulary).

    Samples are short and end with a stop id where `stop_ids` are given: as an action, a sequence without one is a turn
    that was cut by length.
    """

    def __init__(self, vocabulary: int, *, stop_ids: Seq[int] = (), seed: int | np.random.Generator | None = None):
        self.vocabulary = vocabulary
        self.stop_ids = tuple(sorted(int(i) for i in stop_ids))
        super().__init__(spaces.Discrete(vocabulary), stack=True, seed=seed)

    def contains(self, x: Any) -> bool:
        # The inherited check walks the ids one by one (16 ms for 4,096 ids).
        return (
            isinstance(x, np.ndarray)
            and x.ndim == 1
            and np.issubdtype(x.dtype, np.integer)
            and (x.size == 0 or (int(x.min()) >= 0 and int(x.max()) < self.vocabulary))
        )

    def sample(self, mask: Any = None, probability: Any = None) -> np.ndarray:
        if mask is not None or probability is not None:
            raise ValueError(f"{type(self).__name__}.sample takes no mask and no probability")
        ids = self.np_random.integers(self.vocabulary, size=int(self.np_random.integers(0, 9)))
        if self.stop_ids:
            stop = self.stop_ids[int(self.np_random.integers(len(self.stop_ids)))]
            ids = np.append(ids[~np.isin(ids, self.stop_ids)], stop)
        return ids.astype(np.int64)

    def __repr__(self) -> str:
        return f"TokenSequence({self.vocabulary})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TokenSequence) and self.vocabulary == other.vocabulary and self.stop_ids == other.stop_ids
        )

    __hash__ = None  # type: ignore[assignment]
