"""An HTTP server for pets.yaml: `python pets_server.py` serves it at http://127.0.0.1:8080."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

PETS = {"Rex": {"age": 7, "kind": "dog"}, "Tom": {"age": 3, "kind": "cat"}}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        address = urlsplit(self.path)
        pet = PETS.get(unquote(address.path).removeprefix("/pets/"))
        found = pet and {field: pet[field] for field in parse_qs(address.query).get("field", pet)}
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found or {"detail": "there is no such pet"}).encode())

    def log_message(self, *args):
        pass


@contextmanager
def serving():
    """The address of a server that runs meanwhile."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
