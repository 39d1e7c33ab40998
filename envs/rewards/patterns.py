"""Answers that a regular expression describes."""

from __future__ import annotations

import re
from typing import Any

from toolstep.envs.rewards.stopped import StoppedVerifier


def matches(answer: str, expected: str) -> bool:
    """Whether the pattern is found in the answer."""
    return re.search(expected, answer) is not None


class Regex(StoppedVerifier):
    r"""The expected pattern (of Python's `re`) is found somewhere in the answer.

    Anchor it where the whole answer is meant: `\A\s*(?i:paris)\.?\s*\Z`.  Python's matching can take exponential time
    on an unlucky text, and keeps every thread of a process waiting meanwhile, so it runs in a process of its own.

    timeout: seconds of processor time after which that process is killed.
    """

    name = "regex"
    function = staticmethod(matches)
    harmless = ("", "")

    def __init__(self, *, timeout: float = 2.0) -> None:
        super().__init__(timeout=timeout)

    def check(self, expected: Any) -> None:
        if not isinstance(expected, str):
            raise ValueError(f"expected a regular expression as text, found {expected!r:.80}")
        try:
            re.compile(expected)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(f"{expected!r:.80} is no regular expression: {error}") from None

    def write(self, expected: Any) -> str:
        raise ValueError("a pattern does not tell an answer")
