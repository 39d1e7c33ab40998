"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(name: str, tmp_path: Path) -> str:
    """What an example prints; `toolstep` is this checkout."""
    package = tmp_path / "path" / "toolstep"
    package.mkdir(parents=True)
    for room in ("envs", "agents", "rollout"):
        (package / room).symlink_to(ROOT / room)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def statements(name: str) -> int:
    """Lines of an example that are neither empty, nor imports, nor its docstring, nor what it prints."""
    lines = (ROOT / "examples" / name).read_text().splitlines()[1:]
    return sum(bool(line.strip()) and not line.strip().startswith(("import", "from", "print(")) for line in lines)


def test_an_mcp_server_is_an_environment(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    assert statements("mcp_server.py") <= 10
    out = run("mcp_server.py", tmp_path)
    assert '"name": "in_stock"' in out
    assert "<tool_response>\n7\n</tool_response>" in out
    assert out.rstrip().endswith("1.0")


def test_an_openapi_document_is_an_environment(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    assert statements("openapi.py") <= 10
    out = run("openapi.py", tmp_path)
    assert '"name": "find_pet"' in out
    assert '{"age": 7, "kind": "dog"}' in out
    assert out.rstrip().endswith("1.0")
