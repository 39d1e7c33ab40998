"""The main job: five agents on toolstep/Calculator-v0, levels 1 (874 - 404) and 2 (two operations), 16 rows at a time.

    make demo            (or: python examples/demo.py --episodes 64 --shots 5)

`tiny-sft` is a model of 2 million parameters that has imitated the oracle, `tiny` the same after GRPO on level 2; they
come with this package (examples/tiny/train.py made them).  `smollm2` is SmolLM2-135M-Instruct, a real chat model of 135
million parameters; it plays twice, without and with K solved example episodes before each task.  The problems are of
the test split, which no training has seen.  All of it runs without a network and without a GPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from toolstep.rollout.build import Settings
from toolstep.rollout.eval_job import EvalJob
from toolstep.rollout.report import span

ENV = "toolstep/Calculator-v0"
LEVELS = (1, 2)
AGENTS = [
    ("random", False),
    ("tiny-sft", False),
    ("tiny", False),
    ("smollm2", False),
    ("smollm2", True),
    ("oracle", False),
]


def play(agent: str, shots: int, level: int, args: argparse.Namespace) -> EvalJob:
    """One evaluation, as `toolstep eval` runs it."""
    settings = Settings(
        env=ENV,
        agent=agent,
        num_envs=args.num_envs,
        seed=args.seed,
        max_turns=4,
        max_new_tokens=64,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        level=level,
        shots=shots,
        split="test",
        device=None,
        autoreset_mode="SameStep",
    )
    job = EvalJob(settings, args.episodes, args.out / f"{agent}-{shots}-shots-level-{level}", overwrite=True)
    job.run(quiet=False)
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--shots", type=int, default=5, help="solved examples before each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    args = parser.parse_args()
    start = time.perf_counter()
    table = Table(
        title=f"{ENV}: {args.episodes} test episodes a level, {args.num_envs} rows, greedy", title_justify="left"
    )
    for column in ("agent", "K", "level 1 (95 %)", "level 2", "calls ok", "tokens/s", "s"):
        table.add_column(column, justify="left" if column == "agent" else "right", no_wrap=True)
    for agent, shots in AGENTS:
        jobs = []
        for level in LEVELS:
            jobs.append(play(agent, args.shots if shots else 0, level, args))
            if jobs[-1].interrupted:
                raise SystemExit(130)
        played = [job.summary for job in jobs]
        seconds = [s.speed.seconds for s in played if s.speed]
        sampled = sum(s.speed.tokens_per_second * s.speed.seconds for s in played if s.speed)
        table.add_row(
            agent,
            str(args.shots if shots else 0),
            *(f"{s.success_rate:.3f}\n{span(s.success_interval)}" for s in played),
            f"{sum(s.calls.get('ok', 0) for s in played)}/{sum(sum(s.calls.values()) for s in played)}",
            f"{sampled / sum(seconds):,.0f}" if sampled else "-",
            f"{sum(seconds):.1f}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"{time.perf_counter() - start:.0f} s in all; trajectories and summaries: {args.out}/*/", markup=False
    )


if __name__ == "__main__":
    main()
