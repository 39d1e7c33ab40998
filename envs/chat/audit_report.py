"""What an audit reports: plain data, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Status = Literal["exact", "policy", "refused", "n/a", "wrong"]
_STATUSES: tuple[Status, ...] = get_args(Status)
_CONTEXT = 40  # characters shown on either side of a difference


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which a text is not what the template writes.

    at: characters from the start of the text.  expected, found: what stands there, with what precedes it.
    """

    at: int
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Check:
    """What became of one scenario.

    status: "exact", as the template writes the real conversation, in text and in ids; "policy", the delta is
        right, and `policy` names the rule by which the context differs from a new rendering; "refused", an
        error was raised instead of a wrong text (`policy` is the error's name, `detail` its message); "n/a", the
        case cannot arise (there is no second stop token); "wrong".
    """

    scenario: str
    title: str
    status: Status
    policy: str = ""
    detail: str = ""
    difference: Difference | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What the template is like.

    native_tools: the template writes schemas, calls and results itself.  parts: for each of these "native", or "text"
    where it doesn't: then schemas are text of the system message, calls are written as they are sampled, and results
    are user messages.
    stop_source: where the stop tokens were found.  rewrites: what the template does to the past when a "tool" or
    a "user" message arrives: "thoughts dropped", "system prompt dropped", "earlier text rewritten".  injection_safe:
    text of tools, users and tasks never became a control token; None without a tokenizer.
    """

    native_tools: bool
    parts: Mapping[str, str]
    tool_call_format: str
    stop_tokens: tuple[str, ...]
    stop_source: str
    system_role: bool
    writes_thoughts: bool
    rewrites: Mapping[str, tuple[str, ...]]
    injection_safe: bool | None
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The outcome for one template and tokenizer; `to_dict` is plain JSON data."""

    name: str
    facts: Facts
    checks: tuple[Check, ...] = field(default_factory=tuple)

    @property
    def counts(self) -> dict[str, int]:
        """How many scenarios have each status; their sum is the number of scenarios."""
        return {s: sum(c.status == s for c in self.checks) for s in _STATUSES}

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong.  A refusal isn't: an error is raised in place of a wrong context."""
        return not self.counts["wrong"]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "ok": self.ok, "counts": self.counts, **asdict(self)}


def first_difference(expected: str, found: str) -> Difference:
    """Where two texts part."""
    at = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), min(len(expected), len(found)))
    near = slice(max(at - _CONTEXT, 0), at + _CONTEXT)
    return Difference(at, expected[near], found[near])
