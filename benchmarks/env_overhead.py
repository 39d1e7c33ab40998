"""What the vector environment itself costs: steps/s with a null agent, and whether slow tools overlap.

    python benchmarks/env_overhead.py [--json FILE]

Two null agents on `toolstep/Calculator-v0`: one answers at once (each step is an episode: draw a task, render its
prompt, score it), one makes the same calculator call for eight turns (each step parses, runs and renders a result).
Machines are noisy, so each figure is the best of several repeats, and the ratios are the ones to compare.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv
from rich.console import Console
from rich.table import Table

import toolstep.envs  # noqa: F401  (registers the ids)
from toolstep.envs import ToolUseVectorEnv

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 * 34"}}\n</tool_call>'


def best_step_seconds(envs: Any, action: str, seconds: float) -> float:
    """Shortest time of one step of all rows, over repeats that take about `seconds` in all."""
    envs.reset(seed=0)
    batch = (action,) * envs.num_envs
    best, spent = float("inf"), 0.0
    while spent < seconds:
        start = time.perf_counter()
        envs.step(batch)
        took = time.perf_counter() - start
        best, spent = min(best, took), spent + took
    return best


def null_agent(rows: int, action: str, seconds: float, make: Callable[[int], Any]) -> float:
    """Environment steps (rows x steps) a second."""
    envs = make(rows)
    per_step = best_step_seconds(envs, action, seconds)
    envs.close()
    return rows / per_step


def ours(rows: int) -> Any:
    return gym.make_vec("toolstep/Calculator-v0", num_envs=rows, autoreset_mode="SameStep")


def sync(rows: int) -> Any:
    return SyncVectorEnv([lambda: gym.make("toolstep/Calculator-v0")] * rows, autoreset_mode="SameStep")


def slow_tools(rows: int, seconds: float) -> tuple[float, float]:
    """Seconds of one step in which every row calls a tool that sleeps: all rows at once, and one row alone."""

    def wait(seconds: float) -> str:
        """Sleep for a while."""
        time.sleep(seconds)
        return "done"

    call = "<tool_call>\n" + json.dumps({"name": "wait", "arguments": {"seconds": seconds}}) + "\n</tool_call>"
    took = []
    for n in (rows, 1):
        envs = ToolUseVectorEnv(n, [{"prompt": "Wait.", "answer": "done"}], [wait], max_turns=None)
        took.append(best_step_seconds(envs, call, 1.5))
        envs.close()
    return took[0], took[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 256, 1024])
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each figure")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    table = Table(title="steps/s of toolstep/Calculator-v0 (rows x steps; SameStep)")
    for column in ("rows", "answers at once", "calls a tool", "SyncVectorEnv, calls a tool", "ours / Sync"):
        table.add_column(column, justify="right")
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "steps_per_s": [],
    }
    for rows in args.rows:
        row = {
            "rows": rows,
            "answers": null_agent(rows, "7", args.seconds, ours),
            "calls": null_agent(rows, CALL, args.seconds, ours),
            "sync_calls": null_agent(rows, CALL, args.seconds, sync),
        }
        figures["steps_per_s"].append(row)
        ratio = row["calls"] / row["sync_calls"]
        table.add_row(
            f"{rows:,}",
            f"{row['answers']:,.0f}",
            f"{row['calls']:,.0f}",
            f"{row['sync_calls']:,.0f}",
            f"{ratio:.2f}",
        )
    together, alone = slow_tools(64, 0.05)
    figures["tool_50ms"] = {"rows_64_s": together, "rows_1_s": alone}
    console = Console()
    console.print(table)
    console.print(
        f"one step of 64 rows that each call a 50 ms tool: {1e3 * together:.0f} ms "
        f"({together / alone:.2f} x that of one row, {64 * 0.05 / together:.0f} x faster than one after the other)"
    )
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
