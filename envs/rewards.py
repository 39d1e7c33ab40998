"""Rewards over a finished episode: plain functions, and weighted sums of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from types import MappingProxyType

from toolstep.envs.tasks.answers import last_number, normalised, numbers
from toolstep.envs.types import CallStatus, EpisodeRecord

Reward = Callable[[EpisodeRecord], float]

_UNREADABLE = frozenset(
    {
        CallStatus.INVALID_JSON,
        CallStatus.TRUNCATED,
        CallStatus.MISSING_NAME,
        CallStatus.ARGUMENTS_NOT_OBJECT,
        CallStatus.MALFORMED_MARKUP,
        CallStatus.POSITIONAL_ARGUMENT,
        CallStatus.NOT_A_LITERAL,
        CallStatus.UNCLOSED_REASONING,
    }
)
_UNFIT = frozenset(
    {
        CallStatus.UNKNOWN_TOOL,
        CallStatus.MISSING_ARGUMENT,
        CallStatus.UNEXPECTED_ARGUMENT,
        CallStatus.WRONG_TYPE,
    }
)


class RewardError(ValueError):
    """A reward that no learner could use: not a number, or not finite."""


def exact_match(record: EpisodeRecord) -> float:
    """1.0 if the answer is the task's, up to case, spacing and punctuation around it."""
    return float(normalised(record.answer) == normalised(str(record.task.answer)))


def number_match(record: EpisodeRecord) -> float:
    """1.0 if the last number of the answer equals the (only or last) number of the task's answer, exactly.

    "5" is not found in "1532"; `1,234.50`, `3/4` and a typographic minus are read (see `tasks.answers.numbers`).
    """
    said, wanted = last_number(record.answer), numbers(str(record.task.answer))
    return float(said is not None and bool(wanted) and bool(set(said.readings) & set(wanted[-1].readings)))


def format_errors(record: EpisodeRecord) -> float:
    """Minus the number of attempted calls that could not be read."""
    return -float(sum(s in _UNREADABLE for s in record.statuses))


def invalid_calls(record: EpisodeRecord) -> float:
    """Minus the number of readable calls that fit no tool: unknown names, wrong arguments."""
    return -float(sum(s in _UNFIT for s in record.statuses))


def tool_success(record: EpisodeRecord) -> float:
    """Share of the attempted calls that ran and succeeded; 0.0 where none was attempted."""
    return sum(s is CallStatus.OK for s in record.statuses) / len(record.statuses) if record.statuses else 0.0


def call_cost(record: EpisodeRecord) -> float:
    """Minus the number of attempted calls."""
    return -float(len(record.statuses))


def unfinished(record: EpisodeRecord) -> float:
    """-1.0 if a limit cut the episode short, else 0.0."""
    return 0.0 if record.stop_reason is None or record.stop_reason.terminated else -1.0


class Rubric:
    """A weighted sum of named rewards.

    >>> rubric = Rubric({"outcome": (1.0, number_match), "calls": (0.05, call_cost)})

    Raises:
        ValueError: a weight that is not a finite number.
    """

    def __init__(self, terms: Mapping[str, tuple[float, Reward]]) -> None:
        for name, (weight, function) in terms.items():
            if isinstance(weight, bool) or not isinstance(weight, Real) or not math.isfinite(weight):
                raise ValueError(f"reward term {name!r}: the weight must be a finite number, got {weight!r}")
            if not callable(function):
                raise ValueError(f"reward term {name!r}: expected a function of an EpisodeRecord, got {function!r}")
        self._terms = dict(terms)

    @property
    def weights(self) -> Mapping[str, float]:
        """The weight of each term."""
        return MappingProxyType({name: float(weight) for name, (weight, _) in self._terms.items()})

    def terms(self, record: EpisodeRecord) -> dict[str, float]:
        """What each term adds to the reward: weight x value.  A term of weight 0 is not computed.

        Raises:
            RewardError: a value that is not a finite number; the message names the term and the task.
        """
        return {
            name: checked(weight * checked(function(record), name, record), name, record) if weight else 0.0
            for name, (weight, function) in self._terms.items()
        }

    def __call__(self, record: EpisodeRecord) -> float:
        return math.fsum(self.terms(record).values())

    def __repr__(self) -> str:
        return f"Rubric({', '.join(f'{n}={w:g}' for n, w in self.weights.items())})"


def make_rubric(
    outcome: Reward,
    *,
    weight: float = 1.0,
    format_weight: float = 0.0,
    validity_weight: float = 0.0,
    success_weight: float = 0.0,
    call_weight: float = 0.0,
    unfinished_weight: float = 0.0,
) -> Rubric:
    """The outcome (for instance `tasks.score`) and this module's terms, which count for nothing by default.

    Terms: `outcome`, `format_errors`, `invalid_calls`, `tool_success`, `call_cost`, `unfinished`.
    Penalties are negative values, so every useful weight is positive.
    """
    return Rubric(
        {
            "outcome": (weight, outcome),
            "format_errors": (format_weight, format_errors),
            "invalid_calls": (validity_weight, invalid_calls),
            "tool_success": (success_weight, tool_success),
            "call_cost": (call_weight, call_cost),
            "unfinished": (unfinished_weight, unfinished),
        }
    )


def checked(value: object, name: str, record: EpisodeRecord) -> float:
    """`value` as a float.

    Raises:
        RewardError: it is not a finite number.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or isinstance(value, str):
        raise RewardError(
            f"reward term {name!r} gave {value!r:.80} for task {record.task.id!r}: expected a finite number"
        )
    return number
