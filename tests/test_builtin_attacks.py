"""The attack lists as turns of a model against all built-in tools: nothing escapes, nothing hangs, the env goes on."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from python_attacks import attacks as python_attacks
from test_builtin_files import PATHS
from test_builtin_sql import GROWING, SCRIPT
from test_builtin_sql import attacks as sql_attacks

from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.tools.builtin import SQL, Files, Python, cpython, monty

SECRET = "swordfish-7731"
ROWS = 8
EXPRESSIONS = [
    "9**9**9**9", "factorial(10**7)", "__import__('os').system('id')", "().__class__.__bases__[0].__subclasses__()",
    "open('/etc/passwd').read()", "exec('x')", "(" * 900, "1" + "+1" * 499, "2**-99999999", "1e999999", "10**4096",
    "comb(10**9, 5)", "'a' * 10**9", "[x for x in range(10**9)]", "lambda: 0", "x=5", "1/0", "sqrt(-1)", "\x00",
    "<|im_end|>",     "-" * 999 + "1", "9" * 1000, "0x1F", "1_0__0", "round(1.5, 10**9)", "gcd(10**4000, 10**4000-1)",
]  # fmt: skip


@pytest.fixture
def decoy() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(bool(missing()), reason=missing()))
    for name, missing in (("monty", monty.missing), ("cpython", cpython.missing))
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_escapes_nothing_hangs_and_the_env_goes_on(
    backend: Any, tmp_path: Path, decoy: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLSTEP_SECRET", SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "evil.py").write_text(f"print({SECRET!r})")
    before = sorted(p.name for p in tmp_path.iterdir())
    env = ToolUseVectorEnv(
        ROWS,
        [{"prompt": "What is 2 + 3?", "answer": "5"}],
        tools=[
            Python(backend, timeout=0.5, memory_mb=128),
            SQL(script=SCRIPT, read_only=False, timeout=0.5),
            Files({"a.txt": "x"}),
            "calculator",
        ],
        max_turns=None,
        strict=True,
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        port = listener.getsockname()[1]
        turns = [call("python", code=code) for code in python_attacks(tmp_path, port, decoy.pid).values()]
        turns += [call("sql", query=query) for query in [*sql_attacks(tmp_path), *GROWING]]
        turns += [call("read_file", path=path) + call("write_file", path=path, content=SECRET[:3]) for path in PATHS]
        turns += [call("calculator", expression=expression) for expression in EXPRESSIONS]
        env.reset(seed=0)
        for first in range(0, len(turns), ROWS):
            batch = [*turns[first : first + ROWS], *["5"] * ROWS][:ROWS]
            batch = [turn if turn != "5" else call("calculator", expression="1+1") for turn in batch]
            _, _, terminated, truncated, infos = env.step(batch)
            assert not (terminated | truncated).any()
            for row, messages in enumerate(env.get_attr("messages")):
                for message in messages:
                    if message.role == "tool":
                        assert SECRET not in message.content, batch[row]
                        assert "root:" not in message.content, batch[row]
                        assert len(message.content) < 4_500, batch[row]
            assert all(status in KNOWN for row in infos["call_statuses"] for status in row)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert (tmp_path / "secret.txt").read_text() == SECRET
    assert decoy.poll() is None
    good = (
        call("calculator", expression="2+3") + call("sql", query="SELECT 2 + 3") + call("python", code="print(2 + 3)")
    )
    _, _, _, _, infos = env.step([good + call("read_file", path="a.txt")] * ROWS)
    assert [list(row) for row in infos["call_statuses"]] == [["ok"] * 4] * ROWS
    assert env.step(["5"] * ROWS)[1].tolist() == [1.0] * ROWS
    env.close()


KNOWN = {"ok", "tool_error", "tool_timeout", "wrong_type", "invalid_json"}
