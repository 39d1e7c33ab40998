"""RunMetrics: how much was done in a run, and where its time went."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Part = Literal["agent_seconds", "env_seconds", "wait_seconds"]


@dataclass
class RunMetrics:
    """Counters and wall-clock seconds of a run, brought up to date while it goes on.

    They are kept apart from trajectories and summaries, because seconds are not reproducible.

    seconds: since the start.  agent_seconds, env_seconds: spent in the agent and in the env.  wait_seconds: spent in
    neither, because every row waited for its tools (counted only where tools run beside the agent; elsewhere that time
    is the env's).  tool_seconds: that tool calls took, summed over calls, many of which run at once; template_seconds:
    a part of env_seconds, spent in rendering and tokenizing; None where the env does not tell.
    episodes: finished.  generations: turns that an agent was asked for.  transitions: env steps that are part of a
    trajectory.  sampled_tokens: ids that were sampled.
    """

    seconds: float = 0.0
    agent_seconds: float = 0.0
    env_seconds: float = 0.0
    episodes: int = 0
    generations: int = 0
    transitions: int = 0
    sampled_tokens: int = 0
    wait_seconds: float = 0.0
    tool_seconds: float | None = None
    template_seconds: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Sampled ids a second of the whole run."""
        return self.sampled_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def episodes_per_second(self) -> float:
        return self.episodes / self.seconds if self.seconds > 0 else 0.0


class Clock:
    """Adds wall-clock time to the parts of a `RunMetrics`."""

    def __init__(self, metrics: RunMetrics):
        self._metrics = metrics
        self._started = time.perf_counter() - metrics.seconds

    @contextmanager
    def __call__(self, part: Part) -> Iterator[None]:
        """Add the time of the block to `part`, and bring `seconds` up to date."""
        start = time.perf_counter()
        try:
            yield
        finally:
            now = time.perf_counter()
            setattr(self._metrics, part, getattr(self._metrics, part) + now - start)
            self._metrics.seconds = now - self._started
