"""Sending an answer: whole, or as server-sent events; a client that goes away frees its place at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from toolstep.rollout.serve.answers import Answer
from toolstep.rollout.serve.errors import APIError
from toolstep.rollout.serve.generation import Chunk, Events, Generation
from toolstep.rollout.serve.worker import Worker

CLIENT_GONE = 499


@dataclass
class Running:
    """A request whose generations are with the worker.  over: is told the status of an answer that was not refused."""

    worker: Worker
    answer: Answer
    generations: Sequence[Generation]
    events: Events
    over: Callable[[int], None]

    async def chunks(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """What happens to the generations until all are over.  Raises APIError where one of them failed."""
        while self.answer.open:
            index, event = await self.events.get()
            if isinstance(event, Exception):
                raise event
            yield index, event

    def leave(self) -> None:
        """Nobody listens any more."""
        if self.answer.open:
            self.worker.cancel(self.generations)


async def whole(http: Request, running: Running) -> Response:
    """The answer once it is complete."""

    async def collect() -> None:
        async with aclosing(running.chunks()) as chunks:
            async for index, chunk in chunks:
                running.answer.take(index, chunk)

    work, gone = asyncio.ensure_future(collect()), asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            running.over(CLIENT_GONE)
            return Response(status_code=CLIENT_GONE)
        work.result()
        running.over(200)
        return JSONResponse(running.answer.whole())
    finally:
        running.leave()
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


class EventStream(StreamingResponse):
    """Server-sent events.  An error behind the headers is an event of its own.

    usage: whether a chunk with the usage is sent at the end.
    """

    def __init__(self, running: Running, *, usage: bool):
        self._running, self._usage, self._status = running, usage, CLIENT_GONE
        super().__init__(self._events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:  # also where the client went away before the first event
            self._running.leave()
            self._running.over(self._status)

    async def _events(self) -> AsyncIterator[str]:
        answer = self._running.answer
        try:
            for opening in answer.opening():
                yield _event(opening)
            async with aclosing(self._running.chunks()) as chunks:
                async for index, chunk in chunks:
                    if (shown := answer.take(index, chunk)) is not None:
                        yield _event(shown)
            if self._usage:
                yield _event(answer.closing())
            self._status = 200
        except APIError as error:
            self._status = error.status
            yield _event(error.body)
        yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n"


async def _disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
