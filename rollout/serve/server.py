"""A server process: model, worker, app and uvicorn, until a signal ends it."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

import uvicorn

from toolstep.agents.engine import Engine
from toolstep.agents.shipped import model_source
from toolstep.agents.weights import load_model
from toolstep.envs.chat import ChatTemplate, ChatTemplateError, load_tokenizer
from toolstep.envs.chat.stop_tokens import default_stop_tokens, stop_texts
from toolstep.rollout.serve.app import make_app
from toolstep.rollout.serve.served import Served
from toolstep.rollout.serve.worker import Worker

_BACKSTOP = 5.0  # seconds behind the worker's own end until uvicorn drops what is left


@dataclass(frozen=True, slots=True)
class Options:
    """What `toolstep serve` is told; see its help."""

    model: str
    host: str
    port: int
    served_model_name: str | None
    device: str | None
    dtype: str | None
    max_context: int | None
    max_running: int
    max_queue: int
    kv_tokens: int | None
    cache_tokens: int
    chat_template: str | None
    tool_call_format: str | None
    stop_token: list[str] | None
    grace: float


def serve(options: Options) -> None:
    """Serve until SIGTERM or SIGINT; a second one drops what still runs.

    Raises OSError where the address can't be had, and what loading a model or a tokenizer raises.
    """
    listener = _bind(options.host, options.port)
    with listener:
        served = load(options)
        config = uvicorn.Config(
            make_app(served),
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, int(options.grace + _BACKSTOP)),
        )
        server = _Server(config, served, options.grace)
        host = f"[{options.host}]" if ":" in options.host else options.host
        asyncio.run(server.serve_at(listener, f"http://{host}:{listener.getsockname()[1]}/v1"))


def load(options: Options) -> Served:
    """Model, tokenizer, chat template and engine."""
    tokenizer = load_tokenizer(model_source(options.model))
    chat, no_chat = None, ""
    try:
        chat = ChatTemplate(
            tokenizer,
            chat_template=options.chat_template,
            stop_tokens=options.stop_token or None,
            tool_call_format=options.tool_call_format,
        )
        stop_ids = chat.stop_ids
    except ChatTemplateError as error:
        no_chat = str(error)
        _say(f"no chat completions: {no_chat}")
        names = stop_texts(options.stop_token or default_stop_tokens(tokenizer), tokenizer)
        stop_ids = frozenset(int(tokenizer.convert_tokens_to_ids(name)) for name in names)
    model = load_model(options.model, options.device, options.dtype)
    engine = Engine(model, max_context=options.max_context, kv_tokens=options.kv_tokens)
    worker = Worker(
        engine,
        tokenizer,
        max_running=options.max_running,
        max_queue=options.max_queue,
        kv_tokens=options.kv_tokens,
        cache_tokens=options.cache_tokens,
    )
    return Served(options.served_model_name or options.model, worker, tokenizer, stop_ids, chat, no_chat)


class _Server(uvicorn.Server):
    """uvicorn, with an end of our own: what runs may finish within `grace` seconds, and the exit code is 0."""

    def __init__(self, config: uvicorn.Config, served: Served, grace: float):
        super().__init__(config)
        self._served, self._grace = served, grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._address = ""

    async def serve_at(self, listener: socket.socket, address: str) -> None:
        self._loop, self._address = asyncio.get_running_loop(), address
        await self.serve([listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _say(f"serving {self._served.name} at {self._address}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's, which raises the signal once more when all is over.
        grace = 0.0 if self.should_exit else self._grace
        self.should_exit = True
        if self._loop is not None:  # from a signal handler: no lock may be taken here
            self._loop.call_soon_threadsafe(self._served.worker.drain, grace)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: an address in use is found before the model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror or error}") from error
    listener.set_inheritable(True)
    return listener


def _say(text: Any) -> None:
    print(f"toolstep: {text}", file=sys.stderr, flush=True)
