"""The six tools of toolstep/Assistant-v0, over one episode's small world.

The names and arguments are MiniMind's.  An input that the tool does not know is an error, never a default.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Literal

from toolstep.envs.tasks.answers import normalised
from toolstep.envs.tasks.assistant_data import CONDITIONS, CURRENCIES, LANGUAGES, PHRASES, TIME_ZONES
from toolstep.envs.tasks.base import nearest
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tools.calculator import calculator_tool
from toolstep.envs.tools.tool import Tool, tool
from toolstep.envs.tools.units import units_tool


@dataclass(frozen=True, slots=True)
class Weather:
    """The weather of one city: whole degrees Celsius, relative humidity in percent."""

    celsius: int
    condition: str
    humidity: int


@dataclass(frozen=True, slots=True)
class AssistantWorld:
    """What is true during one episode: a moment (UTC) that stands still, weather, currencies in dollars."""

    clock: datetime
    weather: dict[str, Weather]
    dollars: dict[str, Fraction]

    def local_time(self, zone: str) -> datetime:
        """The clock in an IANA time zone.  Raises ValueError for a name that is none."""
        import zoneinfo

        if zone not in _zones():
            raise ValueError(f"unknown time zone {zone[:100]!r}; {_near_zone(zone)}")
        return self.clock.astimezone(zoneinfo.ZoneInfo(zone))

    def rate(self, source: str, target: str) -> float:
        """Units of `target` for one of `source` (ISO 4217 codes), to 6 significant digits."""
        return float(f"{float(self.dollars[source] / self.dollars[target]):.6g}")


def make_world(draw: Draw) -> AssistantWorld:
    """A moment of the years 2024 to 2026, drawn weather, and rates within 5% of the table's."""
    clock = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=draw.integer(0, 3 * 365 * 24 * 60))
    weather = {
        city: Weather(draw.integer(-9, 39), draw.choice(CONDITIONS), draw.integer(20, 95)) for city in TIME_ZONES
    }
    dollars = {
        code: Fraction(value) * (1 if code == "USD" else Fraction(draw.integer(950, 1050), 1000))
        for code, (_, value) in CURRENCIES.items()
    }
    return AssistantWorld(clock, weather, dollars)


class Assistant:
    """The tools that know what is true in one episode."""

    def __init__(self, world: AssistantWorld) -> None:
        self._world = world

    @tool(run_in="inline")
    def get_current_weather(self, location: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, Any]:
        """Get the current weather of a city.

        Args:
            location: The name of a city, for example "Oslo".
            unit: The unit of the temperature.
        """
        city = _known(location, TIME_ZONES, "location")
        found = self._world.weather[city]
        warm = found.celsius if unit == "celsius" else round(found.celsius * 1.8 + 32, 1)
        return {
            "location": city,
            "temperature": warm,
            "unit": unit,
            "condition": found.condition,
            "humidity": found.humidity,
        }

    @tool(run_in="inline")
    def get_current_time(self, timezone: str) -> dict[str, str]:
        """Get the current date and time in a time zone.

        Args:
            timezone: An IANA time zone, for example "Asia/Tokyo".
        """
        local = self._world.local_time(timezone.strip())
        return {"timezone": timezone.strip(), "time": local.isoformat(sep=" "), "weekday": f"{local:%A}"}

    @tool(run_in="inline")
    def get_exchange_rate(self, from_currency: str, to_currency: str) -> dict[str, Any]:
        """Get how many units of one currency are paid for one unit of another.

        Args:
            from_currency: ISO code of the currency that is sold, for example "USD".
            to_currency: ISO code of the currency that is bought, for example "EUR".
        """
        source = _known(from_currency, CURRENCIES, "currency")
        target = _known(to_currency, CURRENCIES, "currency")
        return {"from_currency": source, "to_currency": target, "rate": self._world.rate(source, target)}

    @tool(run_in="inline")
    def translate_text(self, text: str, target_language: str) -> str:
        """Translate a common English word or phrase.

        Args:
            text: The English text.
            target_language: The language to translate to, for example "french".
        """
        by_code = {code: language for language, code in LANGUAGES.items()}
        language = _known(by_code.get(target_language.strip().casefold(), target_language), LANGUAGES, "language")
        return PHRASES[_known(text, PHRASES, "text")][language]


def assistant_tools(world: AssistantWorld) -> list[Tool]:
    """The six tools of one episode."""
    of = Assistant(world)
    return [
        calculator_tool("calculate_math"),
        units_tool("unit_converter"),
        of.get_current_weather,
        of.get_current_time,
        of.get_exchange_rate,
        of.translate_text,
    ]


def _known(given: str, table: Any, what: str) -> str:
    """The key of `table` that `given` stands for.  Raises ValueError, with the nearest, if none."""
    wanted = normalised(given)
    for key in table:
        if normalised(key) == wanted:
            return str(key)
    raise ValueError(f"unknown {what} {given[:100]!r}; {nearest(given[:100], table)}")


@functools.cache
def _zones() -> frozenset[str]:
    # The list leaves out what lies in the same folder and is no zone, and "right/..." which counts leap
    # seconds.
    import zoneinfo

    return frozenset(zoneinfo.available_timezones())


def _near_zone(zone: str) -> str:
    import difflib

    place = zone[:100].strip().replace(" ", "_").casefold()
    ends = {z.casefold(): z for z in _zones()} | {z.rpartition("/")[2].casefold(): z for z in _zones()}
    close = difflib.get_close_matches(place, ends, n=1)
    hint = f"did you mean {ends[close[0]]!r}? " if close else ""
    return f"{hint}Give an IANA name such as {', '.join(sorted(TIME_ZONES.values())[:4])}"
