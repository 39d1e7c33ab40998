"""The routes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response

from toolstep.rollout.serve.answers import Answer
from toolstep.rollout.serve.ask import ask_chat, ask_completion
from toolstep.rollout.serve.body import BodyLimit
from toolstep.rollout.serve.errors import APIError, BadRequest
from toolstep.rollout.serve.generation import Events, Generation
from toolstep.rollout.serve.metrics import Metrics
from toolstep.rollout.serve.protocol import ChatRequest, CompletionRequest, Sampling
from toolstep.rollout.serve.reply import EventStream, Running, whole
from toolstep.rollout.serve.served import Served

_ENDPOINTS = {"/v1/chat/completions": "chat", "/v1/completions": "completions"}
Asked = tuple[Answer, Sequence[Generation]]


def make_app(served: Served) -> FastAPI:
    """The server as an ASGI app.  Its worker runs from startup to shutdown."""
    worker, metrics = served.worker, Metrics(served.worker)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker.start(asyncio.get_running_loop())
        yield
        await run_in_threadpool(worker.close)

    app = FastAPI(title="toolstep", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    def over(http: Request, status: int) -> None:
        if endpoint := _ENDPOINTS.get(http.url.path):
            now = time.monotonic()
            metrics.count(endpoint, status, now - getattr(http.state, "began", now))

    app.add_middleware(BodyLimit)
    _answer_errors_in_openais_form(app, over)

    async def answer(http: Request, request: Sampling, ask: Callable[[Events], Asked]) -> Response:
        http.state.began = time.monotonic()
        events: Events = asyncio.Queue()
        served.check_model(request.model)
        answer, generations = await run_in_threadpool(ask, events)
        worker.submit(generations)
        running = Running(worker, answer, generations, events, partial(over, http))
        if request.stream:
            usage = request.stream_options is not None and request.stream_options.include_usage
            return EventStream(running, usage=usage)
        return await whole(http, running)

    @app.post("/v1/chat/completions")
    async def chat(request: ChatRequest, http: Request) -> Response:
        return await answer(http, request, lambda events: ask_chat(served, request, events))

    @app.post("/v1/completions")
    async def completions(request: CompletionRequest, http: Request) -> Response:
        return await answer(http, request, lambda events: ask_completion(served, request, events))

    def card() -> dict[str, Any]:
        return {
            "id": served.name,
            "object": "model",
            "created": served.created,
            "owned_by": "toolstep",
            "max_model_len": served.max_context,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        served.check_model(name)
        return card()

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"} if worker.alive else {"status": "stopping"}, 200 if worker.alive else 503)

    @app.get("/metrics")
    async def metrics_text() -> Response:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    return app


def _answer_errors_in_openais_form(app: FastAPI, over: Callable[[Request, int], None]) -> None:
    def reply(http: Request, error: APIError, status: int | None = None) -> Response:
        over(http, status or error.status)
        headers = None if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return JSONResponse(error.body, status or error.status, headers)

    async def api_error(http: Request, error: Exception) -> Response:
        assert isinstance(error, APIError)
        return reply(http, error)

    async def invalid(http: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # Of the ways to read a field the one that went furthest; the names of those ways are no part of the path.
        furthest = max(error.errors(), key=lambda e: len(e["loc"]))
        steps = () if furthest["type"] == "json_invalid" else furthest["loc"]
        path = [str(step) for step in steps if step not in ("body", "str", "OneTool") and "[" not in str(step)]
        where = ".".join(path)
        return reply(http, BadRequest(f"{where}: {furthest['msg']}" if where else str(furthest["msg"]), where or None))

    async def other(http: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return reply(http, BadRequest(str(error.detail)), error.status_code)

    async def bug(http: Request, error: Exception) -> Response:
        failed = APIError("internal error")
        failed.kind = "server_error"
        return reply(http, failed, 500)

    handlers: tuple[tuple[type[Exception], Callable[[Request, Exception], Awaitable[Response]]], ...] = (
        (APIError, api_error),
        (RequestValidationError, invalid),
        (HTTPException, other),
        (Exception, bug),
    )
    for kind, handler in handlers:
        app.add_exception_handler(kind, handler)
