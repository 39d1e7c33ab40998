"""What the engine knows of one row and of one turn: ids, random numbers, and where the keys and values are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion, FinishReason, SamplingParams
from toolstep.agents.engine.sampling import uniform_stream

if TYPE_CHECKING:
    from toolstep.agents.engine.spans import Span

Allow = Callable[[Sequence[int]], NDArray[np.bool_] | None]
Until = Callable[[Sequence[int]], bool]
_DRAW = 128  # uniform numbers drawn at a time


class TokenBuffer:
    """A growing i32 array; appending is amortised O(1) and `view()` copies nothing."""

    __slots__ = ("_data", "_length")

    def __init__(self, room: int = 256) -> None:
        self._data = np.empty(room, np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def extend(self, ids: NDArray[np.integer] | Sequence[int]) -> None:
        end = self._length + len(ids)
        if end > len(self._data):
            data = np.empty(max(end, 2 * len(self._data)), np.int32)
            data[: self._length] = self._data[: self._length]
            self._data = data
        self._data[self._length : end] = ids
        self._length = end

    def append(self, token: int) -> None:
        if self._length == len(self._data):
            self.extend((token,))
            return
        self._data[self._length] = token
        self._length += 1

    def cut(self, length: int) -> None:
        self._length = min(self._length, length)

    def view(self) -> NDArray[np.int32]:
        return self._data[: self._length]


@dataclass(eq=False)
class Row:
    """An episode.

    ids: the whole context, prompt, sampled and observed ids in order.  sampled: the sampled ones alone.
    leaf: the span that ends the context and gets its next ids; None where nothing of the context is in the pool (at
    first, after a preemption, after new weights).  stale: the leaf of the context before the present one, kept until
    the new one is looked up: a prompt that begins alike gets those cells for nothing.
    """

    seed: int
    ids: TokenBuffer = field(default_factory=TokenBuffer)
    sampled: list[int] = field(default_factory=list)
    leaf: Span | None = None
    stale: Span | None = None
    turn: Turn | None = None

    def __post_init__(self) -> None:
        self.reseed(self.seed)

    def reseed(self, seed: int) -> None:
        """Begin the episode's stream of random numbers."""
        self.seed, self.sampled = seed, []
        self._stream = uniform_stream(seed)
        self._uniforms: list[float] = []
        self._drawn_before = 0

    def fork(self, sampled: Sequence[int]) -> None:
        """Take over the sampled ids of another row: the penalties count them, the stream of random numbers does not."""
        self.sampled, self._drawn_before = list(sampled), len(sampled)

    def uniform(self) -> float:
        """The random number of the next sampled id: number n of the stream for id number n, however often asked."""
        index = len(self.sampled) - self._drawn_before
        while index >= len(self._uniforms):
            self._uniforms += self._stream.random(_DRAW).tolist()
        return self._uniforms[index]


@dataclass(eq=False)
class Turn:
    """One row's turn from `submit` until it is finished.

    before: lengths of context and sampled ids at `submit`, which `cancel` goes back to.  limit: most tokens of it.
    version: of the weights that sampled its first token (of an update in the middle of a turn the older one, so that
    staleness is never understated).
    """

    ticket: int
    row: int
    state: Row
    params: SamplingParams
    limit: int
    stop: frozenset[int]
    before: tuple[int, int]
    allow: Allow | None = None
    until: Until | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: FinishReason | None = None
    version: int | None = None

    def completion(self, version: int) -> Completion:
        return Completion(
            np.array(self.tokens, np.int32),
            np.array(self.logprobs, np.float32),
            np.array(self.model_logprobs, np.float32),
            self.finish or "length",
            version if self.version is None else self.version,
            list(self.top),
        )
