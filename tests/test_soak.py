"""2,000 short episodes with tools that are late, fail, hang and are cancelled: nothing leaks, hangs or gets lost."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from continuous_fakes import Lagging, ScriptedAgent, add, broken, call, sleep, slow_envs, wait
from traces import children, descriptors, threads

from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.tools import tool
from toolstep.rollout import RunMetrics, group_specs, play

EPISODES = 2000


@tool(run_in="process")
def die(code: int) -> str:
    """Ends its process."""
    os._exit(code)


@tool(run_in="process")
def freeze(seconds: float) -> str:
    """Hangs in a process."""
    time.sleep(seconds)
    return "thawed"


@tool
async def stubborn() -> str:
    """Swallows its first cancellation."""
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.sleep(0.01)
    return "late"


MILD = [call("sleep", ms=1), call("wait", ms=3), call("add", a=1), call("broken"), "42", "", call("wait", ms=2) * 3]
HARSH = [call("sleep", ms=120), call("stubborn"), call("wait", ms=60_000), call("sleep", ms=1) + call("stubborn")]
RARE = [call("die", code=3), call("freeze", seconds=60)]


class Unsteady(ScriptedAgent):
    """Mostly mild turns, one in thirty harsh, one in three hundred in a process."""

    def complete(self, row: int, observation: Any) -> Any:
        kind = int(self.rng[row].integers(300))
        chosen = RARE if kind == 0 else HARSH if kind < 11 else MILD
        self.turns = [self.chat.encode_turn(t) for t in chosen]
        return super().complete(row, observation)


class Nervous(ToolUseVectorEnv):
    """Cancels a pending row now and then."""

    cancelled = 0
    random = random.Random(5)

    def recv(self, min_rows: int = 1, timeout: float | None = None) -> Any:
        if self.random.random() < 0.1:
            row = self.random.choice(sorted(self._stream._batches))
            self.cancel([row])
            self.cancelled += 1
        return super().recv(min_rows, timeout)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts in /proc")
def test_two_thousand_unsteady_episodes_leave_nothing(tokenizer: Any, record_property: Any) -> None:
    before = threads(), descriptors(), children()
    envs = slow_envs(
        48, tokenizer, Nervous, tools=[sleep, wait, broken, add, stubborn, die, freeze], tool_timeout=0.1, max_turns=3
    )
    player = Lagging(Unsteady(tokenizer, ["42"], abort_every=200), lag=3)
    specs = group_specs(EPISODES, 1, seed=0)
    metrics = RunMetrics()
    seen: Counter[int] = Counter()
    statuses: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    resident: list[float] = []
    began = time.monotonic()
    for n, (index, trajectory) in enumerate(play(envs, player, specs, metrics=metrics)):
        seen[index] += 1
        statuses[trajectory.status] += 1
        calls.update({k: int(v) for k, v in trajectory.metrics.items() if k.startswith("calls/")})
        if n % 100 == 0:
            resident.append(resident_mib())
    seconds = time.monotonic() - began
    assert envs.pending == 0
    assert not player.busy
    envs.close()

    assert seen == Counter(range(EPISODES))
    assert statuses.total() == metrics.episodes == EPISODES
    assert statuses["agent_error"] > 0
    assert statuses["env_error"] == 0
    assert calls["calls/tool_timeout"] > 50
    assert calls["calls/tool_error"] > 200
    assert envs.cancelled > 5
    _wait_until(lambda: not threads() - before[0])
    del envs, player
    gc.collect()
    assert not threading_others(before[0])
    assert not children() - before[2]
    assert not descriptors() - before[1]
    growth = max(resident[-5:]) - max(resident[5:10])  # from a quarter of the way to the end
    print(
        f"\n{EPISODES} episodes in {seconds:.1f} s, {dict(statuses)}, {dict(calls)}; RSS {resident[5]:.0f} MiB, "
        f"{growth:+.1f} MiB from 500 to {EPISODES} episodes"
    )
    record_property("rss_growth_mib", growth)
    assert growth < 12


def threading_others(before: set[threading.Thread]) -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("toolstep") and t not in before]


def _wait_until(condition: Any, seconds: float = 5.0) -> None:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    assert condition()
