"""Answers that are Python functions, checked by calling them in a sandbox."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

from toolstep.envs.rewards.rubric import RewardError
from toolstep.envs.rewards.verifiers import Verifier

_FORM = '{"function": "add", "cases": [[[1, 2], 3], [[0, 0], 0]]}'


class Program(Verifier):
    """The answer's code has a function that gives the expected result in each case.

    The code is the answer's last fenced block, or the whole answer.  It runs in a sandbox of the built-in tool `python`
    (needs the extra `sandbox`, or Linux for "cpython"), and what it returns is compared outside, as JSON.  Expected:
    {"function": name, "cases": [[arguments, result], ...]}, and optionally "solution", code that is right.

    timeout: seconds to load the code, and again for all cases together.  backend: the sandbox.

    Raises:
        SandboxError: there is no such sandbox here.
    """

    name = "program"

    def __init__(self, *, timeout: float = 2.0, backend: Literal["monty", "cpython"] = "monty") -> None:
        from toolstep.envs.tools.builtin.python import Python

        self._python = Python(backend, timeout=timeout, max_output=200_000)
        self.timeout, self.backend = timeout, backend

    def check(self, expected: Any) -> None:
        wanted: Mapping[str, Any] = expected if isinstance(expected, Mapping) else {}
        name, cases = wanted.get("function"), wanted.get("cases")
        if not isinstance(name, str) or not name.isidentifier() or not isinstance(cases, list | tuple) or not cases:
            raise ValueError(f"expected a function and its cases, {_FORM}, found {expected!r:.80}")
        for case in cases:
            if not isinstance(case, list | tuple) or len(case) != 2 or not isinstance(case[0], list | tuple):
                raise ValueError(f"a case is a list of arguments and a result, [[1, 2], 3], found {case!r:.80}")
            if not _is_plain(case):
                raise ValueError(f"a case must be plain JSON without nan or infinity, found {case!r:.80}")

    def verify(self, answer: str, expected: Any) -> bool:
        from toolstep.envs.tools.builtin.hidden_tests import results_of
        from toolstep.envs.tools.builtin.sandbox import SandboxError

        name, cases = expected["function"], expected["cases"]
        try:
            results, _ = results_of(self._python, self.timeout, code_of(answer), name, [case[0] for case in cases])
        except SandboxError as error:
            raise RewardError(f"reward {self.name!r} cannot be had: {error}") from error
        try:
            return _same(results, [wanted for _, wanted in cases])
        except (OverflowError, RecursionError):
            return False

    def write(self, expected: Any) -> str:
        if not isinstance(expected.get("solution"), str):
            raise ValueError("cases do not tell the code: give it as 'solution'")
        return f"```python\n{expected['solution']}\n```"

    def close(self) -> None:
        self._python.close()

    def __repr__(self) -> str:
        return f"Program(timeout={self.timeout:g}, backend={self.backend!r})"


def code_of(answer: str) -> str:
    """The last fenced block of a text, which may lack its end; the whole text where there is none."""
    found: str | None = None
    block: list[str] | None = None  # the lines of the one that is open
    for line in answer.splitlines():
        if line.lstrip().startswith("```"):
            if block is not None:
                found = "\n".join(block)
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
    if block:
        found = "\n".join(block)
    return answer if found is None else found


def _same(result: Any, wanted: Any) -> bool:
    """Whether two JSON values are equal: 3 and 3.0 are, floats to nine digits, true and 1 are not."""
    if isinstance(result, list) and isinstance(wanted, list | tuple):
        return len(result) == len(wanted) and all(map(_same, result, wanted))
    if isinstance(result, Mapping) and isinstance(wanted, Mapping):
        return result.keys() == wanted.keys() and all(_same(result[k], wanted[k]) for k in wanted)
    if isinstance(result, bool) or isinstance(wanted, bool):
        return result is wanted
    if isinstance(result, float) and isinstance(wanted, int | float):
        return math.isclose(result, wanted, rel_tol=1e-9)
    return bool(result == wanted)


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
