"""toolstep/Calculator-v0: arithmetic, scored exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import ClassVar

from toolstep.envs.menu import Menu
from toolstep.envs.tasks.answers import is_exactly, last_number
from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.number_menus import CalculatorMenu
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.arithmetic import format_value
from toolstep.envs.tools.calculator import calculator_tool, evaluate
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import EpisodeRecord, Task, Turn


class CalculatorTasks(ProceduralTasks):
    """Arithmetic problems with one right number.

    Level 1: `874 - 404`, two operands of two or three digits.  Level 2: two or three operators, parentheses, decimals.
    Level 3: stories of several steps, fractions and powers.

    The answer's last number is compared as a rational number.  Where the exact result has no finite decimal (17/3), its
    rounding to 4 or more decimals is right too.
    """

    name: ClassVar[str] = "toolstep/Calculator-v0"
    system = "Use the calculator, then answer with the number only."

    def tools(self, task: Task) -> Sequence[Tool]:
        return [calculator_tool()]

    def score(self, record: EpisodeRecord) -> float:
        number = last_number(record.answer)
        return float(number is not None and is_exactly(number, Fraction(record.task.answer)))

    def oracle(self, record: EpisodeRecord) -> Turn:
        arguments = {"expression": record.task.data["expression"]}
        found = result_of(record, "calculator", arguments)
        if found is None:
            return call(record, ("calculator", arguments))
        return Turn(found.split(" ")[0])  # "17/3 (about 5.667)": the exact part

    def menu(self) -> Menu:
        return CalculatorMenu()

    def draw(self, draw: Draw, level: int) -> Problem:
        prompt, expression = _LEVELS[level](draw)
        value = evaluate(expression)
        assert isinstance(value, Fraction), expression
        return Problem(
            key=f"calculator:{canonical(expression)}",
            prompt=prompt or f"What is {expression}?",
            answer=format_value(value).split(" ")[0],
            data={"expression": expression},
        )


def canonical(expression: str) -> str:
    """The same text for `404 + 874` and `874 + 404`."""
    parts = expression.split(" ")
    if len(parts) == 3 and parts[1] in "+*":
        parts = [*sorted([parts[0], parts[2]]), parts[1]]
    return " ".join(parts)


def _operand(draw: Draw) -> int:
    return draw.integer(10, 99) if draw.chance(0.3) else draw.integer(100, 999)


def _simple(draw: Draw) -> tuple[str, str]:
    a, b, sign = _operand(draw), _operand(draw), draw.choice("+-*")
    while a == b:
        b = _operand(draw)
    if sign == "-" and a < b:
        a, b = b, a
    return "", f"{a} {sign} {b}"


def _decimal(draw: Draw) -> str:
    if draw.chance(0.5):
        return str(draw.integer(2, 99))
    places = draw.choice((1, 1, 2))
    return format_value(Fraction(draw.integer(2, 9999 if places == 2 else 999), 10**places))


def _nested(draw: Draw) -> tuple[str, str]:
    a, b, c, d = (_decimal(draw) for _ in range(4))
    p, q, r = (draw.choice("+-*") for _ in range(3))
    divisor = draw.choice((2, 4, 5, 8, 20, 25))
    shape = draw.integer(0, 4)
    if shape == 0:
        return "", f"({a} {p} {b}) * {c}"
    if shape == 1:
        return "", f"{a} {p} {b} {q} {c}"
    if shape == 2:
        return "", f"({a} {p} {b}) / {divisor}"
    if shape == 3:
        return "", f"({a} {p} {b}) * ({c} {r} {d})"
    return "", f"{a} - ({b} {q} {c}) / {divisor}"


def _fraction(draw: Draw) -> str:
    denominator = draw.integer(2, 12)
    return f"{draw.integer(1, 3 * denominator)}/{denominator}"


def _long(draw: Draw) -> tuple[str, str]:
    """A story, or a symbolic problem with fractions or powers."""
    if draw.chance(0.6):
        return draw.choice(_STORIES)(draw)
    a, b, c = _fraction(draw), _fraction(draw), _fraction(draw)
    n, m, k = draw.integer(2, 15), draw.integer(2, 4), draw.integer(2, 60)
    p, q = draw.choice("+-*"), draw.choice("+-")
    shape = draw.integer(0, 3)
    if shape == 0:
        return "", f"{a} {p} {b}"
    if shape == 1:
        return "", f"({a} {q} {b}) * {c}"
    if shape == 2:
        return "", f"({a})^2 {q} {b}"
    return "", f"{n}^{m} {q} {k} * ({b} + {draw.integer(1, 9)})"


_NAMES = ("Ada", "Ben", "Chen", "Dana", "Emil", "Farah", "Goran", "Hana", "Ines", "Jonas", "Kofi", "Lena")
_GOODS = (
    "notebooks",
    "lamps",
    "mugs",
    "tickets",
    "batteries",
    "plants",
    "chairs",
    "bricks",
    "shirts",
    "books",
)


def _money(draw: Draw) -> str:
    return f"{draw.integer(1, 80)}.{draw.choice((25, 50, 75, 95)):02d}"


def _shopping(draw: Draw) -> tuple[str, str]:
    (x, y), who = draw.sample(_GOODS, 2), draw.choice(_NAMES)
    n, m, p, q = draw.integer(3, 40), draw.integer(3, 40), _money(draw), _money(draw)
    paid = draw.choice((6_500, 7_000, 8_000))
    prompt = (
        f"{who} buys {n} {x} at ${p} each and {m} {y} at ${q} each, and pays with ${paid}. "
        f"How many dollars of change does {who} get?"
    )
    return prompt, f"{paid} - {n} * {p} - {m} * {q}"


def _discount(draw: Draw) -> tuple[str, str]:
    item, n, p, rate = draw.choice(_GOODS), 20 * draw.integer(1, 6), _money(draw), 5 * draw.integer(1, 9)
    prompt = f"A shop sells {item} at ${p} each with {rate}% off. How many dollars do {n} of them cost?"
    return prompt, f"{n} * {p} * (100 - {rate}) / 100"


def _share(draw: Draw) -> tuple[str, str]:
    item, boxes, per, lost = (
        draw.choice(_GOODS),
        draw.integer(4, 40),
        draw.integer(6, 48),
        draw.integer(1, 20),
    )
    people = draw.integer(3, 9)
    prompt = (
        f"{boxes} boxes hold {per} {item} each. {lost} of the {item} break, and {people} people pay equal "
        f"shares of the price of what is left, at $3 apiece. How many dollars does each of them pay?"
    )
    return prompt, f"({boxes} * {per} - {lost}) * 3 / {people}"


def _tank(draw: Draw) -> tuple[str, str]:
    liters, inflow, minutes = draw.integer(50, 900), draw.integer(4, 30), draw.integer(5, 60)
    top, bottom = draw.choice(((1, 2), (1, 3), (2, 3), (3, 4), (2, 5), (5, 6)))
    prompt = (
        f"A tank holds {liters} litres of water. A pump adds {inflow} litres a minute for {minutes} minutes; "
        f"then {top}/{bottom} of the water is drained. How many litres are left?"
    )
    return prompt, f"({liters} + {inflow} * {minutes}) * (1 - {top}/{bottom})"


def _garden(draw: Draw) -> tuple[str, str]:
    side, beds, width, length = (
        draw.integer(20, 60),
        draw.integer(2, 3),
        draw.integer(2, 10),
        draw.integer(2, 12),
    )
    prompt = (
        f"A square garden has a side of {side} m. {beds} beds of {width} m by {length} m are dug in it. "
        f"How many square metres are left?"
    )
    return prompt, f"{side}^2 - {beds} * {width} * {length}"


def _doubling(draw: Draw) -> tuple[str, str]:
    start, hours, taken = draw.integer(3, 60), draw.integer(3, 9), draw.integer(2, 20)
    prompt = (
        f"A culture of {start} cells doubles every hour. After {hours} hours {taken} cells are taken out. "
        f"How many cells are left?"
    )
    return prompt, f"{start} * 2^{hours} - {taken}"


def _trip(draw: Draw) -> tuple[str, str]:
    a, b, x, y = draw.integer(40, 120), draw.integer(40, 120), draw.integer(2, 6), draw.integer(2, 6)
    prompt = (
        f"A train runs {x} hours at {a} km/h and then {y} hours at {b} km/h. "
        f"What is its average speed over the whole trip, in km/h?"
    )
    return prompt, f"({x} * {a} + {y} * {b}) / ({x} + {y})"


_STORIES: tuple[Callable[[Draw], tuple[str, str]], ...] = (
    _shopping,
    _discount,
    _share,
    _tank,
    _garden,
    _doubling,
    _trip,
)
_LEVELS: dict[int, Callable[[Draw], tuple[str, str]]] = {1: _simple, 2: _nested, 3: _long}
