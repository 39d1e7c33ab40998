"""Kill an evaluation at random moments, resume it, and compare its table with that of a run that was left alone.

    python benchmarks/resume.py --folders 20                       # one kill each
    python benchmarks/resume.py --folders 1 --kills 20             # the same run, killed 20 times

Each kill is a SIGKILL once so many more episodes are in the log, a number drawn uniformly from 0 (while the process
starts) to all that are owed, and a random part of a second later.  Prints one line a folder, and exits with 1 where a
table or an episode differs, or a finished episode was lost.  Log-probabilities of a model depend in their last bits on
the turns that it computed beside them, so they may differ, and the greatest difference is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def command(args: argparse.Namespace, out: Path) -> list[str]:
    play = ["eval", args.env, "--agent", args.agent, "--episodes", str(args.episodes), "--epochs", str(args.epochs)]
    play += ["--temperature", "1", "--num-envs", str(args.num_envs), "--quiet", "--resume", "--out", str(out)]
    if args.level is not None:
        play += ["--level", str(args.level)]
    return [sys.executable, "-m", "toolstep.rollout.cli", *play]


def table(out: Path) -> dict[str, Any]:
    data = json.loads((out / "summary.json").read_bytes())
    return {k: v for k, v in data.items() if k != "speed"}


def run(line: list[str]) -> float:
    """Seconds that the command took; it must succeed."""
    start = time.perf_counter()
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def killed(line: list[str], log: Path, lines: int, later: float) -> bool:
    """Whether the command was still running `later` seconds after its log had so many lines, when it was killed."""
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None and whole_lines(log).count(b"\n") < lines:
            time.sleep(0.005)
        process.wait(timeout=later)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        process.kill()
        process.wait()


def whole_lines(path: Path) -> bytes:
    data = path.read_bytes() if path.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def episodes(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    found = (json.loads(line) for line in whole_lines(path).splitlines())
    return {(e["seed"], e["sample_index"]): e for e in found}


def difference(found: Path, expected: Path) -> float | None:
    """The greatest difference of a log-probability; None where the runs differ in anything else."""
    a, b = episodes(found), episodes(expected)
    if a.keys() != b.keys() or table(found.parent) != table(expected.parent):
        return None
    greatest = 0.0
    for key in a:
        for name in ("logprobs", "model_logprobs"):
            x, y = a[key].pop(name), b[key].pop(name)
            greatest = max([greatest, *(abs(p - q) for p, q in zip(x, y, strict=True))])
        if a[key] != b[key]:
            return None
    return greatest


def trial(args: argparse.Namespace, out: Path, expected: Path, draw: random.Random) -> bool:
    """One folder: killed and resumed; whether it ended as the run that was left alone."""
    line, log = command(args, out), out / "episodes.jsonl"
    in_all = whole_lines(expected / "episodes.jsonl").count(b"\n")
    kept, kills, lost, told = b"", 0, False, []
    for kill in range(args.kills + 1):
        there = kept.count(b"\n")
        if kill == args.kills:
            run(line)
        else:
            share = draw.random() if args.kills == 1 else draw.random() * 2 / args.kills
            kills += killed(line, log, there + int(share * (in_all - there)), draw.uniform(0, 0.2))
            told.append(str(whole_lines(log).count(b"\n")))
        lost |= not whole_lines(log).startswith(kept)
        kept = whole_lines(log)
    apart = difference(log, expected / "episodes.jsonl")
    ok = apart is not None and not lost
    verdict = "an episode was LOST" if lost else "DIFFERENT" if apart is None else f"equal, log-probs to {apart:.1e}"
    print(f"{out.name}: {kills} kills, at {', '.join(told)} of {in_all} episodes: {verdict}", flush=True)
    return ok


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="calculator")
    parser.add_argument("--agent", default="tiny-sft")
    parser.add_argument("--level", type=int)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--folders", type=int, default=20)
    parser.add_argument("--kills", type=int, default=1, help="of each folder's run")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        expected = Path(folder) / "uninterrupted"
        seconds = run(command(args, expected))
        summary = table(expected)
        print(
            f"{args.agent} on {args.env}: {summary['episodes']} episodes, success {summary['success_rate']:.3f}, "
            f"{seconds:.1f} s left alone",
            flush=True,
        )
        equal = [trial(args, Path(folder) / f"run-{i}", expected, draw) for i in range(args.folders)]
    print(f"{sum(equal)} of {len(equal)} ended in the same table")
    sys.exit(0 if all(equal) else 1)


if __name__ == "__main__":
    main()
