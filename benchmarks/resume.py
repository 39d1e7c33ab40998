"""Kill an evaluation at random moments, resume it, and compare its table with that of a run that was left alone.

    python benchmarks/resume.py --folders 20                       # one kill each
    python benchmarks/resume.py --folders 1 --kills 20             # the same run, killed 20 times

Each kill is a SIGKILL once so many more episodes are in the log, a number drawn uniformly from 0 (while the process
starts) to all that are owed, and a random part of a second later.  Prints one line a folder, and exits with 1 where a
table differs or a finished episode was lost.
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


def trial(args: argparse.Namespace, out: Path, expected: Path, draw: random.Random) -> bool:
    """One folder: killed and resumed; whether it ended as the run that was left alone."""
    line, log = command(args, out), out / "episodes.jsonl"
    whole = whole_lines(expected / "episodes.jsonl")
    kept, kills, told = b"", 0, []
    for _ in range(args.kills):
        there, in_all = kept.count(b"\n"), whole.count(b"\n")
        share = draw.random() if args.kills == 1 else draw.random() * 2 / args.kills
        kills += killed(line, log, there + int(share * (in_all - there)), draw.uniform(0, 0.2))
        now = whole_lines(log)
        lost = not now.startswith(kept)
        kept = now
        told.append(f"{kept.count(10)}" + (" LOST" if lost else ""))
    run(line)
    now = whole_lines(log)
    ok = (
        now.startswith(kept)
        and "LOST" not in " ".join(told)
        and sorted(now.splitlines()) == sorted(whole.splitlines())
        and table(out) == table(expected)
    )
    print(f"{out.name}: {kills} kills, at {', '.join(told)} episodes: {'equal' if ok else 'DIFFERENT'}", flush=True)
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
