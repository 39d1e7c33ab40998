"""The program of a jailed interpreter: locks itself up, then runs code that it is sent, until its input ends.

Run as a script by `cpython.py`, with nothing in its environment.  Standard library only.  A frame is its length in 8
bytes, big-endian, and JSON.
"""

from __future__ import annotations

import ast
import datetime
import fcntl
import importlib.util
import io
import json
import linecache
import os
import random
import signal
import struct
import sys
import time
import traceback
import types
from pathlib import Path
from typing import IO, Any

MAX_PRINTED = 1 << 20  # characters of one call


class OutputError(RuntimeError):
    """More was printed than anybody will read."""


class Printed(io.TextIOBase):
    """What a call prints, errors included."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if self.size + len(text) > MAX_PRINTED:
            raise OutputError(f"more than {MAX_PRINTED} characters were printed")
        self.parts.append(text)
        self.size += len(text)
        return len(text)


def main() -> None:
    requests, replies = _claim_pipes()
    setup = json.loads(_read(requests) or b"{}")
    jail, report = _load("jail"), _load("report")
    sys.path += setup["packages"]
    try:
        lifeline = int(setup["lifeline"])
        kept = (requests.fileno(), replies.fileno(), lifeline)
        _die_with_parent(lifeline)
        jail.lock_up(setup["readable"], setup["memory"], setup["cpu_seconds"], kept)
    except Exception as error:
        _write(replies, {"id": setup["id"], "refused": f"{type(error).__name__}: {error}"})
        return
    _fix(setup["now"], setup["seed"])
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    _write(replies, {"id": setup["id"], "ready": True})
    while (body := _read(requests)) is not None:
        request = json.loads(body)
        answer = _run(request["code"], f"<call {request['id']}>", module.__dict__, report)
        printed = report.cut(answer["printed"], setup["max_output"])
        _write(replies, {**answer, "printed": printed, "id": request["id"]})


def _run(code: str, name: str, namespace: dict[str, Any], report: Any) -> dict[str, str]:
    printed = Printed()
    sys.stdout = sys.stderr = printed
    lines = code.splitlines(keepends=True)
    linecache.cache[name] = (len(code), None, lines, name)
    error = ""
    try:
        tree = ast.parse(code, name)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, name, "exec"), namespace)  # noqa: S102  this is what the jail is for
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307
            if value is not None:
                namespace["_"] = value
                print(repr(value))
    except SyntaxError as found:
        frames = [(found.lineno, "<module>", found.text or "")] if found.lineno and found.filename == name else []
        error = report.describe_error(type(found).__name__, str(found.msg), frames)
    except BaseException as found:
        error = _describe(found, report)
    return {"printed": "".join(printed.parts), "error": error}


def _describe(error: BaseException, report: Any) -> str:
    try:
        steps = traceback.extract_tb(error.__traceback__)
        frames = [(s.lineno or 0, s.name, s.line or "") for s in steps if s.filename.startswith("<call ")]
        return str(report.describe_error(type(error).__name__, str(error), frames))
    except BaseException:  # a __str__ that raises, no memory left
        return type(error).__name__


# ---------------------------------------------------------------------------------------------------------------- setup
def _fix(now: float, seed: int) -> None:
    """Stop the clock at `now` (seconds since 1970), let sleeping take no time, seed what is random.

    Measuring durations (`perf_counter`, `monotonic`) still works.
    """
    random.seed(seed)
    clock: Any = time
    calendar: Any = datetime
    plain = {name: getattr(time, name) for name in ("gmtime", "localtime", "ctime", "asctime", "strftime")}

    def sleep(seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")

    clock.sleep = sleep
    clock.time = lambda: now
    clock.time_ns = lambda: int(now * 1e9)
    for name in ("gmtime", "localtime", "ctime"):
        setattr(clock, name, lambda seconds=None, f=plain[name]: f(now if seconds is None else seconds))
    clock.asctime = lambda t=None: plain["asctime"](plain["gmtime"](now) if t is None else t)
    clock.strftime = lambda form, t=None: plain["strftime"](form, plain["gmtime"](now) if t is None else t)

    today = datetime.datetime.fromtimestamp(now, datetime.UTC)
    # The names are what `repr` shows.
    calendar.date = _Like(
        "datetime.date",
        (datetime.date,),
        {"__slots__": (), "today": classmethod(lambda cls: cls(today.year, today.month, today.day))},
    )
    calendar.datetime = _Like(
        "datetime.datetime",
        (datetime.datetime,),
        {
            "__slots__": (),
            "now": classmethod(lambda cls, tz=None: cls.fromtimestamp(now, tz)),
            "utcnow": classmethod(lambda cls: cls.fromtimestamp(now, datetime.UTC).replace(tzinfo=None)),
            "today": classmethod(lambda cls: cls.fromtimestamp(now)),
        },
    )


class _Like(type):
    """A class in the place of its base: what is an instance of the one is one of the other."""

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        stands_in = cls.__module__ == __name__ and cls.__name__.startswith("datetime.")
        return issubclass(subclass, cls.__bases__) if stands_in else super().__subclasscheck__(subclass)


def _claim_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Our pipes on descriptors of their own; nothing is left at 0, 1 and 2 to read or to write."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.close(nothing)
    sys.stdin = io.StringIO()
    return os.fdopen(requests, "rb", buffering=0), os.fdopen(replies, "wb", buffering=0)


def _die_with_parent(descriptor: int) -> None:
    """The kernel kills this process when the other end of that pipe is closed, whatever it is doing then.

    Nothing is ever written to it.  (The signal that follows the death of a parent comes with the death of the thread
    that started the process.)
    """
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, 10, int(signal.SIGKILL))  # F_SETSIG
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | fcntl.FASYNC)


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"_toolstep_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _read(stream: IO[bytes]) -> bytes | None:
    head = _exactly(stream, 8)
    return None if head is None else _exactly(stream, struct.unpack(">Q", head)[0])


def _exactly(stream: IO[bytes], size: int) -> bytes | None:
    parts = b""
    while len(parts) < size:
        piece = stream.read(size - len(parts))
        if not piece:
            return None
        parts += piece
    return parts


def _write(stream: IO[bytes], answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode("ascii")
    data = struct.pack(">Q", len(body)) + body
    while data:
        data = data[stream.write(data) :]


if __name__ == "__main__":
    main()
