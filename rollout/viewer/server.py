"""One page on the loopback address, for a browser of this machine."""

from __future__ import annotations

import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from toolstep.rollout.folder import REPORT
from toolstep.rollout.storage import StorageError
from toolstep.rollout.viewer.live import LivePage

HOST = "127.0.0.1"


class PageServer(ThreadingHTTPServer):
    """Serves `page`, made anew on a request where its episodes are newer.

    port: 0: a free one.  Raises OSError where the port can't be had.
    """

    daemon_threads = True

    def __init__(self, page: LivePage, port: int = 0):
        self.page = page
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise OSError(
                f"cannot listen at {HOST}:{port}: {error.strerror}; leave --port out for a free one"
            ) from error
        self.address = f"http://{HOST}:{self.server_port}/"
        # A page of another site that has its own name resolve to this address gets nothing.
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a browser that goes away is none
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.names:
            self._answer(421, b"not the name of this server\n")
        elif self.path.partition("?")[0] not in ("/", f"/{REPORT}"):
            self._answer(404, b"there is one page: /\n")
        else:
            try:
                self._answer(200, self.server.page.read(), "text/html")
            except StorageError as error:
                self._answer(500, f"{error}\n".encode("utf-8", "backslashreplace"))

    do_HEAD = do_GET

    def _answer(self, status: int, data: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(data)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "frame-ancestors 'none'",  # the rest is in the page
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        """Nothing: what a browser asks for is of no interest to who sits before it."""


def serve(page: LivePage, port: int, *, open_browser: bool) -> None:
    """Serve the page until SIGINT or SIGTERM.  Raises `StorageError` where no page can be made, and OSError."""
    with PageServer(page, port) as server, _ended_by_signals():
        page.read()
        if page.problem:
            print(f"toolstep: {page.problem}", file=sys.stderr, flush=True)
        print(f"report of {page.path} at {server.address} (Ctrl-C ends)", flush=True)
        if open_browser:
            # It may take its time, or run in this terminal: the page is there meanwhile.
            threading.Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        with suppress(KeyboardInterrupt):  # the way in which it is meant to end
            server.serve_forever()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
