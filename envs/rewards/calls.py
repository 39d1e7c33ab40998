"""How near the calls of an episode come to those of a reference solution."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from toolstep.envs.tasks.answers import exact_value
from toolstep.envs.tasks.conversation import since_task
from toolstep.envs.types import EpisodeRecord, ReferenceCall, ToolCall

_MOST = 256  # calls of an episode that are looked at; the rest count as wrong ones


def call_accuracy(record: EpisodeRecord) -> float | None:
    """Likeness of the calls made to `task.calls`, in [0, 1]; None where the task has no reference.

    Two calls of one tool are alike by a third each for the name, for the share of argument names that both have, and
    for the share of arguments with equal values; calls of two tools are not alike at all.  Calls are paired, the most
    alike first, and the sum over pairs is divided by the number of calls made or of the reference, whichever is larger:
    1.0 means these calls and no others, in any order.  Readable calls count, whatever became of them.
    """
    wanted = record.task.calls
    if wanted is None:
        return None
    made = _made(record)
    if not wanted and not made:
        return 1.0
    pairs = [
        (likeness(call, reference), -i, -j)
        for i, call in enumerate(made[:_MOST])
        for j, reference in enumerate(wanted)
        if call.name == reference.name
    ]
    left, right, total = set(), set(), Fraction(0)
    for value, i, j in sorted(pairs, reverse=True):
        if i not in left and j not in right:
            left.add(i)
            right.add(j)
            total += value
    return float(total / max(len(made), len(wanted)))


def _made(record: EpisodeRecord) -> list[ToolCall]:
    return [c for m in since_task(record) for c in m.tool_calls if c.parsed is not None]


def likeness(call: ToolCall, reference: ReferenceCall) -> Fraction:
    """How alike two calls are, in [0, 1]."""
    if call.name != reference.name:
        return Fraction(0)
    made: Mapping[str, Any] = call.parsed or {}
    names = made.keys() | reference.arguments.keys()
    if not names:
        return Fraction(1)
    both = made.keys() & reference.arguments.keys()
    equal = sum(same_value(made[n], reference.arguments[n]) for n in both)
    return (1 + Fraction(len(both), len(names)) + Fraction(equal, len(names))) / 3


def same_value(made: Any, wanted: Any) -> bool:
    """Whether two JSON values mean the same: numbers by value ("5", 5 and 5.0), text but for the space around it."""
    try:
        return _same(made, wanted)
    except RecursionError:
        return False


def _same(made: Any, wanted: Any) -> bool:
    if isinstance(made, Mapping) and isinstance(wanted, Mapping):
        return made.keys() == wanted.keys() and all(_same(made[k], wanted[k]) for k in wanted)
    if isinstance(made, list | tuple) and isinstance(wanted, list | tuple):
        return len(made) == len(wanted) and all(map(_same, made, wanted))
    if isinstance(made, str) and isinstance(wanted, str):
        return made.strip() == wanted.strip()
    left, right = _number(made), _number(wanted)
    if left is not None and right is not None:
        return left == right
    return type(made) is type(wanted) and bool(made == wanted)


def _number(value: Any) -> Fraction | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return exact_value(value)
    if isinstance(value, int | float):
        try:
            return Fraction(str(value))
        except (ValueError, ZeroDivisionError):  # nan, inf, more digits than Python writes
            return None
    return None
