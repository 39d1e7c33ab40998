"""Sampled tokens a second of the rollout engine on workload W, against other ways to do the same token work.

    python benchmarks/engine.py                      # SmolLM2-135M in fp32, all of W: 40 minutes on 2 cores
    python benchmarks/engine.py --groups 2 --rounds 1
    python benchmarks/engine.py --prototype PATH/slot_engine.py --dtype bfloat16

Every engine runs once in every round, so that a busy machine disturbs all alike; the table shows medians and ratios.
llama.cpp takes part where llama-cpp-python and gguf are installed.  Then: memory, the cost of turns, slow tools.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import engine_costs
import engines
import llamacpp
import numpy as np
import torch
import workload

from toolstep.agents.engine import Engine
from toolstep.agents.weights import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--groups", type=int, default=8, help="of --members episodes each")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--sequential", type=int, default=4, help="episodes of the sequential baseline (its rate is flat)"
    )
    parser.add_argument("--prototype", type=Path, default=os.environ.get("TOOLSTEP_PROTOTYPE"))
    parser.add_argument("--only", nargs="*", help="names of the engines to run")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = load_model(args.model, args.device, args.dtype)
    vocabulary = model.config.get_text_config().vocab_size
    work = workload.episodes(vocabulary=vocabulary, groups=args.groups, members=args.members)
    engine = Engine(model, verify=False)
    other = copy.deepcopy(model)  # the others change the model that they run
    ways: dict[str, Callable[[], int]] = {
        "ours": partial(engine_costs.play, engine, work),
        "ours, tools of 200 ms": partial(engine_costs.play, engine, work, 0.2),
        "ours, barrier": partial(engines.barrier, engine, work),
        "active batch (generate)": partial(engines.active_batch, other, work),
        "generate_batch": partial(engines.transformers_batching, other, work),
        "sequential generate": partial(engines.sequential, other, work[:: max(1, len(work) // args.sequential)]),
    }
    if args.prototype and Path(args.prototype).is_file():
        ways["prototype"] = partial(engines.prototype, Path(args.prototype), copy.deepcopy(model), work)
    wanted = args.only is None or "llama.cpp" in args.only
    if wanted and all(importlib.util.find_spec(name) for name in ("llama_cpp", "gguf")):
        options = {"model": args.model, "dtype": args.dtype, "threads": args.threads}
        ways["llama.cpp"] = llamacpp.Worker(**options, groups=args.groups, members=args.members)
    if args.only:
        ways = {name: way for name, way in ways.items() if name in args.only}
    engine_costs.play(engine, work[:2])  # packs the weights and compiles the kernel
    used, live_bytes, held = engine_costs.memory(engine, work)
    trace = _watch(engine)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    turns = engine_costs.growth(engine, vocabulary)
    for _ in range(args.rounds):
        for name, run in ways.items():
            before = engine.stats.fed
            trace.clear()
            start = time.perf_counter()
            sampled = run()
            rates[name].append(sampled / (time.perf_counter() - start))
            print(f"  {name}: {rates[name][-1]:.1f} tok/s", flush=True)
            if name == "ours":
                fed, steps = engine.stats.fed - before, list(trace)
    medians = {name: statistics.median(r) for name, r in rates.items()}
    ours = medians.get("ours", float("nan"))
    if "ours" in medians:
        limit = sum(e.sampled for e in work) / _roofline(engine, steps, model)
        medians["roofline of the same steps"] = limit
    print(f"\n{args.model} {args.dtype}, {args.threads} threads, {len(work)} episodes, medians of {args.rounds}")
    print(f"{'':30}{'tok/s':>9}{'ours is':>10}")
    for name, rate in medians.items():
        print(f"{name:30}{rate:9.1f}{ours / rate:9.2f}x")
    if "ours" in medians:
        print(f"tokens fed {fed}, unique tokens {workload.unique_tokens(work)}; forwards {len(steps)}")
    print(
        f"memory over the weights {used >> 20} MiB at most, {used / live_bytes:.2f}x the keys and values of live tokens"
    )
    print(f"({live_bytes >> 20} MiB; their blocks {held >> 20} MiB)")
    print("ms a sampled id by turns: " + ", ".join(f"{count}: {1000 * seconds:.1f}" for count, seconds in turns))
    print(f"({turns[-1][0]} turns cost {turns[-1][1] / turns[0][1]:.2f}x of {turns[0][0]})")


def _watch(engine: Engine) -> list[tuple[int, int, int]]:
    """For each forward: tokens, rows of the language head, cells that rows read (shared ones once)."""
    trace: list[tuple[int, int, int]] = []
    forward = engine.packed.forward

    def watched(pool: Any, feeds: Any, wanted: Any) -> Any:
        cells: dict[Any, int] = {}
        for span, first, count in feeds:
            for part, upto in span.path():
                used = first + count if part is span else upto
                cells[part] = max(cells.get(part, 0), used)
        trace.append((sum(f.length for f in feeds), max(1, len(wanted)), sum(cells.values())))
        return forward(pool, feeds, wanted)

    engine.packed.forward = watched  # type: ignore[method-assign]
    return trace


def _roofline(engine: Engine, steps: list[tuple[int, int, int]], model: Any) -> float:
    """Seconds that the matrix products of these steps and one reading of their keys and values take by themselves."""
    config = model.config.get_text_config()
    grid = [1, 4, 16, 32, 48, 64, 96, 128, 256, 512, 1024]
    dtype = model.dtype
    linears = engine.packed.linears
    head = config.vocab_size
    body_time: list[float] = []
    head_time: list[float] = []
    families = linears.families if linears is not None else []
    for rows in grid:
        inputs = {f.layers[0].in_features: torch.randn(rows, f.layers[0].in_features).to(dtype) for f in families}
        body = [f for f in families if f.layers[0].out_features != head]
        last = [f for f in families if f.layers[0].out_features == head]
        for group, times in ((body, body_time), (last, head_time)):
            times.append(_best(lambda g=group, x=inputs: [f.product(x[f.layers[0].in_features]) for f in g]))
    big = torch.ones(48 << 20)
    bandwidth = big.nbytes / _best(lambda: big.sum())
    cell = engine.pool.cell_bytes
    seconds = 0.0
    for tokens, wanted, cells in steps:
        seconds += float(np.interp(tokens, grid, body_time)) + float(np.interp(wanted, grid, head_time))
        seconds += cells * cell / bandwidth
    return seconds


@torch.inference_mode()
def _best(run: Callable[[], Any], seconds: float = 1.0) -> float:
    run()
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    main()
