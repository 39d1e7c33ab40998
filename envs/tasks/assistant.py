"""toolstep/Assistant-v0: everyday requests for six tools (MiniMind's, with its defects mended)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Literal

from toolstep.envs.tasks.answers import is_near, mentions, normalised, numbers, split_times
from toolstep.envs.tasks.assistant_data import CURRENCIES, LANGUAGES, PHRASES, TIME_ZONES
from toolstep.envs.tasks.assistant_tools import AssistantWorld, assistant_tools, make_world
from toolstep.envs.tasks.calculator import canonical
from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.arithmetic import format_value
from toolstep.envs.tools.calculator import evaluate
from toolstep.envs.tools.tool import Tool
from toolstep.envs.tools.units import convert
from toolstep.envs.types import EpisodeRecord, Task, Turn

_RELATIVE = Fraction(5, 10_000)  # four significant digits
_MOST_CHARACTERS = 2_000  # of an answer: one that lists everything does not answer

Kind = Literal["number", "degrees", "time", "text"]


@dataclass(frozen=True, slots=True)
class Part:
    """One request of a task: what is asked, by which recipe it is solved, and what has to be said."""

    recipe: str
    arguments: tuple[str, ...]
    prompt: str
    kind: Kind
    expected: str

    @property
    def key(self) -> str:
        """The same text for the same request, however it is put."""
        arguments = (canonical(*self.arguments),) if self.recipe == "math" else self.arguments
        return " ".join((self.recipe, *arguments))


class AssistantTasks(ProceduralTasks):
    """Requests for one or more tools over small but correct tables.

    Level 1: one call.  Level 2: two requests that don't depend on each other.  Level 3: one that needs the result of
    another call, and one more.  Clock, weather and rates are drawn for each task, so they can't be learnt by heart.

    The score is the share of what has to be said that the answer says: numbers as numbers (to 4 significant digits,
    temperatures to 0.05), times of day as times, phrases as whole words, and each as often as it is asked for.
    """

    name: ClassVar[str] = "toolstep/Assistant-v0"
    system = "Use the tools for every fact and calculation, then answer all of the request briefly."

    def tools(self, task: Task) -> Sequence[Tool]:
        return assistant_tools(task.data["world"])

    def score(self, record: EpisodeRecord) -> float:
        parts: tuple[Part, ...] = record.task.data["parts"]
        return found_share([(p.kind, p.expected) for p in parts], record.answer)

    def oracle(self, record: EpisodeRecord) -> Turn:
        missing: list[tuple[str, dict[str, Any]]] = []

        def ask(name: str, **arguments: Any) -> Any:
            text = result_of(record, name, arguments)
            if text is None:
                if (name, arguments) not in missing:
                    missing.append((name, arguments))
                return None
            return json.loads(text) if text.startswith("{") else text

        said = [_RECIPES[p.recipe](ask, *p.arguments) for p in record.task.data["parts"]]
        return call(record, *missing) if missing else Turn("\n".join(map(str, said)))

    def draw(self, draw: Draw, level: int) -> Problem:
        world = make_world(draw)
        if level == 3:
            makers = [draw.choice(_DEPENDENT), draw.choice(_SINGLE)]
        else:
            makers = draw.sample(_SINGLE, level)
        parts = tuple(make(draw, world) for make in makers)
        return Problem(
            key=f"assistant:{' + '.join(sorted(p.key for p in parts))}",
            prompt=" ".join(p.prompt for p in parts),
            answer=tuple(p.expected for p in parts),
            data={"world": world, "parts": parts},
        )


# ---------------------------------------------------------------------------------------------------- scoring
def found_share(expected: Sequence[tuple[Kind, str]], answer: str) -> float:
    """The share of `expected` (kind, value) that `answer` states, each item by words of its own."""
    if not expected:
        return 1.0
    if len(answer) > _MOST_CHARACTERS:
        return 0.0
    times, rest = split_times(answer)
    said = numbers(rest)
    wanted = [(kind, Fraction(value)) for kind, value in expected if kind in ("number", "degrees")]
    fits = [
        [
            j
            for j, n in enumerate(said)
            if is_near(n, value, rel=_RELATIVE, abs_=Fraction(1, 20) if kind == "degrees" else Fraction(0))
        ]
        for kind, value in wanted
    ]
    found = _matched(fits) if len(said) <= 8 + 4 * len(expected) else 0
    for value in {v for k, v in expected if k == "time"}:
        found += min(times.count(value), sum((k, v) == ("time", value) for k, v in expected))
    for value in {normalised(v) for k, v in expected if k == "text"}:
        asked = sum(k == "text" and normalised(v) == value for k, v in expected)
        found += min(mentions(answer, value), asked)
    return found / len(expected)


def _matched(fits: Sequence[Sequence[int]]) -> int:
    """How many rows can have a column of their own (Kuhn's bipartite matching)."""
    owner: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column in fits[row]:
            if column not in seen:
                seen.add(column)
                if column not in owner or place(owner[column], seen):
                    owner[column] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(fits)))


# --------------------------------------------------------------------------------------------------- requests
def _math(draw: Draw, world: AssistantWorld) -> Part:
    a, b, sign = draw.integer(12, 999), draw.integer(12, 99), draw.choice("+-*")
    expression = f"{a} {sign} {b}"
    return Part("math", (expression,), f"What is {expression}?", "number", _exact(expression))


_CONVERSIONS = (
    ("miles", "kilometers"),
    ("kilometers", "miles"),
    ("pounds", "kilograms"),
    ("kilograms", "pounds"),
    ("feet", "meters"),
    ("inches", "centimeters"),
    ("degrees Celsius", "degrees Fahrenheit"),
    ("degrees Fahrenheit", "degrees Celsius"),
)


