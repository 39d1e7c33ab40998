"""The examples run as they stand."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(name: str, tmp_path: Path, *arguments: str, quiet: bool = True) -> str:
    """What an example prints; `toolstep` is this checkout.  quiet: there must be nothing on stderr."""
    package = tmp_path / "path" / "toolstep"
    package.mkdir(parents=True, exist_ok=True)
    for room in ("envs", "agents", "rollout"):
        if not (package / room).exists():
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
    assert done.returncode == 0, done.stderr
    assert not (quiet and done.stderr), done.stderr
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


def test_the_leaderboard_ranks_agents_and_goes_on_where_it_was(tmp_path: Path) -> None:
    line = [
        "leaderboard.py",
        "--agents",
        "random",
        "oracle",
        "tiny",
        "--envs",
        "calculator",
        "lookup",
        "--episodes",
        "2",
    ]
    first = run(*line[:1], tmp_path, *line[1:], quiet=False)
    page = (tmp_path / "runs/leaderboard/leaderboard.md").read_text()
    ranks = [row.split("|")[1:3] for row in page.splitlines()[4:]]
    assert [cell.strip() for cell in ranks[0]] == ["oracle", "1.00"]
    assert sorted(agent.strip() for agent, _ in ranks) == ["oracle", "random", "tiny"]
    assert "[1.00](oracle/lookup/report.html) 0.34-1.00" in page
    assert (tmp_path / "runs/leaderboard/oracle/lookup/report.html").is_file()
    played = {path: path.read_bytes() for path in tmp_path.rglob("episodes.jsonl")}
    assert len(played) == 6
    again = run(*line[:1], tmp_path, *line[1:], quiet=False)
    assert again == first
    assert {path: path.read_bytes() for path in tmp_path.rglob("episodes.jsonl")} == played


def test_the_leaderboard_serves_a_model_with_llama_cpp(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    size = ["--agents", "llamacpp", "--envs", "calculator", "--episodes", "1", "--shots", "0", "--num-envs", "1"]
    out = run("leaderboard.py", tmp_path, *size, "--port", port, quiet=False)
    assert "smollm2 at llama.cpp" in out
    assert len((tmp_path / "runs/leaderboard/llamacpp/calculator/episodes.jsonl").read_text().splitlines()) == 1
