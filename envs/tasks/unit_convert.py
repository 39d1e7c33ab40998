"""toolstep/UnitConvert-v0: measurements in other units."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import ClassVar

from toolstep.envs.menu import Menu
from toolstep.envs.tasks.answers import is_near, last_number
from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.number_menus import UnitConvertMenu
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.calculator import calculator_tool
from toolstep.envs.tools.tool import Tool
from toolstep.envs.tools.units import UNITS, convert, units_tool
from toolstep.envs.types import EpisodeRecord, Task, Turn

_RELATIVE = Fraction(5, 10_000)  # four significant digits
_DEGREES = Fraction(5, 100)  # one decimal of a temperature

_EVERYDAY = (
    ("kilometers", "miles"),
    ("miles", "kilometers"),
    ("feet", "meters"),
    ("meters", "feet"),
    ("inches", "centimeters"),
    ("kilograms", "pounds"),
    ("pounds", "kilograms"),
    ("liters", "US gallons"),
    ("hours", "minutes"),
    ("degrees Celsius", "degrees Fahrenheit"),
    ("degrees Fahrenheit", "degrees Celsius"),
)
# Units of a similar size, so that no answer is 0.0000003 or has ten digits.
_FAMILIES = (
    ("kilometers", "miles", "nautical miles"),
    ("meters", "feet", "yards"),
    ("centimeters", "inches", "feet", "millimeters"),
    ("kilograms", "pounds", "stone"),
    ("grams", "ounces", "pounds"),
    ("liters", "US pints", "US cups", "US gallons"),
    ("minutes", "hours", "days", "seconds"),
    ("meters per second", "kilometers per hour", "miles per hour", "knots"),
    ("degrees Celsius", "degrees Fahrenheit", "kelvins"),
    ("hectares", "acres", "square meters"),
    ("kilojoules", "kilocalories", "kilowatt hours"),
    ("kilopascals", "psi", "bars", "atmospheres"),
)
_SUMMABLE = tuple(f for f in _FAMILIES if "kelvins" not in f)


class UnitConvertTasks(ProceduralTasks):
    """Unit conversions.

    Level 1: whole numbers of everyday units.  Level 2: decimals, more units.  Level 3: the sum of two or three
    measurements in different units, for which a calculator is on offer too.

    The answer's last number is right to 4 significant digits, a temperature to one decimal.
    """

    name: ClassVar[str] = "toolstep/UnitConvert-v0"
    system = "Use the tools, then answer with the number only, to at least 4 significant digits."

    def tools(self, task: Task) -> Sequence[Tool]:
        return [units_tool(), calculator_tool()]

    def score(self, record: EpisodeRecord) -> float:
        number = last_number(record.answer)
        warm = UNITS[record.task.data["to_unit"]].dimension == "temperature"
        expected = Fraction(record.task.answer)
        return float(
            number is not None and is_near(number, expected, rel=_RELATIVE, abs_=_DEGREES if warm else Fraction(0))
        )

    def oracle(self, record: EpisodeRecord) -> Turn:
        target = record.task.data["to_unit"]
        wanted = [
            ("convert_units", {"value": float(value), "from_unit": unit, "to_unit": target})
            for value, unit in record.task.data["parts"]
        ]
        found = [result_of(record, *w) for w in wanted]
        missing = [w for w, text in zip(wanted, found, strict=True) if text is None]
        if missing:
            return call(record, *missing)
        shown = [text.split(" ")[0] for text in found if text is not None]
        if len(shown) == 1:
            return Turn(shown[0])
        arguments = {"expression": " + ".join(shown)}
        total = result_of(record, "calculator", arguments)
        return call(record, ("calculator", arguments)) if total is None else Turn(total)

    def menu(self) -> Menu:
        return UnitConvertMenu()

    def draw(self, draw: Draw, level: int) -> Problem:
        if level == 1:
            source, target = draw.choice(_EVERYDAY)
            parts = [(str(draw.integer(2, 999)), source)]
        elif level == 2:
            source, target = draw.sample(draw.choice(_FAMILIES), 2)
            parts = [(_decimal(draw), source)]
        else:
            target, *sources = draw.sample(family := draw.choice(_SUMMABLE), min(len(family), 3))
            sources = (sources * 2)[: draw.integer(2, 3)]
            parts = [(_decimal(draw), source) for source in sources]
        said = " plus ".join(f"{value} {unit}" for value, unit in parts)
        total = sum(convert(float(value), unit, target) for value, unit in parts)
        return Problem(
            key=f"units:{' + '.join(sorted(f'{Fraction(v)} {u}' for v, u in parts))} -> {target}",
            prompt=f"What is {said}, in {target}?" if level == 3 else f"Convert {said} to {target}.",
            answer=f"{total:.10g}",
            data={"parts": tuple(parts), "to_unit": target},
            tools=("convert_units", "calculator") if level == 3 else ("convert_units",),
        )


def _decimal(draw: Draw) -> str:
    places = draw.choice((1, 2))
    return f"{draw.integer(11, 99_999) / 10**places:.{places}f}"
