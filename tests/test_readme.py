"""The README's Python examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{i}")
    for page in PAGES
    if page.exists()
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]


@pytest.mark.parametrize("code", BLOCKS)
def test_example_runs(code: str) -> None:
    exec(code, {"__name__": "example"})


def test_docstring_examples_run() -> None:
    import doctest

    import toolstep.envs.tool_use as module

    result = doctest.testmod(module)
    assert result.attempted > 5
    assert result.failed == 0
