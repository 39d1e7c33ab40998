"""What is to be said of the calls of one tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from toolstep.envs.checker.observe import Seen
from toolstep.envs.checker.report import Level, Report
from toolstep.envs.tools.encode import shorten
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import CallStatus

INLINE_SHARE = 0.1  # of what is slow: all rows wait for an "inline" tool
# Exceptions of which a model can make nothing: they tell of a mistake in the code, whatever the arguments were.
_BUGS = frozenset({
    "AttributeError", "ImportError", "IndentationError", "MemoryError", "NameError", "NotImplementedError",
    "RecursionError", "SyntaxError", "TypeError", "UnboundLocalError", "PicklingError",
})  # fmt: skip
# Those that tell too little.
_TERSE = frozenset({"AssertionError", "IndexError", "KeyError", "StopIteration", "UnicodeError", "ZeroDivisionError"})
_EXITS = frozenset({"SystemExit", "KeyboardInterrupt", "GeneratorExit"})


@dataclass(frozen=True, slots=True)
class Bounds:
    """slow: seconds beyond which a call is slow.  max_chars: characters beyond which a result is large."""

    slow: float = 1.0
    max_chars: int = 65_536


def judge(tool: Tool, calls: Sequence[Seen], bounds: Bounds, report: Report) -> None:
    """Findings about calls whose arguments were right.  The first call that shows a fault is told."""

    def add(code: str, level: Level, shows: Callable[[Seen], bool], what: Callable[[Seen], str], fix: str) -> bool:
        found = [call for call in calls if shows(call)]
        if found:
            of = f" ({len(found)} of {len(calls)} calls)" if len(calls) > 1 else ""
            report.add(code, level, tool.name, what(found[0]) + of, fix, found[0].shown)
        return bool(found)

    add(
        "hangs",
        "error",
        lambda c: c.status is CallStatus.TOOL_TIMEOUT and not c.returned,
        lambda c: f"It did not return within {c.seconds:.3g} s." + _left(tool),
        'Give what it waits for a deadline of its own, or let it run in a process, which is killed: run_in="process".',
    )
    add(
        "exits",
        "error",
        lambda c: bool(_EXITS.intersection(c.raised)) or (not c.returned and "ended its process" in c.text),
        lambda c: f"It ends the process that it runs in: {c.text}{_at(c)}.",
        "Raise ValueError with a message for the model instead of sys.exit or os._exit.",
    )
    add(
        "dies",
        "error",
        lambda c: not c.returned and "killed by signal" in c.text,
        lambda c: f"Its process died: {c.text}.",
        "Look for a crash in native code, or for too much memory.",
    )
    add(
        "worker",
        "error",
        lambda c: not c.returned and c.status is CallStatus.TOOL_ERROR and not _told_above(c),
        lambda c: f"It could not be called: {c.text}",
        "See what the message names.",
    )
    crashed = add(
        "raises",
        "error",
        lambda c: bool(c.raised) and c.raised[0] in _BUGS,
        lambda c: f"It raises {c.text}{_at(c)} for arguments that its schema allows.",
        "Mend the code. What a model did wrong is told by ValueError with a message that says what to do.",
    )
    bad = [c for c in calls if c.status is not None or c.not_json]
    ordinary = [c for c in bad if c.raised and not _EXITS.intersection(c.raised) and c.raised[0] not in _BUGS]
    same = len({c.text for c in ordinary}) == 1 and len(ordinary) == len(calls)
    if same and not crashed:
        add(
            "raises",
            "error",
            lambda c: bool(c.raised),
            lambda c: f"Every call raises the same, whatever the arguments are: {c.text}{_at(c)}.",
            "Mend what it needs to run; or, if the values mean nothing to it, say which do: Field(examples=[...]) or "
            "check_tool(..., examples=[{...}]).",
        )
    elif ordinary and len(ordinary) == len(calls):
        report.add(
            "never-succeeds",
            "note",
            tool.name,
            f"None of {len(calls)} calls succeeded, so what it returns was not checked. The first: {calls[0].text}",
            "Say which values mean something to it: Field(examples=[...]), or check_tool(..., examples=[{...}]).",
            calls[0].shown,
        )
    if not same:
        add(
            "unhelpful-error",
            "warning",
            lambda c: bool(c.raised) and (c.raised[0] in _TERSE or ":" not in c.text),
            lambda c: f"A model reads only {shorten(c.text, 120)!r}{_at(c)}.",
            "Raise ValueError with a message that says what was wrong and what to do; or let the schema forbid it.",
        )
    _results(tool, calls, bounds, add)


def _results(tool: Tool, calls: Sequence[Seen], bounds: Bounds, add: Callable[..., bool]) -> None:
    add(
        "not-json",
        "error",
        lambda c: bool(c.not_json),
        lambda c: f"A model cannot read what it returns: {c.not_json}.",
        'Return text, a number, a list or a dict. A coroutine function runs in run_in="async".',
    )
    add(
        "return-type",
        "error",
        lambda c: bool(c.type_problem),
        lambda c: f"It returns something else than it says: {c.type_problem}.",
        "Change the annotation, or what is returned.",
    )
    add(
        "large-result",
        "error",
        lambda c: c.returned and c.size > bounds.max_chars,
        lambda c: f"It returned {c.size:,} characters; an env shows the first 1,024 tokens of them.",
        "Return a part, and let the model ask for the next one (a page number, a query).",
    )
    add(
        "control-tokens",
        "warning",
        lambda c: bool(c.control),
        lambda c: (
            f"Its result holds what chat templates write between messages: {', '.join(map(repr, c.control))}. "
            "It can never become a control token here; other programs are not so careful."
        ),
        "Strip such marks from what comes from elsewhere.",
    )
    add(
        "bad-unicode",
        "warning",
        lambda c: c.bad_unicode,
        lambda c: "Its result has half of a surrogate pair, which no tokenizer takes; a model sees \ufffd there.",
        'Decode bytes with errors="replace", and never cut UTF-16 text in the middle.',
    )
    good = [c.seconds for c in calls if c.returned and c.status is None] or [c.seconds for c in calls if c.returned]
    limit = bounds.slow * INLINE_SHARE if tool.run_in == "inline" else bounds.slow
    if good and min(good) > limit:
        alone = "inline" if tool.run_in == "inline" else "slow"
        why = (
            'it runs "inline", where all rows wait for it'
            if alone == "inline"
            else "a step takes as long as its slowest call"
        )
        add(
            "slow",
            "warning",
            lambda c: c.returned and c.seconds > limit,
            lambda c: f"Even its fastest call took {min(good):.2g} s, and {why}.",
            'Use run_in="thread" or "process".'
            if alone == "inline"
            else "Keep what it loads, or prepare it when the episode begins.",
        )


def _left(tool: Tool) -> str:
    if tool.run_in == "process":
        return " Its process was killed."
    if tool.run_in == "async":
        return " It was cancelled."
    if tool.run_in == "inline":
        return ' It runs "inline": in an env nothing could stop it, and all rows would hang.'
    return " A thread cannot be stopped, so it runs on."


def _told_above(call: Seen) -> bool:
    return "ended its process" in call.text or "killed by signal" in call.text


def _at(call: Seen) -> str:
    return f" at {call.place}" if call.place else ""
