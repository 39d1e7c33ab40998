"""What built-in tools cost: a call, the first call of an episode, a step of many rows, and memory for each row.

python benchmarks/builtin_tools.py [--rows 64]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.tools.builtin import SQL, Files, Python, Search, cpython, monty

SCRIPT = "CREATE TABLE t(a, b);" + "".join(f"INSERT INTO t VALUES ({i}, {i * i});" for i in range(100))
TEXTS = {f"d{i}": f"Document {i} speaks of topic{i % 50} and of the number {i * i}. " * 20 for i in range(2_000)}


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def cases() -> dict[str, tuple[Any, str]]:
    """Name: the factory, and a call."""
    made: dict[str, tuple[Any, str]] = {
        "sql": (SQL(script=SCRIPT), call("sql", query="SELECT SUM(b) FROM t WHERE a % 7 = 3")),
        "search": (Search(TEXTS), call("search", query="topic7 number 49")),
        "files": (Files({"a.txt": "x"}), call("write_file", path="b/c.txt", content="hello\n")),
        "calculator": ("calculator", call("calculator", expression="(2 + 3) * 4.5")),
    }
    code = call("python", code="print(sum(i * i for i in range(1000)))")
    if not monty.missing():
        made["python (monty)"] = (Python(), code)
    if not cpython.missing():
        made["python (cpython)"] = (Python("cpython"), code)
    return made


def children_mb() -> float:
    """Memory of the child processes that belongs to them alone (Linux)."""
    total = 0
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            rollup = Path(f"/proc/{child}/smaps_rollup").read_text()
            total += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return total / 1024


def measure(tool: Any, turn: str, rows: int) -> tuple[float, float, float, float]:
    """Milliseconds of the first step and (median) of the others, of a call, and MB of processes a row."""
    env = ToolUseVectorEnv(rows, [{"prompt": "Go.", "answer": "5"}], tools=[tool], max_turns=None)
    env.reset(seed=0)
    start = time.perf_counter()
    env.step([turn] * rows)
    first = time.perf_counter() - start
    steps = []
    for _ in range(20):
        start = time.perf_counter()
        _, _, _, _, infos = env.step([turn] * rows)
        steps.append(time.perf_counter() - start)
        assert all(list(row) == ["ok"] for row in infos["call_statuses"])
    memory = children_mb() / rows
    env.close()
    plain = ToolUseVectorEnv(rows, [{"prompt": "Go.", "answer": "5"}], tools=["calculator"], max_turns=None)
    plain.reset(seed=0)
    empty = []
    for _ in range(20):
        start = time.perf_counter()
        plain.step([call("calculator", expression="1")] * rows)
        empty.append(time.perf_counter() - start)
    plain.close()
    own = max(0.0, statistics.median(steps) - statistics.median(empty)) / rows
    return 1e3 * first, 1e3 * statistics.median(steps), 1e3 * own, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    rows = parser.parse_args().rows
    print(f"{'tool':18} {'first step ms':>14} {'step ms':>9} {'ms a call':>10} {'MB a row':>9}   ({rows} rows)")
    for name, (tool, turn) in cases().items():
        first, step, own, memory = measure(tool, turn, rows)
        print(f"{name:18} {first:14.0f} {step:9.1f} {own:10.2f} {memory:9.1f}")


if __name__ == "__main__":
    main()
