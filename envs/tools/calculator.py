"""A calculator that is exact where it can be, and that no expression can hang or escape from.

The expression is read by a parser of its own: there is no name, attribute or call in its grammar but the constants and
functions listed here, so nothing has to be forbidden.  Sizes are checked before a number is made, not after.
"""

from __future__ import annotations

import functools
import re

from toolstep.envs.tools.arithmetic import (
    CONSTANTS,
    FUNCTIONS,
    SEVERAL,
    CalculatorError,
    Value,
    checked,
    factorial,
    format_value,
    literal,
    operate,
)
from toolstep.envs.tools.tool import Tool, tool

MAX_CHARACTERS = 1_000
MAX_DEPTH = 50

_PLAIN = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "—": "-", "π": "pi", "√": "sqrt"}
    | {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}  # full-width forms
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9][0-9_]*+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]{1,6})?)"
    r"|(?:math\.)?(?P<name>[A-Za-z_][A-Za-z_0-9]*+)"
    r"|(?P<sign>\*\*|//|[-+*/%^!(),]))"
)


def evaluate(expression: str) -> Value:
    """The value of `expression`: a Fraction where it is exact, else a finite float.

    `+ - * / // % **`, `^` (a power), `!`, percent (`20%`), parentheses, constants and functions; digit groups (`1,000`)
    and typographic operators are read as they are meant.

    Raises:
        CalculatorError: with a message for the model to read.
    """
    if not isinstance(expression, str):
        raise CalculatorError(f"the expression must be text, got {type(expression).__name__}")
    if len(expression) > MAX_CHARACTERS:
        raise CalculatorError(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        return _Parser(_tokens(expression.translate(_PLAIN))).parse()
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except OverflowError:
        raise CalculatorError("the result is too large") from None


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression exactly.

    Args:
        expression: For example "(2 + 3) * 4.5", "2^10", "sqrt(2)", "3/4 + 1/6".
    """
    return format_value(evaluate(expression))


@functools.cache
def calculator_tool(name: str = "calculator") -> Tool:
    """The calculator as a tool; it keeps nothing between calls."""
    return tool(calculate, name=name, run_in="inline")


# ---------------------------------------------------------------------------------------------------- reading
def _tokens(text: str) -> list[str]:
    """Numbers, names and operators.

    A comma between digits groups them unless it separates the arguments of a function that takes several.
    """
    out: list[str] = []
    several: list[bool] = []  # for each open parenthesis: does it hold several arguments?
    at = 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            found = text[at:].strip()[0]
            raise CalculatorError(f"cannot read {found!r} at position {len(text[:at].rstrip()) + 1}")
        at = match.end()
        symbol = match["number"] or match["name"] or match["sign"]
        if match["number"] and not (several and several[-1]):
            group = _GROUPS.match(text, match.start("number"))
            if group:
                symbol, at = group[0].replace(",", ""), group.end()
        elif symbol == "(":
            several.append(bool(out) and out[-1].lower() in SEVERAL)
        elif symbol == ")" and several:
            several.pop()
        out.append("**" if symbol == "^" else symbol)
    return out


_GROUPS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])(?:\.[0-9]+)?")
_LEVELS: dict[str, int] = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "mod": 2, "**": 4}


class _Parser:
    """Precedence climbing; evaluates as it reads."""

    def __init__(self, tokens: list[str]):
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def parse(self) -> Value:
        if not self._tokens:
            raise CalculatorError("the expression is empty")
        value = self._binary(1)
        if self._next() is not None:
            raise CalculatorError(f"expected an operator, found {self._next()!r}")
        return value

    def _next(self, ahead: int = 0) -> str | None:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def _take(self) -> str:
        symbol = self._next()
        if symbol is None:
            raise CalculatorError("the expression ends too early")
        self._at += 1
        return symbol

    def _binary(self, level: int) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculatorError(f"the expression is nested more than {MAX_DEPTH} levels deep")
        value = self._unary()
        while (symbol := self._next()) is not None and _LEVELS.get(symbol.lower(), 0) >= level:
            own = _LEVELS[self._take().lower()]
            # A power binds to the right, everything else to the left.
            value = operate(symbol.lower(), value, self._binary(own if symbol == "**" else own + 1))
        self._depth -= 1
        return value

    def _unary(self) -> Value:
        negative, signed = False, False
        while self._next() in ("+", "-"):
            signed = True
            negative ^= self._take() == "-"
        # -2**2 is -(2**2), as in mathematics and in Python.
        value = self._binary(4) if signed else self._postfix()
        return -value if negative else value

    def _postfix(self) -> Value:
        value = self._atom()
        while True:
            if self._next() == "!":
                self._take()
                value = factorial(value)
            elif self._next() == "%" and not _opens_operand(self._next(1)):
                self._take()
                value = value / 100
            else:
                return value

    def _atom(self) -> Value:
        symbol = self._take()
        if symbol == "(":
            value = self._binary(1)
            self._expect(")")
            return value
        if symbol[0].isdigit() or symbol[0] == ".":
            return literal(symbol)
        name = symbol.lower()
        if name in CONSTANTS and self._next() != "(":
            return CONSTANTS[name]
        if name in FUNCTIONS:
            return self._call(name)
        if symbol[0].isalpha() or symbol[0] == "_":
            known = ", ".join(sorted([*FUNCTIONS, *CONSTANTS]))
            raise CalculatorError(f"unknown name {symbol!r}; known are {known}")
        raise CalculatorError(f"expected a number, found {symbol!r}")

    def _call(self, name: str) -> Value:
        least, most, function = FUNCTIONS[name]
        if self._next() != "(":
            raise CalculatorError(f"{name} needs its arguments in parentheses")
        self._take()
        arguments: list[Value] = []
        if self._next() != ")":
            arguments.append(self._binary(1))
            while self._next() == ",":
                self._take()
                arguments.append(self._binary(1))
        self._expect(")")
        if not least <= len(arguments) <= most:
            count = str(least) if least == most else f"{least} to {most}" if most < 99 else f"{least} or more"
            raise CalculatorError(f"{name} takes {count} argument(s), got {len(arguments)}")
        try:
            return checked(function(*arguments))
        except CalculatorError:
            raise
        except ValueError:
            raise CalculatorError(f"{name} has no real value there") from None

    def _expect(self, symbol: str) -> None:
        found = self._next()
        if found != symbol:
            raise CalculatorError(f"expected {symbol!r}, found {'the end' if found is None else repr(found)}")
        self._at += 1


def _opens_operand(symbol: str | None) -> bool:
    """True where `symbol` begins an operand, so that a `%` before it is a remainder, not a percent."""
    return symbol is not None and (symbol[0].isalnum() or symbol[0] in "._(") and symbol.lower() not in _LEVELS
