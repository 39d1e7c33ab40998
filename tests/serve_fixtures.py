"""Servers for the tests: in a thread of this process over a real socket, and as a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import uvicorn
from openai import OpenAI
from tiny import tiny_model, tiny_tokenizer

from toolstep.agents import Engine
from toolstep.envs.chat import ChatTemplate
from toolstep.envs.types import Message, ToolCall, Turn
from toolstep.rollout.serve.app import make_app
from toolstep.rollout.serve.served import Served
from toolstep.rollout.serve.worker import Worker

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60  # seconds after which a test gives up; nothing here takes more than a few

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two integers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
QUESTION = {"role": "user", "content": "2 + 3? 4 + 5?"}
CALLS = (ToolCall("", "add", "", {"a": 2, "b": 3}), ToolCall("", "add", "", {"a": 4, "b": 5}))
FIRST = Turn("Adding.", None, CALLS)
LAST = "They are 5 and 9: größer 🙂."


@dataclass
class Running:
    """A server and its client."""

    url: str  # without /v1
    served: Served | None = None

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=PATIENCE) as response:
            text: str = response.read().decode()
        return text

    def metric(self, name: str) -> float:
        found = re.search(rf"^toolstep_{re.escape(name)} (\S+)$", self.get("/metrics"), re.M)
        assert found is not None, name
        return float(found[1])


@contextmanager
def serving(
    model: Any, tokenizer: Any, *, name: str = "tiny", max_running: int = 32, max_queue: int = 64, **options: Any
) -> Iterator[Running]:
    """A server in a thread, at a free port of the loopback.  options: of the worker and the engine."""
    kv_tokens, cache_tokens = options.pop("kv_tokens", None), options.pop("cache_tokens", 4096)
    engine = Engine(model, verify=False, kv_tokens=kv_tokens, **options)
    worker = Worker(
        engine,
        tokenizer,
        max_running=max_running,
        max_queue=max_queue,
        kv_tokens=kv_tokens,
        cache_tokens=cache_tokens,
    )
    chat = ChatTemplate(tokenizer)
    served = Served(name, worker, tokenizer, chat.stop_ids, chat)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(make_app(served), log_level="warning", lifespan="on", timeout_graceful_shutdown=5)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    try:
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", served)
    finally:
        server.should_exit = True
        worker.drain(0)
        thread.join(PATIENCE)
        assert not thread.is_alive()


@contextmanager
def process(folder: Path, model: str, *options: str) -> Iterator[tuple[Running, subprocess.Popen[str]]]:
    """`toolstep serve` as a user runs it."""
    (folder / "toolstep").mkdir(exist_ok=True)
    for name in ("envs", "agents", "rollout"):
        if not (folder / "toolstep" / name).exists():
            (folder / "toolstep" / name).symlink_to(ROOT / name)
    line = [sys.executable, "-m", "toolstep.rollout.cli", "serve", model, "--port", "0", *options]
    env = {**os.environ, "PYTHONPATH": str(folder)}
    running = subprocess.Popen(line, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    killer = threading.Timer(2 * PATIENCE, running.kill)
    killer.start()
    try:
        assert running.stderr is not None
        said = ""
        while not (found := re.search(r"serving \S+ at (http://\S+)/v1\n", said)):
            read = running.stderr.readline()
            assert read, f"the server ended: {said}"
            said += read
        yield Running(found[1]), running
    finally:
        killer.cancel()
        running.kill()
        running.communicate()


def save(folder: Path, model: Any, tokenizer: Any) -> Path:
    model.generation_config.eos_token_id = model.config.eos_token_id = tokenizer.eos_token_id
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def taught() -> tuple[Any, Any]:
    """A tiny model that knows one conversation by heart (two calls, their results, an answer), and its tokenizer."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    chat = ChatTemplate(tokenizer)
    question = Message("user", QUESTION["content"])
    said = Message("assistant", FIRST.content, CALLS)
    results = [Message("tool", "5"), Message("tool", "9")]
    lessons = [
        (chat.prompt([question], [ADD]).ids, chat.encode_turn(chat.write(FIRST))),
        (chat.prompt([question, said, *results], [ADD]).ids, chat.encode_turn(LAST)),
    ]
    rows = [np.concatenate(pair) for pair in lessons]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    labels = torch.full_like(ids, -100)
    for i, (row, (prompt, _)) in enumerate(zip(rows, lessons, strict=True)):
        ids[i, : len(row)] = torch.from_numpy(row)
        labels[i, len(prompt) : len(row)] = torch.from_numpy(row[len(prompt) :])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    model.train()
    for _ in range(300):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.01:
            break
    return model.eval(), tokenizer
