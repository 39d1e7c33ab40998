"""JSON over HTTP to one server, from any thread: so many requests at a time, each with a deadline, retried by rule."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import weakref
from collections import Counter
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from toolstep.agents.server.errors import ServerError
from toolstep.agents.server.retry import Retries, may_retry
from toolstep.envs.tools.loop_thread import LoopThread

if TYPE_CHECKING:
    import httpx2

_MOST_BYTES = 1 << 26  # of one reply
_SHOWN = 400  # characters of a server's own message
_LEAVING = 5.0  # seconds that connections may take to close
_CONNECT = 10.0  # seconds
_NO_HEADERS: Mapping[str, str] = {}
T = TypeVar("T")


class Client:
    """Connections to the server at `url`, a base address without a slash at its end.

    key: sent as a bearer token; it is never part of a message, a repr or a log.  concurrency: requests under way at a
    time; more wait their turn.  timeout: seconds that one attempt may take.  deadline: seconds from the first attempt
    after which a request is given up, retries included.

    A thread with an event loop begins with the first request and ends with `close`; another request begins a new one.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        concurrency: int = 64,
        timeout: float = 300.0,
        deadline: float = 900.0,
        retries: Retries | None = None,
    ) -> None:
        if concurrency < 1 or not timeout > 0 or not deadline > 0:
            raise ValueError(
                f"concurrency must be >= 1, timeout and deadline > 0 s; got {concurrency}, {timeout} and {deadline}"
            )
        self.url, self.concurrency, self.timeout, self.deadline = url, concurrency, timeout, deadline
        self.retries = retries if retries is not None else Retries()
        self.count_anew()
        self._key = key
        self._lock = threading.Lock()
        self._loop: LoopThread | None = None
        self._http: httpx2.AsyncClient | None = None
        self._gate = asyncio.Semaphore(concurrency)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def count_anew(self) -> None:
        """Set the counts to 0."""
        self.requests = 0
        self.retried: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def counts(self) -> dict[str, Any]:
        """Requests, and how many were sent again and failed for good, by kind; JSON-able."""
        return {"requests": self.requests, "retried": dict(self.retried), "failed": dict(self.failed)}

    def post(
        self, path: str, body: Mapping[str, Any], *, seed: int = 0, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Future[Any]:
        """Send JSON; the future has the reply, or raises ServerError.  seed: decides the jitter of its retries."""
        return self.run(self.send(path, body, seed=seed, headers=headers))

    def get(self, path: str) -> Any:
        """The JSON at `path`, once it is there.  Raises ServerError."""
        return self.run(self._ask("GET", path, None, 0, {})).result()

    def plain(self, text: str) -> str:
        """A server's words on one line, without the key, which some repeat."""
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join(text.split())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run what sends requests in the client's thread.

        Cancelling the future drops the connection, which makes servers stop generating.
        """
        return self._thread().submit(coroutine)

    def close(self) -> None:
        """Drop all connections; may be called again, and the client may be used again."""
        with self._lock:
            loop, http, self._loop, self._http = self._loop, self._http, None, None
        if loop is not None:
            _leave(loop, http)

    def _thread(self) -> LoopThread:
        import httpx2

        with self._lock:
            if self._loop is None:
                headers = {"accept": "application/json", "user-agent": "toolstep"}
                if self._key is not None:
                    headers["authorization"] = f"Bearer {self._key}"
                self._http = httpx2.AsyncClient(
                    headers=headers,
                    follow_redirects=False,  # the key is for this server alone
                    timeout=httpx2.Timeout(None, connect=_CONNECT),
                    limits=httpx2.Limits(max_connections=None, max_keepalive_connections=self.concurrency),
                )
                self._gate = asyncio.Semaphore(self.concurrency)
                self._loop = LoopThread("toolstep-server-client")
                weakref.finalize(self, self._loop.stop)
            return self._loop

    # ------------------------------------------------------------------ in the loop
    async def send(
        self, path: str, body: Mapping[str, Any], *, seed: int = 0, headers: Mapping[str, str] = _NO_HEADERS
    ) -> Any:
        """`post`, for what runs in the client's thread already."""
        try:
            content = json.dumps(body, allow_nan=False).encode()
        except ValueError as error:
            raise ServerError("bad_request", f"{self.url}{path}: the request cannot be written: {error}") from None
        return await self._ask("POST", path, content, seed, dict(headers))

    async def _ask(self, method: str, path: str, content: bytes | None, seed: int, headers: dict[str, str]) -> Any:
        self.requests += 1
        clock = asyncio.get_running_loop()
        until: float | None = None
        for attempt in itertools.count():
            async with self._gate:
                until = clock.time() + self.deadline if until is None else until
                patience = min(self.timeout, until - clock.time())
                try:
                    async with asyncio.timeout(patience):
                        return await self._once(method, path, content, headers)
                except TimeoutError:
                    error = ServerError("timeout", f"{self.url}{path}: no answer in {patience:.3g} s", retry=True)
                except ServerError as known:
                    error = known
            wait = self.retries.delay(attempt, seed, error)
            if not error.retry or attempt >= self.retries.most or clock.time() + wait >= until:
                self.failed[error.kind] += 1
                tries = f" (after {attempt + 1} attempts)" if attempt else ""
                raise ServerError(error.kind, f"{error}{tries}")
            self.retried[error.kind] += 1
            await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _once(self, method: str, path: str, content: bytes | None, headers: dict[str, str]) -> Any:
        import httpx2

        assert self._http is not None
        if content is not None:
            headers = {"content-type": "application/json", **headers}
        where = f"{self.url}{path}"
        try:
            async with self._http.stream(method, where, content=content, headers=headers) as response:
                data = bytearray()
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > _MOST_BYTES:
                        raise ServerError("too_long", f"{where}: the reply has more than {_MOST_BYTES} bytes")
        except httpx2.TimeoutException as error:
            raise ServerError("timeout", f"{where}: {type(error).__name__}", retry=True) from None
        except httpx2.ConnectError as error:
            raise ServerError(
                "unreachable",
                f"{where}: cannot connect ({self.plain(str(error))}); is the server running?",
                retry=True,
            ) from None
        except httpx2.HTTPError as error:  # a broken connection, or a content encoding that is none
            what = self.plain(str(error)) or type(error).__name__
            raise ServerError("cut_reply", f"{where}: the reply was cut ({what})", retry=True) from None
        if response.status_code != httpx2.codes.OK:
            raise self._refused(where, response, bytes(data))
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise ServerError(
                "cut_reply", f"{where}: the reply is no JSON, or cut: {len(data)} bytes", retry=True
            ) from None

    def _refused(self, where: str, response: httpx2.Response, data: bytes) -> ServerError:
        status = response.status_code
        hint = {
            401: "; the key is missing or wrong",
            403: "; the key may not be used for this",
            404: "; is the address right, and does the server have this model?",
        }.get(status, "")
        if self._key:  # before anything is shortened, which could leave a part of it
            data = data.replace(self._key.encode(), b"***")
        said = self.plain(_message(data))[:_SHOWN]
        return ServerError(
            str(status),
            f"{where} answered {status}{': ' + said if said else ''}{hint}",
            retry=may_retry(status),
            retry_after=_seconds(response.headers.get("retry-after")),
        )


def _leave(loop: LoopThread, http: httpx2.AsyncClient | None) -> None:
    if http is not None:
        with contextlib.suppress(Exception):  # the loop ends below in any case, and its sockets with it
            loop.submit(http.aclose()).result(_LEAVING)
    loop.close(_LEAVING)


def _message(data: bytes) -> str:
    """The message in a reply that is an error, in the forms that servers have for it."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return data[:_SHOWN].decode("utf-8", "replace")
    for key in ("error", "message", "detail"):
        value = body.get(key) if isinstance(body, dict) else None
        if isinstance(value, dict):
            value = value.get("message")
        if isinstance(value, str):
            return value
    return json.dumps(body)[:_SHOWN]


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds; a date is not worth a clock's trust."""
    try:
        value = float(header or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
