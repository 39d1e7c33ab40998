"""What `benchmarks/engine.py` measures of this engine alone: memory, the cost of turns, tools that take time."""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import workload
from workload import Episode

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine


def play(engine: Engine, work: Sequence[Episode], tool: float = 0.0) -> int:
    """Play episodes, each turn's observation `tool` seconds after the turn; the number of ids sampled."""
    turn = dict.fromkeys(range(len(work)), 0)
    waiting: list[tuple[float, int]] = []
    sampled = 0
    for row, episode in enumerate(work):
        engine.start(row, episode.number)
        engine.submit(row, episode.prompt, SamplingParams(max_new_tokens=episode.limits[0]))
    while engine.busy or waiting:
        if not engine.busy:
            time.sleep(max(0.0, waiting[0][0] - time.monotonic()))
        while waiting and waiting[0][0] <= time.monotonic():
            _, row = heapq.heappop(waiting)
            episode = work[row]
            turn[row] += 1
            params = SamplingParams(max_new_tokens=episode.limits[turn[row]])
            engine.submit(row, episode.observations[turn[row] - 1], params)
        for _, row, completion in engine.step():
            sampled += len(completion.token_ids)
            if turn[row] + 1 < len(work[row].limits):
                heapq.heappush(waiting, (time.monotonic() + tool, row))
            else:
                engine.release(row)
    return sampled


def memory(engine: Engine, work: Sequence[Episode]) -> tuple[int, int, int]:
    """Bytes: most memory over that of before; keys and values of the most live tokens; blocks that hold them.

    On a CPU what is resident (Linux only, 0 elsewhere; the weights must be packed already), on CUDA what torch holds of
    the device.
    """
    engine.drop_cache()
    device = engine.packed.device
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    before = peak = torch.cuda.memory_reserved(device) if on_gpu else resident()
    live = 0
    step = engine.step

    def watched() -> object:
        nonlocal peak, live
        done = step()
        peak = max(peak, torch.cuda.max_memory_reserved(device) if on_gpu else resident())
        live = max(live, engine.live_tokens)
        return done

    engine.pool.peak = engine.pool.used
    engine.step = watched  # type: ignore[method-assign,assignment]
    try:
        play(engine, work)
    finally:
        del engine.step  # type: ignore[method-assign]
    return peak - before, live * engine.pool.cell_bytes, engine.pool.peak * engine.pool.size * engine.pool.cell_bytes


def growth(engine: Engine, vocabulary: int, rows: int = 16) -> list[tuple[int, float]]:
    """(turns, seconds a sampled id) for episodes of 2, 8 and 32 turns of the same contexts: 256 ids of prompt, 256
    sampled, 496 observed.
    """
    out = []
    for turns in (2, 8, 32):
        seen = 496 // (turns - 1)
        work = workload.episodes(
            vocabulary=vocabulary,
            groups=2,
            members=rows // 2,
            turns=(turns, turns),
            prompt=(256, 256),
            sampled=(256 // turns, 256 // turns),
            observed=(seen, seen),
        )
        start = time.perf_counter()
        sampled = play(engine, work)
        out.append((turns, (time.perf_counter() - start) / sampled))
    return out


def resident() -> int:
    """Bytes of this process's own pages that are in memory, without those of files, which the system takes as it likes;
    0 where it does not tell.
    """
    try:
        found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        found = None
    return 0 if found is None else 1024 * int(found[1])
