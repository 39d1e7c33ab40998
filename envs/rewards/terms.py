"""How an episode went, as numbers.  Penalties are negative values, so that every useful weight is positive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from toolstep.envs.rewards.calls import call_accuracy
from toolstep.envs.types import CallStatus, EpisodeRecord

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


def format_errors(record: EpisodeRecord) -> float:
    """Minus the number of attempted calls that could not be read."""
    return float(-sum(s in _UNREADABLE for s in record.statuses))


def invalid_calls(record: EpisodeRecord) -> float:
    """Minus the number of readable calls that fit no tool: unknown names, wrong arguments."""
    return float(-sum(s in _UNFIT for s in record.statuses))


def tool_success(record: EpisodeRecord) -> float:
    """Share of the attempted calls that ran and succeeded; 0.0 where none was attempted."""
    return sum(s is CallStatus.OK for s in record.statuses) / len(record.statuses) if record.statuses else 0.0


def call_cost(record: EpisodeRecord) -> float:
    """Minus the number of attempted calls."""
    return float(-len(record.statuses))


def token_cost(record: EpisodeRecord) -> float:
    """Minus the number of sampled ids; 0.0 where the env has no tokenizer to count with."""
    return float(-record.sampled_tokens)


def unfinished(record: EpisodeRecord) -> float:
    """-1.0 if a limit cut the episode short, else 0.0."""
    return 0.0 if record.stop_reason is None or record.stop_reason.terminated else -1.0


#: Name of a term: its value for a finished episode, None where it does not apply.
TERMS: Mapping[str, Callable[[EpisodeRecord], float | None]] = MappingProxyType(
    {
        "format": format_errors,
        "call_validity": invalid_calls,
        "call_accuracy": call_accuracy,
        "tool_success": tool_success,
        "call_cost": call_cost,
        "token_cost": token_cost,
        "unfinished": unfinished,
    }
)
