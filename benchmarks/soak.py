"""Resident memory of the engine over many short episodes: it has to stay flat.

    python benchmarks/soak.py [--episodes 10000] [--rows 64]

A small random Llama plays episodes of one to four turns; one turn in twenty is cancelled and asked for again, and
memory is short, so that turns wait and give up theirs.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import workload
from engine_costs import resident
from rich.progress import track
from transformers import LlamaConfig, LlamaForCausalLM

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    engine = Engine(LlamaForCausalLM(config).eval(), kv_tokens=args.rows * 60)
    rounds = max(1, args.episodes // 10 // args.rows)
    random = np.random.default_rng(0)
    print("episodes   resident MiB")
    done = 0
    for _ in track(range(10), "episodes"):
        for _ in range(rounds):
            _play(engine, args.rows, random)
            done += args.rows
        print(f"{done:8}   {resident() / 2**20:8.1f}", flush=True)
    print(f"{engine.stats}")


def _play(engine: Engine, rows: int, random: np.random.Generator) -> None:
    work = workload.episodes(
        vocabulary=1000,
        groups=rows // 4,
        members=4,
        prompt=(20, 60),
        sampled=(2, 8),
        observed=(2, 12),
        seed=int(random.integers(1 << 30)),
    )
    turn = dict.fromkeys(range(len(work)), 0)
    tickets: dict[int, tuple[int, list[int]]] = {}

    def submit(row: int, ids: list[int]) -> None:
        params = SamplingParams(max_new_tokens=work[row].limits[turn[row]])
        tickets[row] = engine.submit(row, ids, params), ids

    for row, episode in enumerate(work):
        engine.start(row, episode.number)
        submit(row, episode.prompt)
    while engine.busy:
        if random.random() < 0.05:
            row = int(random.choice(list(tickets)))
            ticket, ids = tickets[row]
            engine.cancel(ticket)
            submit(row, ids)
        for _, row, _ in engine.step():
            del tickets[row]
            turn[row] += 1
            if turn[row] < len(work[row].limits):
                submit(row, work[row].observations[turn[row] - 1])
            else:
                engine.release(row)


if __name__ == "__main__":
    main()
