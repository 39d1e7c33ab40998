"""What a tool did in one call, seen from inside, wherever it runs: a thread, the event loop, a worker process."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
import time
import typing
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter  # here, so that a worker process has it before a call's clock starts

from toolstep.envs.checker.bench import place_of
from toolstep.envs.tools.encode import NotJSONError, describe_exception, encode, shorten
from toolstep.envs.tools.result import error_text
from toolstep.envs.tools.tool import Tool, is_async
from toolstep.envs.types import CallStatus, ToolResult

_SHOWN = 200  # characters of a result
_SCANNED = 1 << 16  # characters of a result that are looked through for control tokens
# What chat templates in use write between messages; text like it must come from nowhere else.
CONTROL = re.compile(
    r"<\|[A-Za-z0-9_\-]{1,40}\|>|</?(?:s|bos|eos|start_of_turn|end_of_turn|tool_call|tool_response|think)>"
    r"|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS)\]|<｜[^｜<>]{1,40}｜>"
)


@dataclass(frozen=True)
class Observed:
    """A tool's function, called as always; what is returned is a description of what it did.

    Frozen, and without a memory of its own: an executor may run several calls of it at once.
    """

    tool: Tool

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        began = time.perf_counter()
        try:
            value = self.tool.function(*args, **kwargs)
        except BaseException as error:
            return _raised(error, began)
        return _returned(value, self.tool, began)


@dataclass(frozen=True)
class ObservedAsync:
    """`Observed` for a coroutine function."""

    tool: Tool

    async def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        import asyncio

        began = time.perf_counter()
        try:
            value = await self.tool.function(*args, **kwargs)
        except asyncio.CancelledError:
            raise  # its deadline
        except BaseException as error:
            return _raised(error, began)
        return _returned(value, self.tool, began)


def observed(tool: Tool, timeout: float) -> Tool:
    """`tool` with a function that describes; an "inline" one is called on a thread, where a deadline can pass."""
    function = ObservedAsync(tool) if is_async(tool.function) else Observed(tool)
    where = "thread" if tool.run_in == "inline" else tool.run_in
    limit = timeout if tool.timeout is None else min(timeout, tool.timeout)
    return replace(tool, function=function, run_in=where, timeout=limit, _takes_self=False)


@dataclass(frozen=True)
class Seen:
    """One call: what went in, and what came of it.

    status: of the result that an env would give the model, None for a good one; text: that result (its beginning);
    size: its characters; key: equal for equal results.  raised: the names of the exception's classes.
    """

    name: str
    arguments: dict[str, Any]
    status: CallStatus | None
    text: str
    key: str
    size: int = 0
    seconds: float = 0.0
    raised: tuple[str, ...] = ()
    place: str = ""
    not_json: str = ""
    type_problem: str = ""
    control: tuple[str, ...] = ()
    bad_unicode: bool = False
    returned: bool = True  # False: its deadline passed, or its process ended

    @property
    def shown(self) -> str:
        """The call as Python writes it."""
        return call_text(self.name, self.arguments)


def call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{k}={shorten(repr(v), 80)}' for k, v in arguments.items())})"


def seen(name: str, arguments: dict[str, Any], result: ToolResult) -> Seen:
    """What the executor answered for an observed call."""
    if result.error is not None:  # a deadline, a process that died: the tool did not return
        message = str(json.loads(result.content)["message"])
        return Seen(
            name, arguments, result.error, message, f"{result.error}: {message}", seconds=result.seconds, returned=False
        )
    told = json.loads(result.content)
    status = None if told["status"] is None else CallStatus(told["status"])
    text, size, key = told["text"], told["size"], told["key"]
    rest = {k: told[k] for k in ("seconds", "place", "not_json", "type_problem", "bad_unicode")}
    marks: dict[str, Any] = {k: tuple(told[k]) for k in ("raised", "control")}
    return Seen(name, arguments, status, text, key, size, **rest, **marks)


def _raised(error: BaseException, began: float) -> dict[str, Any]:
    names = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    text = describe_exception(error)
    return _told(CallStatus.TOOL_ERROR, text, began, raised=names, place=place_of(error))


def _returned(value: Any, tool: Tool, began: float) -> dict[str, Any]:
    seconds = time.perf_counter() - began
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        return _told(CallStatus.TOOL_ERROR, "", began, not_json="it returned a coroutine that nobody awaits")
    content = value.content if isinstance(value, ToolResult) else value
    error = value.error if isinstance(value, ToolResult) else None
    try:
        text = encode(content)
    except NotJSONError as problem:
        return _told(CallStatus.TOOL_ERROR, str(problem), began, not_json=str(problem))
    wrong = _type_problem(value, text, tool)
    raw = content if isinstance(content, str) else ""
    broken = any("\ud800" <= c <= "\udfff" for c in raw) if not raw.isascii() else False
    told = _told(error, text, began, type_problem=wrong, bad_unicode=broken)
    return {**told, "seconds": seconds}


def _told(status: CallStatus | None, text: str, began: float, **more: Any) -> dict[str, Any]:
    read = text if status is None else error_text(status, text)
    return {
        "status": None if status is None else str(status),
        "text": shorten(text, _SHOWN),
        "size": len(text),
        "key": hashlib.blake2b(read.encode(), digest_size=16).hexdigest(),
        "seconds": time.perf_counter() - began,
        "raised": [],
        "place": "",
        "not_json": "",
        "type_problem": "",
        "bad_unicode": False,
        "control": sorted(set(CONTROL.findall(text[:_SCANNED])))[:5],
        **more,
    }


def _type_problem(value: Any, text: str, tool: Tool) -> str:
    """What is wrong with the returned value by the function's own annotation; "" where nothing is.

    Right is what is an instance, or what reads the same as JSON (a tuple for a list, a numpy number for an int).
    """
    # Not the bound method: what is remembered must keep no object alive.
    adapter = _adapter(inspect.unwrap(getattr(tool.function, "__func__", tool.function)))
    if adapter is None:
        return ""
    wanted, validator = adapter
    try:
        validator.validate_python(value, strict=True)
    except Exception:
        written = json.dumps(text, ensure_ascii=False) if isinstance(value, str) else text
        try:
            validator.validate_json(written, strict=True)
        except Exception:
            return f"its annotation says {wanted}, it returned {type(value).__name__}: {shorten(repr(value), 80)}"
    return ""


@functools.lru_cache(maxsize=256)
def _adapter(function: Any) -> tuple[str, Any] | None:
    """The annotation of what `function` returns, and its validator; None where there is none to hold it to."""
    try:
        annotation = typing.get_type_hints(function, include_extras=True).get("return", Any)
        if annotation is Any or annotation is inspect.Parameter.empty:
            return None
        return _name_of(annotation), TypeAdapter(annotation)
    except Exception:  # a type that pydantic does not know
        return None


def _name_of(annotation: Any) -> str:
    if annotation is type(None):
        return "None"
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
