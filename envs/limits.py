"""Limits: what cuts an episode short."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from toolstep.envs.types import StopReason


class EnvConfigError(ValueError):
    """A keyword of an environment has a value that cannot work."""


@dataclass(frozen=True)
class Limits:
    """What cuts an episode short (`truncated`), and what one turn may ask for.

    max_turns: assistant turns.  max_tokens: sampled ids in the whole episode.  max_context: ids of the whole context,
    prompt included.  max_seconds: wall clock since the reset.  max_calls: tool calls in one turn; those beyond it are
    answered `over_limit`.  tool_timeout: seconds a call may take.  max_result_tokens: length of one tool result.
    None switches a limit off.
    """

    max_turns: int | None = 8
    max_tokens: int | None = None
    max_context: int | None = None
    max_seconds: float | None = None
    max_calls: int = 8
    tool_timeout: float = 10.0
    max_result_tokens: int = 1024

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            optional = item.name in ("max_turns", "max_tokens", "max_context", "max_seconds")
            if value is None and optional:
                continue
            whole = item.name not in ("max_seconds", "tool_timeout")
            kinds = (int, np.integer) if whole else (int, float, np.integer, np.floating)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < math.inf:
                expected = (
                    ("a whole number" if whole else "a finite number") + " > 0" + (" or None" if optional else "")
                )
                raise EnvConfigError(f"{item.name} must be {expected}, got {value!r}")

    def full(self, context_tokens: int) -> bool:
        """Whether a context of so many ids leaves no room for a turn."""
        return self.max_context is not None and context_tokens >= self.max_context

    def reached(
        self, *, context_tokens: int, cut: bool, sampled_tokens: int, turns: int, seconds: float
    ) -> StopReason | None:
        """Which limit an episode has reached after a turn; cut: generation ended the turn before the model did."""
        if self.full(context_tokens):
            return StopReason.CONTEXT  # also where that is what cut the turn
        if cut:
            return StopReason.CUT_TURN
        if self.max_tokens is not None and sampled_tokens >= self.max_tokens:
            return StopReason.MAX_TOKENS
        if self.max_turns is not None and turns >= self.max_turns:
            return StopReason.MAX_TURNS
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return StopReason.WALL_CLOCK
        return None
