"""The server against the engine that it stands on: SmolLM2-135M over HTTP on the loopback, and in this process.

    python benchmarks/serve.py --requests 32 --tokens 64

Sampled tokens/s of so many requests at once, greedy, each with a prompt of its own (medians of 3 rounds, in turn); then
a chat of 8 turns: what it feeds to the model against the tokens of its prompts and answers.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from openai import OpenAI

from toolstep.agents import Engine, load_model, run_batch

TURNS, ROUNDS = 8, 3
PROMPT = 48  # tokens


@contextmanager
def server(dtype: str) -> Any:
    line = [sys.executable, "-m", "toolstep.rollout.cli", "serve", "smollm2", "--port", "0", "--dtype", dtype]
    running = subprocess.Popen([*line, "--device", "cpu"], stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        while not (found := re.search(r"serving smollm2 at (\S+)/v1", read := running.stderr.readline())):
            assert read, "the server ended"
        yield found[1]
    finally:
        running.terminate()
        running.communicate()


def metric(url: str, name: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics") as response:
        found = re.search(rf"^toolstep_{name} (\d+)", response.read().decode(), re.M)
    assert found
    return int(found[1])


def over_http(url: str, prompts: list[list[int]], tokens: int, *, stream: bool) -> float:
    """Sampled tokens/s."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)

    def ask(prompt: list[int]) -> None:
        done = client.completions.create(
            model="smollm2",
            prompt=prompt,
            max_tokens=tokens,
            temperature=0,
            stream=stream,
            extra_body={"ignore_eos": True},
        )
        for _ in done if stream else ():
            pass

    with ThreadPoolExecutor(len(prompts)) as pool:
        start = time.perf_counter()
        list(pool.map(ask, prompts))
        return len(prompts) * tokens / (time.perf_counter() - start)


def in_process(engine: Engine, prompts: list[list[int]], tokens: int) -> float:
    start = time.perf_counter()
    run_batch(engine, prompts, tokens, 0.0, stop_ids=())
    return len(prompts) * tokens / (time.perf_counter() - start)


def chat(url: str) -> tuple[int, int]:
    """(tokens fed to the model, tokens of prompts and answers) of a conversation whose history comes anew each turn."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600)
    fed, total = metric(url, "fed_tokens_total"), 0
    messages: list[Any] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Tell me about the number {turn + 3} in one sentence."})
        done = client.chat.completions.create(model="smollm2", messages=messages, max_tokens=40, temperature=0)
        total += done.usage.total_tokens
        messages.append({"role": "assistant", "content": done.choices[0].message.content})
    return metric(url, "fed_tokens_total") - fed, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    engine = Engine(load_model("smollm2", "cpu", args.dtype))
    speeds: dict[str, list[float]] = {}
    with server(args.dtype) as url:
        for round_ in range(1 + ROUNDS):  # the first warms up
            rng = np.random.default_rng(round_)
            ways = {
                "in this process, run_batch": lambda p: in_process(engine, p, args.tokens),
                "over HTTP": lambda p: over_http(url, p, args.tokens, stream=False),
                "over HTTP, streamed": lambda p: over_http(url, p, args.tokens, stream=True),
                "over HTTP, one request": lambda p: over_http(url, p[:1], args.tokens, stream=False),
            }
            for name, way in ways.items():
                prompts = [rng.integers(1000, 40000, PROMPT).tolist() for _ in range(args.requests)]
                speed = way(prompts if round_ else prompts[:1])
                if round_:
                    speeds.setdefault(name, []).append(speed)
        print(
            f"{args.requests} requests of {PROMPT} + {args.tokens} tokens, {args.dtype}, "
            f"{torch.get_num_threads()} threads"
        )
        base = statistics.median(speeds["in this process, run_batch"])
        for name, measured in speeds.items():
            speed = statistics.median(measured)
            print(f"  {name:28s}{speed:8.1f} tokens/s ({speed / base:.2f})")
        fed, total = chat(url)
        print(f"chat of {TURNS} turns: {fed} tokens fed, {total} in prompts and answers ({total / fed:.1f}x)")


if __name__ == "__main__":
    main()
