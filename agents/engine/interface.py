"""What a rollout engine is: token ids in; token ids, log-probabilities and a finish reason out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Finished, SamplingParams

Ticket = int
Ids = NDArray[np.integer] | Sequence[int]


@dataclass
class EngineStats:
    """Counters since the engine was made.

    fed: tokens that went through the model.  shared: tokens that did not have to, since another context begins alike.
    sampled: ids sampled.  forwards: calls of the model.  preemptions: turns that gave up their memory for others.
    """

    fed: int = 0
    shared: int = 0
    sampled: int = 0
    forwards: int = 0
    preemptions: int = 0


class RowFailed(RuntimeError):
    """No token can be sampled for `row`: the model's logits are not finite, or its `allow` or `until` failed."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row}: {reason}")
        self.row = row


class Partial(NamedTuple):
    """Part of a turn, id by id; see `Completion`."""

    token_ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]


@runtime_checkable
class TokenEngine(Protocol):
    """Continuous batching over rows of token ids; a client of a remote server can implement it as well.

    A row is one episode: a context that grows by what is submitted and by what is sampled.  The engine knows nothing of
    text, tools or environments.
    """

    weight_version: int

    @property
    def max_context(self) -> int:
        """Longest context of a row, in tokens."""

    @property
    def busy(self) -> bool:
        """Whether a turn is waiting, running, or finished and not collected by `step` yet."""

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row` with an empty context; `seed` alone decides what will be sampled in it."""

    def started(self, row: int) -> bool:
        """Whether `row` is in an episode."""

    def new_segment(self, row: int) -> None:
        """Empty the row's context within its episode: random numbers and penalised ids go on."""

    def release(self, row: int) -> None:
        """Forget `row` and free its memory; a turn of it that is under way is cancelled."""

    def fork(self, row: int, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of `rows` with the context of `row`, which is shared and not copied."""

    def submit(self, row: int, new_ids: Ids, sampling: SamplingParams, stop_ids: Collection[int] = ()) -> Ticket:
        """Append ids to the row's context and queue one turn; never refused for lack of room."""

    def step(self) -> list[Finished]:
        """Run one forward of everything that can be computed now; the turns that ended in it."""

    def cancel(self, ticket: Ticket) -> None:
        """Stop a turn; the row's context goes back to what it was before `submit`.  Unknown tickets are fine."""

    def update_weights(self, state: Mapping[str, Any] | None = None) -> int:
        """Take new weights, drop all keys and values, and return the new version."""
