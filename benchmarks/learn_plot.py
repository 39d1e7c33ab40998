"""The runs of `benchmarks/learn.py` as a table and, where matplotlib is installed, as a figure."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

Run = list[dict[str, Any]]


def plot(folder: Path) -> None:
    """Print a table of all runs in `folder`, and write `learning.svg` there."""
    kinds: dict[str, list[Run]] = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl")):
        name = re.sub(r"-\d+$", "", path.stem).replace("_", " ")
        kinds[name].append([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])
    print("| run | seeds | test success at the start | at the end | minutes | episodes |")
    print("| --- | ---: | --- | --- | ---: | ---: |")
    for name, runs in kinds.items():
        evaluated = [[line for line in run if "eval/success" in line] for run in runs]
        first, last = ([run[i]["eval/success"] for run in evaluated] for i in (0, -1))
        minutes = np.mean([run[-1]["seconds"] / 60 for run in runs])
        episodes = np.mean([run[-1]["episodes"] for run in runs])
        print(f"| {name} | {len(runs)} | {_spread(first)} | {_spread(last)} | {minutes:.1f} | {episodes:,.0f} |")
    try:
        import matplotlib
    except ImportError:
        print("no figure: it needs matplotlib (pip install 'toolstep[plot]')")
        return
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "toolstep"  # the same file from the same runs
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for number, (name, runs) in enumerate(kinds.items()):
        for index, run in enumerate(runs):
            points = [(line["episodes"] / 1000, line["eval/success"]) for line in run if "eval/success" in line]
            axes.plot(*zip(*points), color=f"C{number}", alpha=0.9, lw=1.5, label=name if index == 0 else None)
    axes.set(xlabel="training episodes, thousands", ylabel="success on held-out tasks", ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(folder / "learning.svg", metadata={"Date": None})
    print(f"written to {folder / 'learning.svg'}")


def _spread(values: list[float]) -> str:
    return f"{np.mean(values):.3f}" + (f" +- {np.std(values):.3f}" if len(values) > 1 else "")