def _units(draw: Draw, world: AssistantWorld) -> Part:
    value, (source, target) = draw.integer(2, 300), draw.choice(_CONVERSIONS)
    result = f"{convert(value, source, target):.10g}"
    kind: Kind = "degrees" if source.startswith("degrees") else "number"
    return Part("units", (str(value), source, target), f"Convert {value} {source} to {target}.", kind, result)


def _weather(draw: Draw, world: AssistantWorld) -> Part:
    city, unit = draw.choice(list(TIME_ZONES)), draw.choice(("celsius", "fahrenheit"))
    celsius = world.weather[city].celsius
    result = celsius if unit == "celsius" else round(celsius * 1.8 + 32, 1)
    prompt = f"What is the temperature in {city} now, in degrees {unit.capitalize()}?"
    return Part("weather", (city, unit), prompt, "degrees", str(result))


def _time(draw: Draw, world: AssistantWorld) -> Part:
    city = draw.choice(list(TIME_ZONES))
    zone = TIME_ZONES[city]
    prompt = f"What time is it in {city} (time zone {zone})? Write it as HH:MM."
    return Part("time", (zone,), prompt, "time", f"{world.local_time(zone):%H:%M}")


def _rate(draw: Draw, world: AssistantWorld) -> Part:
    source, target = draw.sample(list(CURRENCIES), 2)
    prompt = f"What is the exchange rate from {source} to {target}?"
    return Part("rate", (source, target), prompt, "number", str(world.rate(source, target)))


def _translation(draw: Draw, world: AssistantWorld) -> Part:
    while True:
        english, language = draw.choice(list(PHRASES)), draw.choice(list(LANGUAGES))
        result = PHRASES[english][language]
        # "ja" or a single character would be found in almost any text, and "water" stands in the question.
        if len(result) > (1 if not result.isascii() else 3) and normalised(result) != normalised(english):
            break
    prompt = f'How do you say "{english}" in {language.capitalize()}?'
    return Part("translation", (english, language), prompt, "text", result)


def _exchange(draw: Draw, world: AssistantWorld) -> Part:
    (source, target), amount = draw.sample(list(CURRENCIES), 2), draw.integer(15, 900)
    result = _exact(f"{amount} * {world.rate(source, target)}")
    prompt = f"How many {CURRENCIES[target][0]} ({target}) are {amount} {CURRENCIES[source][0]} ({source})?"
    return Part("exchange", (str(amount), source, target), prompt, "number", result)


def _warmer(draw: Draw, world: AssistantWorld) -> Part:
    a, b = sorted(draw.sample(list(TIME_ZONES), 2))
    difference = abs(world.weather[a].celsius - world.weather[b].celsius)
    prompt = f"By how many degrees Celsius do the temperatures in {a} and {b} differ now?"
    return Part("warmer", (a, b), prompt, "degrees", str(difference))


def _fuel(draw: Draw, world: AssistantWorld) -> Part:
    miles, trips = draw.integer(3, 90), draw.integer(3, 25)
    kilometers = f"{convert(miles, 'miles', 'kilometers'):.10g}"
    prompt = f"A commute of {miles} miles is driven {trips} times. How many kilometers is that in total?"
    return Part("fuel", (str(miles), str(trips)), prompt, "number", _exact(f"{trips} * {kilometers}"))


Maker = Callable[[Draw, AssistantWorld], Part]
_SINGLE: tuple[Maker, ...] = (_math, _units, _weather, _time, _rate, _translation)
_DEPENDENT: tuple[Maker, ...] = (_exchange, _warmer, _fuel)


def _exact(expression: str) -> str:
    return format_value(evaluate(expression)).split(" ")[0]


# ---------------------------------------------------------------------------------------------------- recipes
Ask = Callable[..., Any]


def _solve_weather(ask: Ask, city: str, unit: str) -> str | None:
    found = ask("get_current_weather", location=city, unit=unit)
    return found and str(found["temperature"])


def _solve_time(ask: Ask, zone: str) -> str | None:
    found = ask("get_current_time", timezone=zone)
    return found and str(found["time"][11:16])


def _solve_rate(ask: Ask, source: str, target: str) -> str | None:
    found = ask("get_exchange_rate", from_currency=source, to_currency=target)
    return found and str(found["rate"])


def _solve_units(ask: Ask, value: str, source: str, target: str) -> str | None:
    found = ask("unit_converter", value=float(value), from_unit=source, to_unit=target)
    return found and str(found.split(" ")[0])


def _solve_math(ask: Ask, expression: str) -> str | None:
    found = ask("calculate_math", expression=expression)
    return found and str(found.split(" ")[0])


def _solve_exchange(ask: Ask, amount: str, source: str, target: str) -> str | None:
    rate = _solve_rate(ask, source, target)
    return rate and _solve_math(ask, f"{amount} * {rate}")


def _solve_warmer(ask: Ask, a: str, b: str) -> str | None:
    first, second = _solve_weather(ask, a, "celsius"), _solve_weather(ask, b, "celsius")
    return first and second and _solve_math(ask, f"abs({first} - ({second}))")


def _solve_fuel(ask: Ask, miles: str, trips: str) -> str | None:
    kilometers = _solve_units(ask, miles, "miles", "kilometers")
    return kilometers and _solve_math(ask, f"{trips} * {kilometers}")


_RECIPES: Mapping[str, Callable[..., str | None]] = {
    "math": _solve_math,
    "units": _solve_units,
    "weather": _solve_weather,
    "time": _solve_time,
    "rate": _solve_rate,
    "translation": lambda ask, text, language: ask("translate_text", text=text, target_language=language),
    "exchange": _solve_exchange,
    "warmer": _solve_warmer,
    "fuel": _solve_fuel,
}
