"""What becomes of each call that a turn attempts, before any of them runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from toolstep.envs.tools import BoundCall, Tool, resolve
from toolstep.envs.types import CallStatus, ToolCall, Turn


def settle(turn: Turn, tools: Mapping[str, Tool], *, cut: bool, max_calls: int) -> tuple[Turn, dict[int, BoundCall]]:
    """(the turn, each call with its status; what is to run, by index in `turn.calls`).

    cut: generation ended the turn before the model did.
    """
    calls, runs = [], {}
    for i, call in enumerate(turn.calls):
        settled, run = _settled(call, i, tools, cut, max_calls)
        calls.append(settled)
        if run is not None:
            runs[i] = run
    return replace(turn, calls=tuple(calls)), runs


def _settled(
    call: ToolCall, index: int, tools: Mapping[str, Tool], cut: bool, max_calls: int
) -> tuple[ToolCall, BoundCall | None]:
    if cut:  # I3: the calls of a cut turn are not run, complete ones neither
        return replace(call, status=CallStatus.TRUNCATED, error="the turn was cut off before it ended"), None
    if call.status is CallStatus.OVER_LIMIT:
        return call, None
    if index >= max_calls:
        return replace(call, status=CallStatus.OVER_LIMIT, error=f"at most {max_calls} calls in one turn"), None
    return resolve(call, tools)
