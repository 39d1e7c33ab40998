"""A server on the loopback whose answers a test writes, and a real llama.cpp server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATIENCE = 60  # seconds after which a test gives up; nothing here takes more than a few
REPLIES = Path(__file__).parent / "server_replies"


def recorded(name: str) -> Any:
    return json.loads((REPLIES / f"{name}.json").read_text(encoding="utf-8"))


@dataclass
class Got:
    """A request as it came."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]


@dataclass
class Answer:
    """What is sent back.  cut: no more than so many bytes of it, though all are announced."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None


Rule = Callable[[Got], Answer]


class Scripted:
    """Answers by `rule`, one thread a request; `got` has the requests in the order in which they came."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.got = rule, []
        self.under_way = self.most = 0
        self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(handler) -> None:
                self.answer(handler)

            do_GET = do_POST

            def log_message(handler, *args: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    def answer(self, handler: Any) -> None:
        length = int(handler.headers.get("content-length", 0))
        data = handler.rfile.read(length)
        headers = {k.lower(): v for k, v in handler.headers.items()}
        got = Got(handler.command, handler.path, json.loads(data) if data else None, headers)
        with self.lock:
            self.got.append(got)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            answer = self.rule(got)
        finally:
            with self.lock:
                self.under_way -= 1
        content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        try:
            handler.send_response(answer.status)
            for name, value in {"content-type": "application/json", **answer.headers}.items():
                handler.send_header(name, value)
            handler.send_header("content-length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content if answer.cut is None else content[: answer.cut])
            if answer.cut is not None:
                handler.close_connection = True
        except OSError:  # the client is gone
            handler.close_connection = True

    def of(self, path: str) -> list[Got]:
        return [g for g in self.got if g.path == path]


@contextmanager
def scripted(rule: Rule) -> Iterator[Scripted]:
    server = Scripted(rule)
    server.thread.start()
    try:
        yield server
    finally:
        server.server.shutdown()
        server.server.server_close()
        server.thread.join(PATIENCE)


@contextmanager
def nobody() -> Iterator[str]:
    """An address that is taken, and at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def llama_server(file: Path, *, slots: int = 3, context: int = 512, key: str | None = None) -> Iterator[str]:
    """The address of a llama.cpp server in a process of its own."""
    line = [sys.executable, str(Path(__file__).with_name("llama_server.py")), str(file), str(slots), str(context)]
    env = {**os.environ, **({"LLAMA_TEST_KEY": key} if key else {})}
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env)
    killer = threading.Timer(20 * PATIENCE, process.kill)
    killer.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "llama.cpp did not start"
        yield url
    finally:
        killer.cancel()
        process.kill()
        process.communicate()


def soon(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.01)
