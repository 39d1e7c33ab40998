"""What report.html costs: its size, the time to write it, and the time until a browser shows it.

    python benchmarks/report.py --episodes 200 --tokens 2000

Episodes are made up: words of SmolLM2's vocabulary in turns of a call, its result and an answer, half of the ids
sampled, log-probabilities of the sampler and of the plain model.  Opening needs Chromium and its driver (`make browser`
says how to get them).  Wall-clock time depends on what else the machine does; the processor time of all of the
browser's processes together hardly does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from toolstep.envs.chat import load_tokenizer
from toolstep.envs.types import Source
from toolstep.rollout.evaluate import summarize
from toolstep.rollout.types import Trajectory
from toolstep.rollout.viewer.page import page

TURNS = 8
SCRIPTS = {
    "token view": "[...document.querySelectorAll('button')].find(b => b.textContent === 'Tokens').click()",
    "first search": "document.getElementById('query').value = 'zebra'; "
    "document.getElementById('outcome').dispatchEvent(new Event('change', { bubbles: true }))",
}


def episode(number: int, length: int, tokenizer: Any) -> Trajectory:
    """`length` ids in 8 turns: the first half of a turn observed, the other sampled."""
    rng = np.random.default_rng(number)
    # Few words are frequent and many are rare, as in text.
    ids = (rng.zipf(1.3, size=length) % len(tokenizer)).astype(np.int32)
    turn = (np.arange(length) * TURNS // length).astype(np.int32)
    seen = np.arange(length) % (length // TURNS) < length // TURNS // 2
    source = np.where(seen, np.where(turn == 0, Source.PROMPT, Source.BODY), Source.SAMPLED).astype(np.uint8)
    mask = source == Source.SAMPLED
    logprobs = np.where(mask, -rng.exponential(0.5, length), 0.0).astype(np.float32)
    messages: list[dict[str, Any]] = []
    for k in range(TURNS):
        here = ids[(turn == k) & seen], ids[(turn == k) & ~seen]
        read, wrote = (tokenizer.decode(part) for part in here)
        call = {"id": f"c{k}", "type": "function", "function": {"name": "search", "arguments": {"query": wrote}}}
        messages.append(
            {"role": "tool" if k else "user", "content": read, "name": "search", "tool_call_id": f"c{k - 1}"}
        )
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
    return Trajectory(
        token_ids=ids,
        source=source,
        logprobs=logprobs,
        model_logprobs=(logprobs * np.float32(1.1)).astype(np.float32),
        turn=turn,
        weight_versions=np.where(mask, 0, -1).astype(np.int32),
        prompt_length=int((source == Source.PROMPT).sum()),
        turn_rewards=np.eye(1, TURNS, TURNS - 1, dtype=np.float32)[0] * (number % 2),
        terminated=True,
        truncated=False,
        stop_reason="answered",
        status="ok",
        task_id=f"made-up/{number}",
        group_id=number,
        sample_index=0,
        seed=number,
        messages=messages,
        metrics={"success": float(number % 2)},
        tags={"level": str(number % 3 + 1)},
    )


def processor_seconds(parent: int) -> float:
    """User and system time of a process and of all below it, those included that have ended and were waited for."""
    fields = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parts = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            fields[int(folder.name)] = (int(parts[1]), sum(map(int, parts[11:15])) / os.sysconf("SC_CLK_TCK"))
    below, grown = {parent}, True
    while grown:
        more = {p for p, (up, _) in fields.items() if up in below} - below
        below, grown = below | more, bool(more)
    return sum(fields[p][1] for p in below if p in fields)


def openings(path: Path, times: int) -> list[dict[str, float]]:
    """Seconds of each opening: until the list and the first episode are there, until a token view and a search are."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    out = []
    try:
        for _ in range(times):
            driver.get("about:blank")
            used, start = processor_seconds(service.process.pid), time.perf_counter()
            driver.get(path.as_uri())  # returns at the end of the load event; the script runs before it
            assert driver.execute_script("return document.documentElement.dataset.ready") == "true"
            took = {"open": time.perf_counter() - start}
            took["open, processor"] = processor_seconds(service.process.pid) - used
            for name, script in SCRIPTS.items():
                timed = f"const start = performance.now(); {script}; document.body.offsetHeight; "
                took[name] = driver.execute_script(f"{timed} return performance.now() - start") / 1000
            out.append(took)
    finally:
        driver.quit()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=2000, help="of each episode")
    parser.add_argument("--times", type=int, default=5, help="openings; medians are shown")
    args = parser.parse_args()
    tokenizer = load_tokenizer("smollm2")
    trajectories = [episode(n, args.tokens, tokenizer) for n in range(args.episodes)]
    summary = summarize(trajectories)
    start, used = time.perf_counter(), time.process_time()
    data = page(trajectories, summary, {"agent": "made up", "env": "benchmark"}, tokenizer)
    print(f"{args.episodes} episodes of {args.tokens} tokens: {len(data) / 1e6:.2f} MB")
    print(f"made in {time.perf_counter() - start:.2f} s ({time.process_time() - used:.2f} s of processor time)")
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        print("no Chromium here: opening is not measured")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        path.write_bytes(data)
        took = openings(path, args.times)
    for name in took[0]:
        values = [t[name] for t in took]
        print(f"{name}: median {statistics.median(values):.2f} s, worst {max(values):.2f} s")


if __name__ == "__main__":
    main()
