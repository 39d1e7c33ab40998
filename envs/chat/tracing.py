"""Templates compiled so that they can be rendered with watched text (`watched.py`).

The code that Jinja generates reaches foreign text in four ways: Python's operators, which `Watched` defines or
refuses; attributes, items and calls, which the sandbox hands to its environment; filters and tests, which are tables;
and writing (`str()`, `~`, buffers), which the code generator spells out.  The last three are replaced here.  Filters
and tests that are not named below are refused as soon as foreign text is anywhere in their arguments.
"""

from __future__ import annotations

import re
import secrets
import types
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.runtime import Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from toolstep.envs.chat.watched import Measured, Untraceable, Watched, concat, rope

_METHODS = frozenset(("startswith", "endswith", "strip", "lstrip", "rstrip", "replace"))
# Filters that move items of containers about and look into none of them but through an operator, another filter or
# another test.
_STRUCTURAL = frozenset(("list", "first", "last", "reverse", "length", "count", "items", "default", "d"))
_STRUCTURAL |= frozenset(("map", "select", "reject", "selectattr", "rejectattr"))
# What the tests about types say of any string.
_OF_STRINGS = {
    **dict.fromkeys(("string", "defined", "iterable", "sequence"), True),
    **dict.fromkeys(("undefined", "none", "mapping", "number", "integer", "float", "boolean"), False),
    **dict.fromkeys(("true", "false", "callable", "escaped"), False),
}
_COMPARISONS = frozenset(("in", "==", "eq", "equalto", "!=", "ne"))
_NONCE = f"Zq{secrets.token_hex(8)}n"
_LEAF = re.compile(_NONCE + r"(\d+)z")


