"""How long one step of many rows takes whose tools sleep or hang, and that nothing is left of 1,000 episodes.

    python benchmarks/tool_steps.py [--repeats 3] [--json FILE]

The figure is the median of the repeats, after a first step that starts threads and processes; a step ends no earlier
than its slowest tool, so its time over that is what the executor costs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.tools import Tool, tool

TASKS = [{"prompt": "Wait, and say what you waited.", "answer": "done"}]


async def nap_async(ms: int) -> int:
    """Wait.  ms: how long."""
    await asyncio.sleep(ms / 1000)
    return ms


def nap(ms: int) -> int:
    """Wait.  ms: how long."""
    time.sleep(ms / 1000)
    return ms


def make_tool(run_in: str) -> Tool:
    run: Any = nap_async if run_in == "async" else nap
    return tool(name="nap", run_in=run_in)(run)


def call(ms: int) -> str:
    return f'<tool_call>\n{{"name": "nap", "arguments": {{"ms": {ms}}}}}\n</tool_call>'


def step_seconds(envs: Any, times: list[int], expected: Callable[[int], str]) -> float:
    """Seconds of one step in which row i naps `times[i]` ms; every row must have seen its own result."""
    envs.reset(seed=0)
    start = time.perf_counter()
    observations, *_ = envs.step(tuple(call(ms) for ms in times))
    took = time.perf_counter() - start
    for row, (ms, text) in enumerate(zip(times, observations)):
        assert expected(ms) in text, (row, ms, text)
    return took


def measure(run_in: str, times: list[int], repeats: int, timeout: float = 10.0) -> float:
    limit = 1000 * timeout
    with_tool: dict[str, Any] = {"tools": [make_tool(run_in)], "tool_timeout": timeout}
    envs = ToolUseVectorEnv(num_envs=len(times), tasks=TASKS, **with_tool)
    step_seconds(envs, [1] * len(times), str)  # threads and processes are started once
    found = [step_seconds(envs, times, lambda ms: str(ms) if ms < limit else "tool_timeout") for _ in range(repeats)]
    envs.close()
    return statistics.median(found)


def left_behind(resets: int) -> dict[str, int]:
    """What an env with a tool of each kind leaves after that many resets, each with a call, and `close`."""

    def counts() -> dict[str, int]:
        gc.collect()
        return {
            "threads": threading.active_count(),
            "processes": len(multiprocessing.active_children()),
            "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
            "files": len(os.listdir(tempfile.gettempdir())),  # noqa: PTH208
        }

    def play(times: int) -> None:
        tools = [tool(name=f"nap_{kind}", run_in=kind)(nap_async if kind == "async" else nap) for kind in KINDS]
        envs = ToolUseVectorEnv(num_envs=3, tasks=TASKS, tools=tools)
        for seed in range(times):
            envs.reset(seed=seed)
            envs.step(tuple(call(0).replace("nap", f"nap_{kind}") for kind in KINDS))
        envs.close()

    play(1)  # what Python itself keeps from a first time (the fork server, its resource tracker)
    before = counts()
    play(resets)
    return {name: after - before[name] for name, after in counts().items()}


KINDS: tuple[Any, ...] = ("async", "thread", "process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--resets", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()
    spread = [1 + (499 * row) // 1023 for row in range(1024)]
    hanging = [60_000 if row % 4 == 0 else 50 for row in range(64)]
    table = Table("rows", "tools", "run in", "slowest tool", "step", title="one step", title_justify="left")
    figures: list[dict[str, Any]] = []
    for name, times, timeout, kinds in (
        ("500 ms each", [500] * 64, 10.0, ("async", "thread")),
        ("1 to 500 ms", spread, 10.0, ("async", "thread")),
        ("50 ms, and 16 that hang; limit 1 s", hanging, 1.0, ("async", "thread")),
        ("50 ms, and 4 that hang; limit 1 s", [60_000] * 4 + [50] * 12, 1.0, ("process",)),
    ):
        for kind in kinds:
            slowest = min(max(times) / 1000, timeout)
            took = measure(kind, times, args.repeats, timeout)
            figures.append({"rows": len(times), "tools": name, "run_in": kind, "slowest": slowest, "step": took})
            table.add_row(str(len(times)), name, kind, f"{slowest:.2f} s", f"{took:.3f} s")
    console = Console()
    console.print(table)
    left = left_behind(args.resets)
    console.print(f"left behind by {args.resets} resets, each with a call of each kind, after close: {left}")
    if args.json:
        args.json.write_text(json.dumps({"steps": figures, "left": left}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
