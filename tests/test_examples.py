"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(name: str, tmp_path: Path, *arguments: str) -> str:
    """What an example prints; `toolstep` is this checkout."""
    package = tmp_path / "path" / "toolstep"
    package.mkdir(parents=True)
    for room in ("envs", "agents", "rollout"):
        (package / room).symlink_to(ROOT / room)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
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


def test_a_function_is_an_environment(tmp_path: Path) -> None:
    assert statements("function.py") <= 10 + 7  # the function itself
    out = run("function.py", tmp_path)
    assert '"amount": {"description": "how much.", "type": "number"}' in out
    assert "<tool_response>\n10.0\n</tool_response>" in out
    assert out.rstrip().endswith("1.0")


def test_a_class_with_a_memory_is_an_environment_and_each_episode_has_its_own(tmp_path: Path) -> None:
    assert statements("stateful.py") <= 10 + 8  # the class itself
    first, second = run("stateful.py", tmp_path).split(" 1.0\n")
    assert "<tool_response>\n2\n</tool_response>" in first
    assert "<tool_response>\n1\n</tool_response>" in second


def test_sb3_learns_lookup_from_its_menu(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    short = ("--level", "1", "--steps", "2048", "--evaluations", "1", "--episodes", "30")
    out = run("sb3_menu.py", tmp_path, *short)
    success = {line.partition("  ")[0]: float(line.split("success ")[1][:5]) for line in out.splitlines()[:-1]}
    assert success["oracle: the optimum"] == 1.0
    assert success["random"] < 0.2
    assert success["maskable, trained"] > 0.35  # 0.95 and more after three times the steps
    assert (tmp_path / "sb3_menu.zip").is_file()


def test_a_file_of_prompts_and_answers_is_an_environment(tmp_path: Path) -> None:
    assert statements("jsonl_env.py") <= 10
    out = run("jsonl_env.py", tmp_path)
    assert "A hall has 17 rows of 23 chairs." in out
    assert "'outcome': 1.0" in out
    assert "'call_accuracy': 1.0" in out
    assert out.rstrip().endswith("0.9")
