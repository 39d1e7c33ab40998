"""The program of a worker process: load a function, call it, answer with text; again and again until its input ends.

Run as a script by `process.py`.  Standard library and `encode.py` only, so that it starts in milliseconds.  Requests
are pickles of our own; answers are JSON, because the code that runs here may be the one that must not be trusted.  A
frame is its length in 8 bytes, big-endian, and its contents.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import pickle
import signal
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def main() -> None:
    requests, replies = _claim_pipes()
    encode = _load_encode()
    setup = json.loads(_read(requests) or b"{}")
    _prepare(setup)
    while (request := _read(requests)) is not None:
        number, body = struct.unpack(">Q", request[:8])[0], request[8:]
        try:
            function, args, kwargs = pickle.loads(body)  # noqa: S301  made by our parent
            function = _function_of(function)
        except BaseException as error:
            if number == 0:
                continue
            text = f"the tool cannot be loaded in its worker process: {encode.describe_exception(error)}"
            _write(replies, {"id": number, "failed": text})
            continue
        if number == 0:  # only to be loaded, ahead of the call
            continue
        _write(replies, {"id": number, "ready": True})
        with _Guard(requests.fileno()):
            answer = _call(function, args, kwargs, encode)
        _write(replies, {"id": number, **answer})


def _call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], encode: Any) -> dict[str, Any]:
    try:
        value = function(*args, **kwargs)
        if hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(value)
        types_module = sys.modules.get("toolstep.envs.types")
        if types_module is not None and isinstance(value, types_module.ToolResult):
            return {
                "text": encode.encode(value.content),
                "error": None if value.error is None else str(value.error),
                "terminate": bool(value.terminate),
                "reward": float(value.reward),
                "answer": None if value.answer is None else encode.encode(value.answer),
            }
        return {"text": encode.encode(value)}
    except encode.NotJSONError as error:
        return {"failed": str(error)}
    except BaseException as error:
        return {"failed": encode.describe_exception(error)}


def _claim_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Our pipes on file descriptors of their own: what a tool prints goes to stderr, and it reads from nothing."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(requests, os.O_BINARY)
        msvcrt.setmode(replies, os.O_BINARY)
    return os.fdopen(requests, "rb"), os.fdopen(replies, "wb")


def _load_encode() -> Any:
    spec = importlib.util.spec_from_file_location("_toolstep_encode", Path(__file__).with_name("encode.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _prepare(setup: dict[str, Any]) -> None:
    """See the modules that the parent sees."""
    sys.path[:] = setup["path"]
    if setup["package"]:  # a checkout that is not installed: the parent made the package by hand
        package = types.ModuleType("toolstep")
        package.__path__ = setup["package"]
        sys.modules["toolstep"] = package
    if setup["main"]:
        from multiprocessing.spawn import prepare

        prepare({"init_main_from_path": setup["main"]})


def _function_of(target: Any) -> Callable[..., Any]:
    if isinstance(target, tuple):
        module, qualname = target
        target = importlib.import_module(module)
        for part in qualname.split("."):
            target = getattr(target, part)
    if type(target).__name__ == "Tool" and hasattr(target, "function"):
        target = target.function
    if not callable(target):
        raise TypeError(f"expected a function, found {type(target).__name__}")
    return target  # type: ignore[no-any-return]


class _Guard:
    """While a tool runs, the end of the parent ends this process and its children, whatever the tool is doing.

    The kernel sends SIGIO to the process group when the other end of the request pipe is closed; nothing handles it, so
    that it kills even where Python never gets a turn.  Elsewhere than on Linux the worker notices at its next read.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        self._set(True)

    def __exit__(self, *_: object) -> None:
        self._set(False)

    def _set(self, on: bool) -> None:
        if sys.platform != "linux":
            return
        import fcntl

        with contextlib.suppress(OSError, ValueError):
            fcntl.fcntl(self._descriptor, fcntl.F_SETOWN, -os.getpgrp())
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            wanted = flags | fcntl.FASYNC if on else flags & ~fcntl.FASYNC
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, wanted)


def _read(stream: IO[bytes]) -> bytes | None:
    head = stream.read(8)
    if len(head) < 8:
        return None
    body = stream.read(struct.unpack(">Q", head)[0])
    return body if len(body) == struct.unpack(">Q", head)[0] else None


def _write(stream: IO[bytes], answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode("ascii")
    stream.write(struct.pack(">Q", len(body)) + body)
    stream.flush()


if __name__ == "__main__":
    # Ctrl-C is the parent's business; the parent kills its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
