"""An agent whose rows need no common turn: submit a row when it is ready, take turns as they are finished."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion, TokenAgent


@runtime_checkable
class ContinuousAgent(TokenAgent, Protocol):
    """A token agent over an engine with continuous batching.

    `start(row, seed)` begins an episode as for any token agent; then, instead of `act` with many rows, `submit` for
    each row and `step` until its turn comes out.  What is sampled in an episode depends on its seed and its own ids
    alone, never on when other rows were submitted.

    An agent may also offer `release(row)`: no further episode is to come in that row.
    """

    @property
    def busy(self) -> bool:
        """Whether a submitted turn has neither come out of `step` nor been cancelled."""

    def submit(self, row: int, observation: NDArray[np.int64]) -> int:
        """Append observation ids to the row's context and queue one turn of it.  Returns a ticket; never blocks."""

    def step(self) -> list[tuple[int, Completion]]:
        """Compute a little for the rows under way; the (row, turn) pairs that are finished by it, often none."""

    def cancel(self, ticket: int) -> None:
        """Give a submitted turn up; the row's context is what it was before.  A finished ticket is fine."""
