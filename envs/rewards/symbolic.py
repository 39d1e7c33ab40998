"""Mathematical answers, compared by what they mean (math-verify, extra `math`)."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from toolstep.envs.rewards.stopped import StoppedVerifier
from toolstep.envs.rewards.verifiers import alternatives, check_texts
from toolstep.envs.tasks.answers import exact_value
from toolstep.envs.tools.process_limits import limited_memory

MEMORY = 1 << 30  # bytes that one verification may take beyond what sympy itself does
MAX_ANSWER = 20_000  # characters, from the end: where an answer states its result
_MARKS = ("$", "\\boxed", "\\(", "\\[")
_SHORT = 300  # characters of a text that may be one expression, without any marks


def equivalent(answer: str, expected: Any) -> bool | None:
    """Whether math-verify takes the answer for the expected one (of a list: for one of them).

    False for an answer that it cannot read, None where it cannot read what is expected.
    """
    # It warns at each call that its own time limits are off: signal.alarm, where ours kills the process.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    with limited_memory(MEMORY):
        golds = [_read(_marked(one)) for one in alternatives(expected)]
        if not all(golds):
            return None
        return any(_equal(gold, answer[-MAX_ANSWER:]) for gold in golds)


def _marked(expected: Any) -> str:
    value = exact_value(str(expected))
    text = str(expected) if value is None else str(value)  # 1e3 in LaTeX is e times 3
    return text if any(mark in text for mark in _MARKS) else f"${text}$"


def _read(text: str) -> list[Any]:
    import math_verify

    try:
        found: list[Any] = math_verify.parse(text, parsing_timeout=None)
    except Exception:  # whatever sympy raises on a foreign text
        return []
    return found


def _equal(gold: list[Any], answer: str) -> bool:
    import math_verify

    texts = [answer]
    if len(answer) <= _SHORT and not any(mark in answer for mark in _MARKS):
        texts.append(f"${answer.strip()}$")
    try:
        return any(math_verify.verify(gold, _read(text), timeout_seconds=None) for text in texts)
    except Exception:
        return False


class Math(StoppedVerifier):
    r"""The answer's last expression equals the expected one: `\frac{1}{2}` is 0.5, `x=3` is 3, sets and intervals too.

    math-verify reads both: LaTeX in `$...$` or `\boxed{}`, and plain numbers; what is expected, and an answer that is
    nothing else, may lack the marks.  It can take minutes over a tower of powers, and its own time limits need the main
    thread, so it runs in a process of its own.

    timeout: seconds of processor time after which that process is killed.

    Raises:
        ImportError: math-verify is not installed.
    """

    name = "math"
    function = staticmethod(equivalent)
    harmless = ("$1$", "$1$")

    def __init__(self, *, timeout: float = 5.0) -> None:
        super().__init__(timeout=timeout)
        if importlib.util.find_spec("math_verify") is None:
            raise ImportError("the reward 'math' needs math-verify: pip install 'toolstep[math]'")

    def check(self, expected: Any) -> None:
        check_texts(expected)

    def verify(self, answer: str, expected: Any) -> bool:
        said = exact_value(answer)
        if said is not None and said in {exact_value(str(one)) for one in alternatives(expected)}:
            return True
        return super().verify(answer, expected)
