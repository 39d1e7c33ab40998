"""The calculator's arithmetic: exact fractions where they will do, else floats, and a limit on every size.

Sizes are checked before a number is made, not after: nothing here can hang.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

MAX_BITS = 4_096  # of a numerator or denominator; 1,233 decimal digits
MAX_COUNT = 500  # argument of factorial and comb

Value = Fraction | float


class CalculatorError(ValueError):
    """The expression cannot be read, has no value, or is too large."""


CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}


def format_value(value: Value) -> str:
    """Text from which the exact value can be read.

    Integers and decimals that end (within 40 places) are written out, other fractions as `17/3 (about
    5.66666666667)`, floats to 12 significant digits.
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


def literal(symbol: str) -> Fraction:
    mantissa, _, exponent = symbol.replace("_", "").lower().partition("e")
    if exponent and abs(int(exponent)) * math.log2(10) > MAX_BITS:
        raise CalculatorError(f"the number {symbol[:40]} is out of range")
    scale = Fraction(10) ** int(exponent or 0)
    return _exact(Fraction(mantissa.rstrip(".") if mantissa[0] != "." else "0" + mantissa) * scale)


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _exact(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise CalculatorError(f"the result is too large (more than {MAX_BITS} bits)")
    return value


def checked(value: Value) -> Value:
    if isinstance(value, Fraction):
        return _exact(value)
    if not math.isfinite(value):
        raise CalculatorError("the result is too large or not a number")
    return value


def operate(sign: str, a: Value, b: Value) -> Value:
    if sign == "**":
        return checked(_power(a, b))
    if isinstance(a, float) or isinstance(b, float):
        a, b = float(a), float(b)
    return checked(_OPERATORS[sign](a, b))


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
    return float(x**y)


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


def factorial(value: Value) -> Value:
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


FUNCTIONS: dict[str, tuple[int, int, Callable[..., Value]]] = {
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
    "factorial": (1, 1, factorial),
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
SEVERAL = frozenset(name for name, (_, most, _f) in FUNCTIONS.items() if most > 1)
