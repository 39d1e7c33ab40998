"""A model's function, called in a sandbox with inputs that it has not seen."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any

from toolstep.envs.tools.builtin.python import MAX_CODE, Python, unfenced
from toolstep.envs.tools.builtin.sandbox import SandboxError


def results_of(
    python: Python, seconds: float, code: str, name: str, inputs: Sequence[Sequence[Any]]
) -> tuple[list[Any], str]:
    """What the function `name` of `code` returns for each of the `inputs`, as far as it gets; why it gets no further.

    seconds: to load the code, and again for all calls together.  Results are what JSON makes of them (None for what it
    cannot carry), read out here, so that no `__eq__` and no `print` of the code's own has a say.  Inputs are plain data
    whose `repr` is Python.  Raises SandboxError where there is no interpreter to be had, and for nothing that the code
    does.
    """
    if len(code) > MAX_CODE:
        return [], f"the code is longer than {MAX_CODE} characters"
    session = python.session(seed=0, seconds=seconds)
    try:
        loaded = session.run(unfenced(code))
        if not loaded.started:
            raise SandboxError(loaded.error)
        told = session.told(loaded)
        if told.error is not None:
            return [], told.content
        # The mark is drawn when the code has had its say: what it prints cannot pass for a result.
        mark = secrets.token_hex(8)
        calls = "".join(f"print('{mark}', json.dumps({name}(*{arguments!r})))\n" for arguments in inputs)
        ran = session.run(f"import json\n{calls}")
    finally:
        session.close()
    lines = [line.removeprefix(mark) for line in ran.output.splitlines() if line.startswith(mark)]
    return [_decoded(line) for line in lines], "TimeoutError: stopped" if ran.timed_out else ran.error


def _decoded(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
