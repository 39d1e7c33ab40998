"""`Tool`: something that a model can call, made from a Python function or from a JSON schema."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, overload

from toolstep.envs.tools.encode import describe_exception
from toolstep.envs.tools.errors import ArgumentError, ToolSchemaError
from toolstep.envs.tools.problems import MismatchError
from toolstep.envs.types import CallStatus

RunIn = Literal["inline", "async", "thread", "process"]

_NAME = re.compile(r"[\w.\-/]{1,128}")


class Signature(Protocol):
    """What stands between JSON arguments and a Python call."""

    schema: dict[str, Any]
    description: str

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validated arguments; raises MismatchError."""

    def spread(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the Python call."""


@dataclass(frozen=True, eq=False)
class Tool:
    """Something that a model can call.  Make one with `@tool`, `as_tool` or `Tool.from_schema`.

    name, description: what the model sees.
    parameters: JSON schema of the arguments; references are inlined, so that any chat template can show it.
    run_in: where the executor runs it.  "inline": in the caller, for what is instant and trusted (nothing stops it).
        "async": on the executor's event loop; cancelled at its deadline.  "thread": on a daemon thread; one that
        overruns is left behind, because nothing can stop a thread.  "process": in a worker process, killed with all its
        children at the deadline; the function must be importable.
    timeout: seconds that one call may take; None: the executor's.
    function: what is called.
    shared: the object that it is a method of remembers nothing, or what it remembers is meant for all: it may serve any
        number of episodes and calls at once.  Otherwise it serves one episode, one call after the other (`owner_of`).

    Two tools are equal only if they are the same object.  A tool can be pickled and copied if its function can; one
    that is a name in an importable module travels as that name.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    run_in: RunIn
    timeout: float | None
    function: Callable[..., Any] = field(repr=False)
    signature: Signature = field(repr=False)
    shared: bool = False
    _takes_self: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ToolSchemaError(
                f"a tool's name must be 1 to 128 letters, digits and _.-/ and not {self.name!r}; pass name="
            )
        if self.run_in not in ("inline", "async", "thread", "process"):
            raise ToolSchemaError(
                f"{self.name}: run_in must be 'inline', 'async', 'thread' or 'process', got {self.run_in!r}"
            )
        if self.timeout is not None and not (math.isfinite(self.timeout) and self.timeout > 0):
            raise ToolSchemaError(f"{self.name}: timeout must be a finite number of seconds > 0, got {self.timeout!r}")
        if is_async(self.function) and self.run_in in ("inline", "thread"):
            raise ToolSchemaError(f"{self.name}: a coroutine function cannot run in {self.run_in!r}; use 'async'")
        if self.run_in == "async" and not is_async(self.function):
            raise ToolSchemaError(f"{self.name}: run_in='async' needs a coroutine function (async def); use 'thread'")

    @classmethod
    def from_schema(
        cls,
        function: Callable[..., Any],
        *,
        name: str,
        parameters: Mapping[str, Any],
        description: str = "",
        run_in: RunIn | None = None,
        timeout: float | None = None,
        shared: bool = False,
    ) -> Tool:
        """A tool from a JSON schema of its arguments; `function` is called with the checked arguments as keywords.

        The schema is a plain JSON schema of type "object", as MCP and OpenAPI carry it.
        """
        from toolstep.envs.tools.foreign import SchemaSignature

        signature = SchemaSignature(parameters)
        where = run_in or ("async" if is_async(function) else "thread")
        return cls(name, description, signature.schema, where, timeout, function, signature, shared)

    @property
    def schema(self) -> dict[str, Any]:
        """The OpenAI-style dict that chat templates read; the caller may change it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": copy.deepcopy(self.parameters),
            },
        }

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Validated Python values for `arguments`, keyed by parameter; parameters that were left out stay out.

        Lax where a model errs without harm ("5", 5.0 and "5.0" for an integer, JSON text for a list or object), strict
        otherwise (True is no number, "1,000" is none, infinity is none).  Raises ArgumentError, nothing else.
        """
        try:
            return self.signature.bind(arguments)
        except MismatchError as error:
            raise ArgumentError(error.status, error.message(self.name, self.parameters)) from None
        except RecursionError:
            raise ArgumentError(CallStatus.WRONG_TYPE, f"{self.name}: the arguments are nested too deeply") from None
        except Exception as error:  # a validator of the tool's author raised what pydantic does not expect
            message = f"{self.name}: the arguments were refused: {describe_exception(error)}"
            raise ArgumentError(CallStatus.WRONG_TYPE, message) from error

    def call(self, /, **arguments: Any) -> Any:
        """Call the function with bound arguments; a coroutine function returns its coroutine."""
        positional, keywords = self.signature.spread(arguments)
        return self.function(*positional, **keywords)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """The decorated function itself, without validation."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Tool:
        """A decorated method, bound to the object that it is looked up on."""
        if instance is None or not self._takes_self:
            return self
        return replace(self, function=types.MethodType(self.function, instance), _takes_self=False)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        module, qualname = (
            getattr(self.function, "__module__", None),
            getattr(self.function, "__qualname__", None),
        )
        if module and qualname and _look_up(module, qualname, load=False) is self:
            return _look_up, (module, qualname)
        foreign = type(self.signature).__name__ == "SchemaSignature"
        return _rebuild, (
            self.function,
            self.name,
            self.description,
            self.parameters if foreign else None,
            self.run_in,
            self.timeout,
            self.shared,
            self._takes_self,
        )


@overload
def tool(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    run_in: RunIn | None = None,
    timeout: float | None = None,
    shared: bool = False,
) -> Tool: ...
@overload
def tool(
    fn: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    run_in: RunIn | None = None,
    timeout: float | None = None,
    shared: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    run_in: RunIn | None = None,
    timeout: float | None = None,
    shared: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function; its docstring (Google, NumPy or Sphinx style) describes it to the model.

    >>> @tool(run_in="inline")
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two integers.
    ...
    ...     Args:
    ...         a: The first one.
    ...     '''
    ...     return a + b
    >>> add.parameters["properties"]["a"]
    {'description': 'The first one.', 'type': 'integer'}
    >>> add.call(**add.bind({"a": "2"}))
    3

    `run_in` is "async" for coroutine functions and "thread" for others unless it is given.  A method decorated in its
    class becomes a tool of each object.  Raises ToolSchemaError where the signature cannot be turned into a schema.
    """
    if fn is None:
        return lambda function: _from_function(function, name, description, run_in, timeout, shared)
    return _from_function(fn, name, description, run_in, timeout, shared)


def as_tool(obj: Tool | Callable[..., Any]) -> Tool:
    """A tool as it is; a bare callable as `tool(callable)`."""
    if isinstance(obj, Tool):
        return obj
    if not callable(obj):
        raise TypeError(f"expected a Tool or a callable, got {type(obj).__name__}")
    return tool(obj)


def is_async(function: Any) -> bool:
    """Whether calling it gives a coroutine, as far as can be told without calling."""
    target = inspect.unwrap(function) if not isinstance(function, functools.partial) else function.func
    if not inspect.isroutine(target) and not isinstance(target, type):
        target = type(target).__call__
    return inspect.iscoroutinefunction(target)


def _from_function(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    run_in: RunIn | None,
    timeout: float | None,
    shared: bool,
    takes_self: bool | None = None,
) -> Tool:
    from toolstep.envs.tools.schema import signature_of

    if isinstance(function, Tool):
        function = function.function
    if not callable(function):
        raise ToolSchemaError(f"a tool is made of a callable, got {type(function).__name__}")
    takes_self = _is_method(function) if takes_self is None else takes_self
    signature = signature_of(function, skip_first=takes_self)
    base = function
    while isinstance(base, functools.partial):
        base = base.func
    return Tool(
        name=name or getattr(base, "__name__", None) or type(base).__name__,
        description=signature.description if description is None else description,
        parameters=copy.deepcopy(signature.schema),
        run_in=run_in or ("async" if is_async(function) else "thread"),
        timeout=timeout,
        function=function,
        signature=signature,
        shared=shared,
        _takes_self=takes_self,
    )


def _is_method(function: Any) -> bool:
    """Whether this is a function in the body of a class, to be bound later: `self` is not the model's to give."""
    if not inspect.isfunction(function):
        return False
    holder = function.__qualname__.rpartition(".")[0]
    first = next(iter(inspect.signature(function).parameters), None)
    return bool(holder) and not holder.endswith("<locals>") and first == "self"


def _rebuild(
    function: Callable[..., Any],
    name: str,
    description: str,
    parameters: dict[str, Any] | None,
    run_in: RunIn,
    timeout: float | None,
    shared: bool,
    takes_self: bool,
) -> Tool:
    if parameters is not None:
        return Tool.from_schema(
            function,
            name=name,
            parameters=parameters,
            description=description,
            run_in=run_in,
            timeout=timeout,
            shared=shared,
        )
    return _from_function(function, name, description, run_in, timeout, shared, takes_self)


def _look_up(module: str, qualname: str, load: bool = True) -> Any:
    found: Any = sys.modules.get(module)
    if found is None and load:
        import importlib

        found = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found
