"""A calculator that is exact where it can be, and that no expression can hang or escape from.

The expression is read by a parser of its own: there is no name, attribute or call in its grammar but the constants and
functions listed here, so nothing has to be forbidden.  Sizes are checked before a number is made, not after.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from toolstep.envs.tools.tool import Tool, tool

MAX_CHARACTERS = 1_000
MAX_DEPTH = 50
MAX_BITS = 4_096  # of a numerator or denominator; 1,233 decimal digits
MAX_COUNT = 500  # argument of factorial and comb

Value = Fraction | float


class CalculatorError(ValueError):
    """The expression cannot be read, has no value, or is too large."""


_PLAIN = str.maketrans(
    {"×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "−": "-", "–": "-", "—": "-", "π": "pi", "√": "sqrt"}
    | {chr(0xFF01 + i): chr(0x21 + i) for i in range(94)}  # full-width forms
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9][0-9_]*+(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][-+]?[0-9]{1,6})?)"
    r"|(?:math\.)?(?P<name>[A-Za-z_][A-Za-z_0-9]*+)"
    r"|(?P<sign>\*\*|//|[-+*/%^!(),]))"
)
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}


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


def format_value(value: Value) -> str:
    """Text from which the exact value can be read.

    Integers and decimals that end (within 40 places) are written out, other fractions as `17/3 (about 5.66666666667)`,
    floats to 12 significant digits.
    """
    if isinstance(value, float):
        return f"{value:.12g}"
    if value.denominator == 1:
        return str(value.numerator)
    for places in range(1, 41):
        scaled = value * 10**places
        if scaled.denominator == 1:
            digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
            return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    try:
        return f"{value} (about {float(value):.12g})"
    except OverflowError:
        return str(value)


def calculate(expression: str) -> str:
    """Evaluate an arithmetic expression exactly.

    Args:
        expression: For example "(2 + 3) * 4.5", "2^10", "sqrt(2)", "3/4 + 1/6".
    """
    return format_value(evaluate(expression))


def calculator_tool(name: str = "calculator") -> Tool:
    """The calculator as a tool; it keeps nothing between calls."""
    return tool(
        calculate,
        name=name,
        description="Evaluate an arithmetic expression exactly.",
        run_in="inline",
    )


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
        token = match["number"] or match["name"] or match["sign"]
        if match["number"] and not (several and several[-1]):
            group = _GROUPS.match(text, match.start("number"))
            if group:
                token, at = group[0].replace(",", ""), group.end()
        elif token == "(":
            several.append(bool(out) and out[-1].lower() in _SEVERAL)
        elif token == ")" and several:
            several.pop()
        out.append("**" if token == "^" else token)
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
        token = self._next()
        if token is None:
            raise CalculatorError("the expression ends too early")
        self._at += 1
        return token

    def _binary(self, level: int) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculatorError(f"the expression is nested more than {MAX_DEPTH} levels deep")
        value = self._unary()
        while (token := self._next()) is not None and _LEVELS.get(token.lower(), 0) >= level:
            own = _LEVELS[self._take().lower()]
            # A power binds to the right, everything else to the left.
            value = _operate(token.lower(), value, self._binary(own if token == "**" else own + 1))
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
                value = _factorial(value)
            elif self._next() == "%" and not _opens_operand(self._next(1)):
                self._take()
                value = value / 100
            else:
                return value

    def _atom(self) -> Value:
        token = self._take()
        if token == "(":
            value = self._binary(1)
            self._expect(")")
            return value
        if token[0].isdigit() or token[0] == ".":
            return _literal(token)
        name = token.lower()
        if name in _CONSTANTS and self._next() != "(":
            return _CONSTANTS[name]
        if name in _FUNCTIONS:
            return self._call(name)
        if token[0].isalpha() or token[0] == "_":
            known = ", ".join(sorted([*_FUNCTIONS, *_CONSTANTS]))
            raise CalculatorError(f"unknown name {token!r}; known are {known}")
        raise CalculatorError(f"expected a number, found {token!r}")

    def _call(self, name: str) -> Value:
        least, most, function = _FUNCTIONS[name]
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
            return _checked(function(*arguments))
        except CalculatorError:
            raise
        except ValueError:
            raise CalculatorError(f"{name} has no real value there") from None

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise CalculatorError(f"expected {token!r}, found {'the end' if found is None else repr(found)}")
        self._at += 1


def _opens_operand(token: str | None) -> bool:
    """True where `token` begins an operand, so that a `%` before it is a remainder and not a percent sign."""
    return token is not None and (token[0].isalnum() or token[0] in "._(") and token.lower() not in _LEVELS


def _literal(token: str) -> Fraction:
    mantissa, _, exponent = token.replace("_", "").lower().partition("e")
    if exponent and abs(int(exponent)) * math.log2(10) > MAX_BITS:
        raise CalculatorError(f"the number {token[:40]} is out of range")
    scale = Fraction(10) ** int(exponent or 0)
    return _exact(Fraction(mantissa.rstrip(".") if mantissa[0] != "." else "0" + mantissa) * scale)


# ------------------------------------------------------------------------------------------------- arithmetic
def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _exact(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise CalculatorError(f"the result is too large (more than {MAX_BITS} bits)")
    return value


def _checked(value: Value) -> Value:
    if isinstance(value, Fraction):
        return _exact(value)
    if not math.isfinite(value):
        raise CalculatorError("the result is too large or not a number")
    return value


def _operate(sign: str, a: Value, b: Value) -> Value:
    if sign == "**":
        return _checked(_power(a, b))
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    return _checked(_OPERATORS[sign](a, b))


_OPERATORS: dict[str, Callable[..., Value]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: _floor(a / b),
    "%": lambda a, b: a - b * _floor(a / b),
    "mod": lambda a, b: a - b * _floor(a / b),
}


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            n = exponent.numerator
            if abs(base) == 1:  # any exponent will do
                return base if n % 2 else Fraction(1)
            if abs(n) * _bits(base) > MAX_BITS:
                raise CalculatorError(f"the power is too large (more than {MAX_BITS} bits)")
            return base**n
        if base >= 0 and exponent.denominator == 2 and (root := _exact_root(base)) is not None:
            return _power(root, Fraction(exponent.numerator))
    x, y = float(base), float(exponent)
    if x < 0 and not y.is_integer():
        raise CalculatorError("a negative number has no real power with a fractional exponent")
    return x**y


def _exact_root(value: Fraction) -> Fraction | None:
    top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
    exact = top * top == value.numerator and bottom * bottom == value.denominator
    return Fraction(top, bottom) if exact else None


def _sqrt(value: Value) -> Value:
    if value < 0:
        raise ValueError
    root = _exact_root(value) if isinstance(value, Fraction) else None
    return math.sqrt(value) if root is None else root


def _whole(name: str, value: Value, most: int | None = None) -> int:
    if value != math.floor(value) or isinstance(value, float):
        raise CalculatorError(f"{name} takes whole numbers, got {format_value(value)[:40]}")
    n = math.floor(value)
    if most is not None and not 0 <= n <= most:
        raise CalculatorError(f"{name} takes whole numbers from 0 to {most}, got {str(n)[:40]}")
    return n


def _factorial(value: Value) -> Value:
    return _exact(Fraction(math.factorial(_whole("factorial", value, MAX_COUNT))))


def _comb(n: Value, k: Value) -> Value:
    return Fraction(math.comb(_whole("comb", n, MAX_COUNT), _whole("comb", k, MAX_COUNT)))


def _floor(value: Value) -> Value:
    return Fraction(math.floor(value))


def _round(value: Value, digits: Value = Fraction(0)) -> Value:
    """Half away from zero, as is taught at school, and exact."""
    places = _whole("round", digits, 40)
    scaled = abs(Fraction(value)) * 10**places
    rounded = Fraction(math.floor(scaled + Fraction(1, 2)), 10**places)
    return rounded if value >= 0 else -rounded


def _of_floats(function: Callable[..., float]) -> Callable[..., Value]:
    return lambda *values: function(*map(float, values))


_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Value]]] = {
    "sqrt": (1, 1, _sqrt),
    "abs": (1, 1, abs),
    "round": (1, 2, _round),
    "floor": (1, 1, _floor),
    "ceil": (1, 1, lambda value: Fraction(math.ceil(value))),
    "min": (1, 99, min),
    "max": (1, 99, max),
    "pow": (2, 2, _power),
    "gcd": (2, 2, lambda a, b: Fraction(math.gcd(_whole("gcd", a), _whole("gcd", b)))),
    "lcm": (2, 2, lambda a, b: Fraction(math.lcm(_whole("lcm", a), _whole("lcm", b)))),
    "factorial": (1, 1, _factorial),
    "comb": (2, 2, _comb),
    "exp": (1, 1, _of_floats(math.exp)),
    "ln": (1, 1, _of_floats(math.log)),
    "log": (1, 2, _of_floats(math.log)),
    "log2": (1, 1, _of_floats(math.log2)),
    "log10": (1, 1, _of_floats(math.log10)),
    "sin": (1, 1, _of_floats(math.sin)),
    "cos": (1, 1, _of_floats(math.cos)),
    "tan": (1, 1, _of_floats(math.tan)),
}
_SEVERAL = frozenset(name for name, (_, most, _f) in _FUNCTIONS.items() if most > 1)
