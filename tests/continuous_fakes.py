"""Agents that finish turns out of step, and an env whose tools take their time."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolstep.agents.base import Completion
from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.chat import ChatTemplate
from toolstep.envs.tools import tool


class ScriptedAgent:
    """Types one of `turns`, cut turns among them, by the episode's seed and what it has read; acts by `act` alone."""

    seed = 0
    env_kwargs: dict[str, Any] = {}

    def __init__(
        self,
        tokenizer: Any,
        turns: Sequence[str],
        *,
        abort_every: int = 0,
        cut: bool = True,
        interrupt_after: int | None = None,
    ):
        self.chat = ChatTemplate(tokenizer)
        self.turns = [self.chat.encode_turn(t) for t in turns]
        if cut:
            self.turns.append(self.turns[0][:-1])  # cut before its stop token
        self.rng: dict[int, np.random.Generator] = {}
        self.read: dict[int, int] = {}
        self.generations = 0
        self.abort_every = abort_every
        self.interrupt_after = interrupt_after
        self.released: list[int] = []

    def start(self, row: int, seed: int) -> None:
        self.rng[row] = np.random.default_rng(seed)
        self.read[row] = 0

    def new_segment(self, row: int) -> None:
        self.read[row] = 0

    def release(self, row: int) -> None:
        self.released.append(row)

    def act(self, rows: Sequence[int], observations: Sequence[Any]) -> list[Completion]:
        return [self.complete(row, o) for row, o in zip(rows, observations)]

    def complete(self, row: int, observation: Any) -> Completion:
        assert observation.dtype == np.int64
        if self.interrupt_after is not None and self.generations >= self.interrupt_after:
            raise KeyboardInterrupt
        self.generations += 1
        self.read[row] += int(observation.sum()) + len(observation)
        rng = self.rng[row]
        ids = self.turns[(int(rng.integers(1000)) + self.read[row]) % len(self.turns)].astype(np.int32)
        logprobs = -rng.random(len(ids), dtype=np.float32)
        finish = "stop" if ids[-1] in self.chat.stop_ids else "length"
        if self.abort_every and rng.integers(self.abort_every) == 0:
            finish = "abort"
        return Completion(ids, logprobs, logprobs, finish, weight_version=1)  # type: ignore[arg-type]

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a token agent is asked by act or submit")


class Lagging:
    """Makes any token agent continuous: a submitted row is finished after 1 to `lag` steps, in any order."""

    def __init__(self, agent: Any, *, lag: int = 4, schedule: int = 0, step_seconds: float = 0.0):
        self.agent = agent
        self.seed = agent.seed
        self.env_kwargs = agent.env_kwargs
        self.start = agent.start
        self.new_segment = agent.new_segment
        self.release = agent.release
        self.predict = agent.predict
        self.act = agent.act
        self.lag = lag
        self.step_seconds = step_seconds
        self.steps = 0
        self.rows_at_step: list[int] = []
        self._random = random.Random(schedule)
        self._queue: dict[int, list[Any]] = {}  # ticket -> row, observation, steps left
        self._tickets = 0

    @property
    def busy(self) -> bool:
        return bool(self._queue)

    def submit(self, row: int, observation: Any) -> int:
        assert all(row != other for other, _, _ in self._queue.values()), f"row {row} was submitted twice"
        self._tickets += 1
        self._queue[self._tickets] = [row, observation, self._random.randint(1, self.lag)]
        return self._tickets

    def step(self) -> list[tuple[int, Completion]]:
        assert self._queue, "stepped without work"
        self.steps += 1
        self.rows_at_step.append(len(self._queue))
        if self.step_seconds:
            time.sleep(self.step_seconds)
        for entry in self._queue.values():
            entry[2] -= 1
        ready = [ticket for ticket, (_, _, left) in self._queue.items() if left <= 0]
        self._random.shuffle(ready)
        done = [self._queue.pop(ticket)[:2] for ticket in ready]
        rows = [row for row, _ in done]
        return list(zip(rows, self.agent.act(rows, [o for _, o in done]))) if rows else []

    def cancel(self, ticket: int) -> None:
        self._queue.pop(ticket, None)


def call(name: str, **arguments: Any) -> str:
    import json

    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def sleep(ms: int) -> str:
    """Sleeps."""
    time.sleep(ms / 1000)
    return "slept"


async def wait(ms: int) -> str:
    """Waits."""
    await asyncio.sleep(ms / 1000)
    return "waited"


def broken() -> None:
    """Never works."""
    raise RuntimeError("out of order")


@tool(run_in="inline")
def add(a: int, b: int = 0) -> int:
    """Adds."""
    return a + b


TOOLS = [sleep, wait, broken, add]
TURNS = [
    call("sleep", ms=2),
    call("wait", ms=7),
    call("wait", ms=1) + call("sleep", ms=4) + call("add", a=3),
    call("add", a=1, b=2),
    call("add", a="x"),
    call("broken"),
    '<tool_call>{"name',
    "42",
    "",
]


def task(seed: int) -> dict[str, Any]:
    return {"prompt": f"What is {seed % 7} + {seed % 11}?", "answer": str(seed % 7 + seed % 11)}


def slow_envs(num_envs: int, tokenizer: Any, kind: type[ToolUseVectorEnv] = ToolUseVectorEnv, **options: Any) -> Any:
    options = {"tasks": task, "tools": TOOLS, "max_turns": 4, "view": "tokens", "tokenizer": tokenizer, **options}
    return kind(num_envs, **options)
