"""How much a request may bring: its body is read into memory before anything is known of it."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST = 16 * 2**20  # bytes; a million token ids are 7


class BodyLimit:
    """ASGI middleware: a body of more than `MOST` bytes is answered 413 as soon as that is known."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MOST:
                raise HTTPException(413, f"the body has more than {MOST} bytes, which is the most that is read")
            return message

        await self._app(scope, limited, send)
