"""Envs over the test server of `mcp_server.py`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traces import alive

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tools import MCP

SERVER = Path(__file__).with_name("mcp_server.py")
TASKS = [{"prompt": "Count to two.", "answer": "2"}]


def command(**options: str) -> list[str]:
    """The command line of the test server."""
    return [sys.executable, "-I", "-S", str(SERVER), *(f"{name}={value}" for name, value in options.items())]


def server(options: dict[str, str] | None = None, **keywords: Any) -> MCP:
    return MCP(command(**(options or {})), **keywords)


def make_env(source: Any, **options: Any) -> ToolUseEnv:
    return ToolUseEnv(TASKS, tools=source, **{"max_turns": 100, "tool_timeout": 60.0, **options})


def make_envs(num_envs: int, source: Any, **options: Any) -> ToolUseVectorEnv:
    return ToolUseVectorEnv(num_envs, TASKS, tools=source, **{"max_turns": 100, "tool_timeout": 60.0, **options})


def call(tool: str, /, **arguments: Any) -> str:
    """The turn that makes one call; several may stand behind each other."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>\n"


def results(info: dict[str, Any]) -> list[str]:
    """What the model read for each call of the last turn."""
    return [m["content"] for m in info["new_messages"] if m["role"] == "tool"]


def result(env: ToolUseEnv, turn: str) -> str:
    """What the model reads for the one call of `turn`."""
    (text,) = results(env.step(turn)[4])
    return text


def row_results(envs: ToolUseVectorEnv, *turns: str) -> list[str]:
    """What each row reads for its one call."""
    infos = envs.step(turns)[4]
    return [m[-1]["content"] for m in infos["new_messages"]]


def running(log: Path) -> list[str]:
    """Numbers of the servers that were started with log=FILE and still run."""
    started = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("start")]
    return [pid for pid in started if alive(pid)]


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether it comes true; the test's own timeout is far behind."""
    until = time.monotonic() + 60
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
