"""One sequence that is to be sampled, and what is heard of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from toolstep.agents.base import FinishReason, SamplingParams
from toolstep.agents.engine import Ticket
from toolstep.agents.engine.rows import Allow


class Chunk(NamedTuple):
    """Newly sampled ids with their log-probabilities and alternatives; finish: why there will be no more."""

    token_ids: list[int]
    logprobs: list[float]
    top: list[list[tuple[int, float]]]
    finish: FinishReason | None


Events = asyncio.Queue[tuple[int, "Chunk | Exception"]]
"""(index of a generation, what happened to it); shared by the generations of a request."""


@dataclass(eq=False)
class Generation:
    """What the worker samples.

    index: its place in the request.  stop_strings: texts at which it stops, looked for in the text of the sampled ids
    that are not in `hidden`.  stream: whether chunks are wanted before the end.  allow: what may be sampled.
    row, ticket, sent (ids that went out), submitted (time.monotonic): the worker's notes.
    """

    index: int
    events: Events
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()
    hidden: frozenset[int] = frozenset()
    stream: bool = False
    allow: Allow | None = None
    row: int = -1
    ticket: Ticket = -1
    sent: int = 0
    submitted: float = field(default_factory=time.monotonic)