class _Code(CodeGenerator):
    """Writes what is shown through the environment instead of through `str`."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        self.write("environment.shown(")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        self.write(")")


class TracingEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that lets watched text through and sees what is done with it."""

    code_generator_class = _Code
    concat = staticmethod(concat)

    def follow(self) -> None:
        """Replace the tables, once they are complete."""
        filters: dict[str, Any] = {**self.filters}
        tests: dict[str, Any] = {**self.tests}
        self.filters.update({name: _filter(name, f) for name, f in filters.items()})
        self.tests.update({name: _test(name, f) for name, f in tests.items()})
        self.filters["random"] = self.globals["lipsum"] = _random

    @staticmethod
    def shown(value: Any) -> Any:
        if isinstance(value, (str, Watched)):
            return value if isinstance(value, Watched) else str(value)
        if _held(value) is _UNKNOWN:  # its text may be an address
            raise Untraceable(f"a {type(value).__name__} is written")
        return str(value)

    @staticmethod
    def joined(values: Iterable[Any]) -> Any:
        return concat(TracingEnvironment.shown(v) for v in values)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self._part(obj, attribute) if isinstance(obj, Watched) else super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, Watched):
            argument.trace.fail("used as a key", argument)
        return self._part(obj, argument) if isinstance(obj, Watched) else super().getitem(obj, argument)

    def _part(self, text: Watched, name: Any) -> Any:
        if type(name) is str and name in _METHODS:
            return getattr(text, name)
        if type(name) is not str or hasattr(str, name):
            text.trace.fail(f"its {name!r} is used", text)
        return self.undefined(obj="", name=name)  # as with any string

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *(v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars"))]
        found = [w for v in given if (w := _held(v)) is not None]
        if found and not _only_moves(__obj, args):
            if getattr(__obj, "__name__", "") == "_raise_exception":
                raise TemplateError("a text with foreign text in it")
            if _is_method(__obj, str, "join"):
                return _join(found, args[0], __obj.__self__)
            _give_up(f"given to {getattr(__obj, '__name__', type(__obj).__name__)}", found)
        return super().call(__context, __obj, *args, **kwargs)


def _only_moves(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a callable does no more with its arguments than a template could by itself."""
    if isinstance(function, Macro) or isinstance(getattr(function, "__self__", None), Watched):
        return True  # a macro is the template's own code; methods of watched text look for themselves
    if type(function).__name__ == "_Dict" or getattr(function, "__name__", "") == "_Namespace":
        return True
    return _is_method(function, dict, "get") and type(args[0]) is str


def _is_method(function: Any, of: type, name: str) -> bool:
    return isinstance(function, types.BuiltinMethodType) and type(function.__self__) is of and function.__name__ == name


_UNKNOWN = object()  # may hold watched text: a generator, a view, an object of the template's


def _held(value: Any) -> Any:
    """A watched text inside `value`, or `_UNKNOWN`; None if there is none."""
    if isinstance(value, (Watched, Measured)):
        return value
    if value is None or isinstance(value, (str, int, float, Undefined, Macro, slice)):
        return None
    if isinstance(value, Mapping):
        return next((w for v in value.values() if (w := _held(v)) is not None), None)
    if isinstance(value, (list, tuple)):
        return next((w for v in value if (w := _held(v)) is not None), None)
    return _UNKNOWN


def _give_up(reason: str, found: list[Any]) -> Any:
    watched = [w for w in found if isinstance(w, Watched)]
    if watched:
        watched[0].trace.fail(reason, *watched)
    raise Untraceable(reason)


def _random(*_: Any, **__: Any) -> Any:
    raise Untraceable("the template draws at random")


def _filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        given = args[skip:]
        found = [w for v in (*given, *kwargs.values()) if (w := _held(v)) is not None]
        if name in ("length", "count") and given and isinstance(given[0], Watched):
            return Measured(given[0])
        if not found or name in _STRUCTURAL:
            return function(*args, **kwargs)
        if name == "tojson":
            return _tojson(found, function, *given, **kwargs)
        if name == "join":
            return _join(found, *given, **kwargs)
        if name == "string" and isinstance(given[0], Watched):
            return given[0]
        if name == "replace" and isinstance(given[0], Watched):
            return given[0].replace(*given[1:], **kwargs)
        if name == "trim" and isinstance(given[0], Watched):
            return given[0].strip(*given[1:], **kwargs)
        return _give_up(f"given to the filter {name!r}", found)

    return run


def _test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        found = [v for v in (*args[skip:], *kwargs.values()) if isinstance(v, (Watched, Measured))]
        if not found or name in _COMPARISONS:
            return function(*args, **kwargs)
        if any(isinstance(v, Measured) for v in found):
            return _give_up(f"its length is given to the test {name!r}", found)
        if name in _OF_STRINGS:
            return _OF_STRINGS[name]
        return _give_up(f"given to the test {name!r}", found)

    return run


def _join(found: list[Any], values: Any, d: Any = "", attribute: Any = None) -> Any:
    if attribute is not None or type(d) is not str or isinstance(values, (str, Watched, Mapping)):
        _give_up("joined in a way that is not followed", found)
    out: list[Any] = []
    for v in values:
        if type(v) is not str and not isinstance(v, Watched):
            _give_up("joined with what is no plain text", found)
        out += [d, v] if out else [v]
    return concat(out)


def _tojson(found: list[Any], dump: Callable[..., str], value: Any, ensure_ascii: bool = False, **kwargs: Any) -> Any:
    """A dump of data in which watched text stands: dumped with placeholders that are then replaced."""
    leaves: list[Watched] = []

    def placed(v: Any) -> Any:
        if isinstance(v, Watched):
            leaves.append(v)
            return f"{_NONCE}{len(leaves) - 1}z"
        if isinstance(v, Mapping):
            return {k: placed(x) for k, x in v.items()}
        if isinstance(v, (list, tuple)):
            return [placed(x) for x in v]
        return v

    pieces = _LEAF.split(dump(placed(value), ensure_ascii=ensure_ascii, **kwargs))
    numbers = [int(n) for n in pieces[1::2]]
    if not leaves or sorted(numbers) != list(range(len(leaves))):
        _give_up("dumped as JSON in a way that is not followed", found)
    parts: list[Any] = [pieces[0]]
    for number, literal in zip(numbers, pieces[2::2], strict=True):
        parts += [*leaves[number].json(bool(ensure_ascii)), literal]
    return rope(parts, leaves[0].trace)
