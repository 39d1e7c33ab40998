"""How much throughput slow tools cost: with a barrier after each turn, and with tools beside decoding.

    python benchmarks/overlap.py [--rows 64] [--tool-ms 200] [--json FILE]

A fake engine decodes one token a row in each step.  A step takes the same time whatever the number of rows ("fixed",
as a GPU that is bound by reading the weights), or a time for each row ("by row", as a CPU that is bound by arithmetic);
at full occupancy both take --step-ms.  Every episode has --turns turns, all but the last with one tool call, of lengths
that the episode's seed decides.  So each run samples the same tokens, and only the tools differ: one that answers at
once ("none"), a coroutine that sleeps --tool-ms, and a thread that does.

Under "fixed" a row that waits for a tool is an empty place in the batch, so that no schedule of the same rows keeps
more than about decoding / (decoding + tools) of the throughput: the bound.  The remedy there is more rows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import VectorWrapper
from rich.console import Console
from rich.table import Table

from toolstep.agents.base import Completion
from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.chat import ChatTemplate
from toolstep.envs.tools import Tool, tool
from toolstep.rollout import RunMetrics, collect, group_specs

CALL = '\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


class FakeEngine:
    """A token agent, continuous and in batches, whose steps sleep."""

    seed = 0
    env_kwargs: Mapping[str, Any] = {}

    def __init__(self, chat: ChatTemplate, turns: int, cost: Callable[[int], float]):
        self._called = [chat.encode_turn("so " * n + CALL) for n in range(48)]
        self._answers = [chat.encode_turn("so " * n) for n in range(16, 64)]
        self._turns = turns
        self._cost = cost
        self._plans: dict[int, list[np.ndarray]] = {}  # by row, turns still to come
        self._left: dict[int, int] = {}  # by row under way, steps to its end
        self.lengths: list[int] = []

    def start(self, row: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        calls = [self._called[int(rng.integers(len(self._called)))] for _ in range(self._turns - 1)]
        self._plans[row] = [*calls, self._answers[int(rng.integers(len(self._answers)))]]

    @property
    def busy(self) -> bool:
        return bool(self._left)

    def submit(self, row: int, observation: np.ndarray) -> int:
        self._left[row] = len(self._plans[row][0])
        self.lengths.append(self._left[row])
        return row

    def step(self) -> list[tuple[int, Completion]]:
        time.sleep(self._cost(len(self._left)))
        for row in self._left:
            self._left[row] -= 1
        done = [row for row, left in self._left.items() if left == 0]
        return [(row, self._finish(row)) for row in done]

    def _finish(self, row: int) -> Completion:
        del self._left[row]
        ids = self._plans[row].pop(0).astype(np.int32)
        logprobs = np.zeros(len(ids), np.float32)
        return Completion(ids, logprobs, logprobs, "stop")

    def cancel(self, ticket: int) -> None:
        self._left.pop(ticket, None)

    def act(self, rows: Sequence[int], observations: Sequence[np.ndarray]) -> list[Completion]:
        for row, observation in zip(rows, observations):
            self.submit(row, observation)
        done: dict[int, Completion] = {}
        while self.busy:
            done |= dict(self.step())
        return [done[row] for row in rows]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a token agent is asked by act or submit")


def tools(seconds: float) -> dict[str, Tool]:
    """The same tool, three times: instant, as a coroutine, as a thread."""

    @tool(name="look", run_in="inline")
    def at_once() -> str:
        """Looks."""
        return "seen"

    @tool(name="look")
    async def coroutine() -> str:
        """Looks."""
        await asyncio.sleep(seconds)
        return "seen"

    @tool(name="look")
    def thread() -> str:
        """Looks."""
        time.sleep(seconds)
        return "seen"

    return {"none": at_once, "async": coroutine, "thread": thread}


def run(args: argparse.Namespace, chat: ChatTemplate, cost: str, path: str, made: Tool) -> tuple[float, float]:
    """Sampled tokens a second, and the mean length of a turn in tokens."""
    full = args.step_ms / 1000
    engine = FakeEngine(
        chat, args.turns, (lambda rows: full) if cost == "fixed" else (lambda rows: full * rows / args.rows)
    )
    envs: Any = ToolUseVectorEnv(
        args.rows, [{"prompt": "Look.", "answer": "so"}], [made], view="tokens", tokenizer=chat.tokenizer
    )
    metrics = RunMetrics()
    # A wrapper is played by its `step`: that is the path with the barrier.
    collect(
        VectorWrapper(envs) if path == "barrier" else envs, engine, group_specs(args.episodes, 1, 0), metrics=metrics
    )
    envs.close()
    return metrics.tokens_per_second, statistics.mean(engine.lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=192)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--step-ms", type=float, default=20.0, help="time of a step with all rows")
    parser.add_argument("--tool-ms", type=float, default=200.0)
    parser.add_argument("--repeats", type=int, default=1, help="medians of that many runs")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    chat = ChatTemplate("smollm2")
    table = Table(
        title=f"{args.rows} rows, tools of {args.tool_ms:g} ms, steps of {args.step_ms:g} ms at full occupancy"
    )
    for column in (
        "step",
        "path",
        "tools",
        "tokens/s",
        "of the same path without tools",
        "bound",
        "of continuous without",
    ):
        table.add_column(column, justify="right")
    figures: list[dict[str, Any]] = []
    for cost in ("fixed", "by row"):
        best = 0.0
        for path in ("continuous", "barrier"):
            alone = 0.0
            for name, made in tools(args.tool_ms / 1000).items():
                runs = [run(args, chat, cost, path, made) for _ in range(args.repeats)]
                rate, length = statistics.median(r for r, _ in runs), runs[0][1]
                alone = rate if name == "none" else alone
                best = rate if name == "none" and path == "continuous" else best
                decoding = length * args.turns * args.step_ms
                bound = (
                    1.0
                    if name == "none" or cost != "fixed"
                    else decoding / (decoding + (args.turns - 1) * args.tool_ms)
                )
                ratio = {"with_without": rate / alone, "bound": bound, "of_continuous": rate / best}
                figures.append({"step": cost, "path": path, "tools": name, "tokens_per_s": rate, **ratio})
                table.add_row(cost, path, name, f"{rate:,.0f}", *(f"{value:.2f}" for value in ratio.values()))
        table.add_section()
    Console().print(table)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
