"""Requests over one pool of connections, on a loop and a thread of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.errors import ToolBackendError
from toolstep.envs.tools.loop_thread import LoopThread
from toolstep.envs.tools.openapi.answer import result_of
from toolstep.envs.tools.openapi.request import Outgoing
from toolstep.envs.tools.result import error_result
from toolstep.envs.types import CallStatus, ToolResult

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT = 10.0  # seconds; how long an answer may take is the call's own deadline
MAX_REDIRECTS = 5
PATIENCE = 5.0  # seconds that closing may take
_GONE = ("connection", "content-length", "content-type", "transfer-encoding")  # headers of a body that is not sent


class HTTPClient:
    """Sends the requests of all episodes of one source.  The thread starts with the first call.

    max_bytes: of a body that are read.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.RLock()  # a garbage collection may come in between
        self._process_id = os.getpid()
        self._thread: LoopThread | None = None
        self._http: httpx2.AsyncClient | None = None

    def new_cookies(self) -> httpx2.Cookies:
        """A jar for one episode."""
        import httpx2

        return httpx2.Cookies()

    async def send(self, request: Outgoing, cookies: httpx2.Cookies) -> ToolResult:
        """The answer to a request, awaited in any loop.  Raises ToolBackendError where no server can be reached."""
        with self._lock:
            if self._thread is None or self._process_id != os.getpid():  # a forked child begins anew
                self._thread, self._http, self._process_id = LoopThread("toolstep-openapi"), None, os.getpid()
            sent = self._thread.submit(self._send(request, cookies))
        return await asyncio.wrap_future(sent)

    def close(self, patience: float = PATIENCE) -> None:
        """Close all connections and end the thread; a later call starts them again."""
        if self._process_id != os.getpid():
            return
        with self._lock:
            thread, http, self._thread, self._http = self._thread, self._http, None, None
        if thread is not None:
            if http is not None:
                with contextlib.suppress(Exception):
                    thread.submit(http.aclose()).result(patience)
            thread.close(patience)

    # --------------------------------------------------------------------------------------------------- in the loop
    def _client(self) -> httpx2.AsyncClient:
        import http.cookiejar

        import httpx2

        if self._http is None:
            # Cookies belong to an episode: the client itself takes none.
            none = http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(allowed_domains=[]))
            self._http = httpx2.AsyncClient(
                cookies=none,
                follow_redirects=False,
                timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
            )
        return self._http

    async def _send(self, request: Outgoing, cookies: httpx2.Cookies) -> ToolResult:
        import httpx2

        # What comes compressed could be much larger than it looks.
        headers = {"Accept": "application/json, text/*;q=0.9, */*;q=0.8", "Accept-Encoding": "identity"}
        headers.update(request.headers)
        own = [f"{name}={value}" for name, value in request.cookies.items()]
        method, url, content = request.method, request.url, request.content
        try:
            for _ in range(MAX_REDIRECTS + 1):
                made = self._client().build_request(method, url, headers=headers, content=content)
                cookies.set_cookie_header(made)
                if own:
                    made.headers["cookie"] = "; ".join([*filter(None, [made.headers.get("cookie")]), *own])
                response = await self._client().send(made, stream=True)
                try:
                    cookies.extract_cookies(response)
                    target = urljoin(str(made.url), response.headers.get("location", ""))
                    if not response.has_redirect_location:
                        return await self._read(response)
                    if not _same_origin(made.url, target):
                        shown = httpx2.URL(target).copy_with(query=None, fragment=None, userinfo=b"")
                        message = (
                            f"HTTP {response.status_code}: it leads to another server ({shown}), which is not asked"
                        )
                        return error_result(CallStatus.TOOL_ERROR, message)
                    if response.status_code not in (307, 308) and method not in ("GET", "HEAD"):
                        method, content = "GET", None
                        headers = {k: v for k, v in headers.items() if k.lower() not in _GONE}
                    url = target
                finally:
                    await response.aclose()
            return error_result(CallStatus.TOOL_ERROR, f"it leads on and on (more than {MAX_REDIRECTS} redirects)")
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise ToolBackendError(
                f"{made.url.scheme}://{made.url.netloc.decode()}: {describe_exception(error)}"
            ) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, ValueError, OSError) as error:
            return error_result(
                CallStatus.TOOL_ERROR, f"the server's answer cannot be used: {describe_exception(error)}"
            )

    async def _read(self, response: httpx2.Response) -> ToolResult:
        media_type = response.headers.get("content-type", "")
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            message = f"HTTP {response.status_code}: the answer is compressed ({coding[:50]}), which was not asked for"
            return error_result(CallStatus.TOOL_ERROR, message)
        body, cut = bytearray(), False
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._max_bytes:
                del body[self._max_bytes :]
                cut = True
                break
        return result_of(response.status_code, media_type, bytes(body), cut=cut)


def _same_origin(one: Any, other: str) -> bool:
    import httpx2

    try:
        url = httpx2.URL(other)
    except httpx2.InvalidURL:
        return False
    return (url.scheme, url.host, url.port) == (one.scheme, one.host, one.port) and not url.userinfo
