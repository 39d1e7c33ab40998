"""Sampled tokens a second of the rollout engine on workload W, against other ways to do the same token work.

    python benchmarks/engine.py                      # SmolLM2-135M in fp32, all of W: 40 minutes on 2 cores
    python benchmarks/engine.py --groups 2 --rounds 1
    python benchmarks/engine.py --prototype PATH/slot_engine.py --dtype bfloat16
    python benchmarks/engine.py --device cuda

Every engine runs once in every round, so that a busy machine disturbs all alike; the table shows medians and ratios.
On a CPU llama.cpp takes part where llama-cpp-python and gguf are installed, on CUDA vLLM where that is.  Then: memory,
the cost of turns.  The roofline of the steps that ours took is measured beside each of its rounds.
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
from typing import Any, NamedTuple

import engine_costs
import engines
import llamacpp
import torch
import vllm_way
import workload

from toolstep.agents.engine import Engine
from toolstep.agents.engine.graphs import Graphs
from toolstep.agents.weights import load_model

Product = Callable[[torch.Tensor], torch.Tensor]


class Seconds(NamedTuple):
    """Of something that was done many times: on a shared machine the two are 10 % apart."""

    best: float
    median: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", help="default: float32, on CUDA bfloat16")
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
    on_gpu = torch.device(args.device).type == "cuda"
    args.dtype = args.dtype or ("bfloat16" if on_gpu else "float32")
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
    if not on_gpu and args.prototype and Path(args.prototype).is_file():
        ways["prototype"] = partial(engines.prototype, Path(args.prototype), copy.deepcopy(model), work)
    if not on_gpu and _takes_part("llama.cpp", args.only, "llama_cpp", "gguf"):
        options = {"model": args.model, "dtype": args.dtype, "threads": args.threads}
        ways["llama.cpp"] = llamacpp.Worker(**options, groups=args.groups, members=args.members)
    if on_gpu and _takes_part("vLLM", args.only, "vllm"):
        ways["vLLM"] = vllm_way.Vllm(model, work)
    if args.only:
        ways = {name: way for name, way in ways.items() if name in args.only}
    engine_costs.play(engine, work[:2])  # packs the weights and compiles the kernel
    used, live_bytes, held = engine_costs.memory(engine, work)
    trace = _watch(engine)
    rates: dict[str, list[float]] = {name: [] for name in ways}
    turns = engine_costs.growth(engine, vocabulary)
    limits: list[Seconds] = []  # beside each round of ours: the memory of a shared machine is not always as fast
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
                limits.append(_roofline(engine, steps, model))
    medians = {name: statistics.median(r) for name, r in rates.items()}
    ours = medians.get("ours", float("nan"))
    if limits:
        for name, times in (("at its best", [x.best for x in limits]), ("as a rule", [x.median for x in limits])):
            medians[f"roofline, {name}"] = sum(e.sampled for e in work) / statistics.median(times)
    where = torch.cuda.get_device_name(args.device) if on_gpu else f"{args.threads} threads"
    print(f"\n{args.model} {args.dtype}, {where}, {len(work)} episodes, medians of {args.rounds}")
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


def _takes_part(name: str, only: list[str] | None, *packages: str) -> bool:
    return (only is None or name in only) and all(importlib.util.find_spec(package) for package in packages)


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


def _roofline(engine: Engine, steps: list[tuple[int, int, int]], model: Any) -> Seconds:
    """What the matrix products of these steps and one reading of their keys and values take by themselves.

    Products are timed at each step's own number of rows: they cost the same over some numbers and jump between them.
    """
    device, dtype = model.device, model.dtype
    linears = engine.packed.linears
    if linears is not None:
        products: list[tuple[int, int, Product]] = [
            (f.layers[0].in_features, f.layers[0].out_features, f.product) for f in linears.families
        ]
    else:
        layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
        products = [(layer.in_features, layer.out_features, layer) for layer in layers]
    head = model.config.get_text_config().vocab_size
    body = [(width, product) for width, out, product in products if out != head]
    last = [(width, product) for width, out, product in products if out == head]

    def times(group: list[tuple[int, Product]], counts: set[int]) -> dict[int, Seconds]:
        out = dict.fromkeys(counts, Seconds(0.0, 0.0))
        for rows in sorted(counts) if group else ():
            inputs = {width: torch.randn(rows, width, device=device).to(dtype) for width, _ in group}
            out[rows] = _seconds(partial(_through, group, inputs), device, seconds=0.3)
        return out

    body_time = times(body, {tokens for tokens, _, _ in steps})
    head_time = times(last, {wanted for _, wanted, _ in steps})
    big = torch.ones((1 << 28) if device.type == "cuda" else (48 << 20), device=device)
    reading = _seconds(lambda: big.sum(), device)
    share = sum(cells for _, _, cells in steps) * engine.pool.cell_bytes / big.nbytes
    parts = [body_time[tokens] for tokens, _, _ in steps] + [head_time[wanted] for _, wanted, _ in steps]
    best, median = (sum(column) for column in zip(*parts, strict=True))
    return Seconds(best + share * reading.best, median + share * reading.median)


def _through(group: list[tuple[int, Product]], inputs: dict[int, torch.Tensor]) -> torch.Tensor:
    return [product(inputs[width]) for width, product in group][-1]


@torch.inference_mode()
def _seconds(run: Callable[[], torch.Tensor], device: torch.device, seconds: float = 1.0) -> Seconds:
    """How long a run takes; on CUDA as one graph, so that no launch is in it."""
    if device.type == "cuda":
        run = Graphs(device)(run)
    run()
    taken, start = [], time.perf_counter()
    while time.perf_counter() - start < seconds:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - begin)
    return Seconds(min(taken), statistics.median(taken))


if __name__ == "__main__":
    main()
