"""What the engine knows of one row: its ids, which of them are in the store, and its random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import FinishReason, SamplingParams
from toolstep.agents.engine.sampling import uniform_stream


class TokenBuffer:
    """A growing i32 array; appending is amortised O(1) and `view()` copies nothing."""

    def __init__(self) -> None:
        self._data = np.empty(256, np.int32)
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

    def cut(self, length: int) -> None:
        self._length = min(self._length, length)

    def view(self) -> NDArray[np.int32]:
        return self._data[: self._length]


@dataclass
class Row:
    """An episode in a slot of the store.

    ids: the whole context, prompt, sampled and observed ids in order.  sampled: the sampled ones alone.
    fed: how many leading ids are in the store.  Between `start` and the first forward of the new episode the
    store still holds the old one's cells (`stale`): a prompt that begins alike gets them for nothing.
    """

    slot: int
    seed: int
    ids: TokenBuffer = field(default_factory=TokenBuffer)
    sampled: list[int] = field(default_factory=list)
    fed: int = 0
    stale: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        self.uniforms = uniform_stream(self.seed)

    def restart(self, seed: int) -> None:
        """Begin an episode."""
        self.new_segment()
        self.seed, self.uniforms, self.sampled = seed, uniform_stream(seed), []

    def new_segment(self) -> None:
        """Empty the context; the cells of the last one stay until something is written over them."""
        if self.stale is None:
            self.stale = self.ids.view()[: self.fed].copy()
        self.ids = TokenBuffer()

    @property
    def cells(self) -> NDArray[np.int32]:
        """The ids whose keys and values are in the row's slot."""
        return (self.ids.view() if self.stale is None else self.stale)[: self.fed]

    def keep_cells(self, length: int) -> None:
        """The first `length` cells are those of the present context, the others are void."""
        self.fed, self.stale = length, None

    def drop_cells(self) -> None:
        self.fed, self.stale = 0, None


@dataclass
class Job:
    """One row's turn while it is being sampled."""

    row: int
    state: Row
    params: SamplingParams  # its max_new_tokens went into `budget`, so that rows with other limits are drawn together
    budget: int
    stop: frozenset[int]
    tokens: list[int]
    logprobs: list[float]
    model_logprobs: list[float]
    finish: FinishReason = "length"
