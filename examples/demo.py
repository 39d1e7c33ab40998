"""The main job: three agents on toolstep/Calculator-v0, level 1, 16 rows at a time.

    make demo            (or: python examples/demo.py --episodes 64 --shots 5)

`smollm2` is SmolLM2-135M-Instruct, a real chat model of 135 million parameters, run in this process; it plays twice,
without and with K solved example episodes before each task.  All of it runs without a network and without a GPU.
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


def play(agent: str, shots: int, args: argparse.Namespace) -> EvalJob:
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
        level=1,
        shots=shots,
        split="test",
        device=None,
        autoreset_mode="SameStep",
    )
    job = EvalJob(settings, args.episodes, args.out / f"{agent}-{shots}-shots", overwrite=True)
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
        title=f"{ENV}, level 1: {args.episodes} test episodes, {args.num_envs} rows, greedy", title_justify="left"
    )
    for column in ("agent", "K", "success (95% interval)", "turns", "calls ok", "tokens/s", "s"):
        table.add_column(column, justify="left" if column == "agent" else "right", no_wrap=True)
    for agent, shots in (("random", 0), ("oracle", 0), ("smollm2", 0), ("smollm2", args.shots)):
        job = play(agent, shots, args)
        s = job.summary
        assert s.speed is not None
        table.add_row(
            agent,
            str(shots),
            f"{s.success_rate:.3f} {span(s.success_interval)}",
            f"{s.turns:.2f}",
            f"{s.calls.get('ok', 0)}/{sum(s.calls.values())}",
            f"{s.speed.tokens_per_second:,.0f}" if s.speed.tokens_per_second else "-",
            f"{s.speed.seconds:.1f}",
        )
        if job.interrupted:
            raise SystemExit(130)
    console = Console()
    console.print(table)
    console.print(
        f"{time.perf_counter() - start:.0f} s in all; trajectories and summaries: {args.out}/*/", markup=False
    )


if __name__ == "__main__":
    main()
