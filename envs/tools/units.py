"""Unit conversion over a list of known units.

pint does the conversion but never reads what a model wrote: its parser evaluates expressions (`9**9**9` hangs it).  A
name is looked up in the table below, and pint gets a float and a name of its own.  It is imported at the first call.
"""

from __future__ import annotations

import difflib
import functools
import math
from dataclasses import dataclass
from typing import Any

from toolstep.envs.tools.tool import Tool, tool


class UnitError(ValueError):
    """A unit that is not known, two units that measure different things, or a value that has no meaning."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A known unit: the name that is shown, what it measures, and what pint calls it."""

    name: str
    dimension: str
    pint: str


# dimension: {shown name (plural): (pint's name, other spellings)}
_TABLE: dict[str, dict[str, tuple[str, str]]] = {
    "length": {
        "millimeters": ("millimeter", "mm millimeter millimetre millimetres"),
        "centimeters": ("centimeter", "cm centimeter centimetre centimetres"),
        "meters": ("meter", "m meter metre metres"),
        "kilometers": ("kilometer", "km kilometer kilometre kilometres"),
        "inches": ("inch", "in inch"),
        "feet": ("foot", "ft foot"),
        "yards": ("yard", "yd yard"),
        "miles": ("mile", "mi mile"),
        "nautical miles": ("nautical_mile", "nmi nautical_mile nautical_miles"),
    },
    "mass": {
        "milligrams": ("milligram", "mg milligram"),
        "grams": ("gram", "g gram"),
        "kilograms": ("kilogram", "kg kilogram kilo kilos"),
        "tonnes": ("metric_ton", "t tonne metric_ton metric_tons"),
        "ounces": ("ounce", "oz ounce"),
        "pounds": ("pound", "lb lbs pound"),
        "stone": ("stone", "st stones"),
    },
    "volume": {
        "milliliters": ("milliliter", "ml milliliter millilitre millilitres"),
        "liters": ("liter", "l liter litre litres"),
        "cubic meters": ("meter ** 3", "m3 m^3 m³ cubic_meter cubic_metre cubic_metres"),
        "US cups": ("cup", "cup cups us_cup"),
        "US pints": ("pint", "pint pints us_pint"),
        "US gallons": ("gallon", "gal gallon gallons us_gallon"),
    },
    "time": {
        "milliseconds": ("millisecond", "ms millisecond"),
        "seconds": ("second", "s sec second"),
        "minutes": ("minute", "min minute"),
        "hours": ("hour", "h hr hour"),
        "days": ("day", "d day"),
        "weeks": ("week", "wk week"),
    },
    "speed": {
        "meters per second": ("meter / second", "m/s mps meter_per_second metres_per_second"),
        "kilometers per hour": ("kilometer / hour", "km/h kph kmh kilometer_per_hour kilometres_per_hour"),
        "miles per hour": ("mile / hour", "mph mi/h mile_per_hour"),
        "knots": ("knot", "kn kt knot"),
    },
    "temperature": {
        "degrees Celsius": ("degree_Celsius", "c °c celsius degc deg_c degree_celsius centigrade"),
        "degrees Fahrenheit": ("degree_Fahrenheit", "f °f fahrenheit degf deg_f degree_fahrenheit"),
        "kelvins": ("kelvin", "k kelvin"),
    },
    "area": {
        "square meters": ("meter ** 2", "m2 m^2 m² sqm square_meter square_metre square_metres"),
        "square kilometers": ("kilometer ** 2", "km2 km^2 km² square_kilometer square_kilometres"),
        "square feet": ("foot ** 2", "ft2 ft^2 ft² sqft square_foot"),
        "hectares": ("hectare", "ha hectare"),
        "acres": ("acre", "acre ac"),
    },
    "energy": {
        "joules": ("joule", "j joule"),
        "kilojoules": ("kilojoule", "kj kilojoule"),
        "kilocalories": ("kilocalorie", "kcal kilocalorie"),
        "kilowatt hours": ("kilowatt_hour", "kwh kilowatt_hour kilowatt_hours"),
    },
    "pressure": {
        "pascals": ("pascal", "pa pascal"),
        "kilopascals": ("kilopascal", "kpa kilopascal"),
        "bars": ("bar", "bar"),
        "atmospheres": ("standard_atmosphere", "atm atmosphere"),
        "psi": ("pound_force_per_square_inch", "psi"),
    },
}


def _key(text: str) -> str:
    return "_".join(text.casefold().replace("-", " ").replace("_", " ").split())


UNITS: dict[str, Unit] = {n: Unit(n, d, p) for d, units in _TABLE.items() for n, (p, _) in units.items()}
_ALIASES: dict[str, Unit] = {
    _key(alias): UNITS[name]
    for units in _TABLE.values()
    for name, (_, others) in units.items()
    for alias in (name, *others.split())
}


def find_unit(name: str) -> Unit:
    """The unit that `name` (a name, plural or symbol; case aside) stands for.

    Raises:
        UnitError: it is not known; the message has the nearest and all that are.
    """
    found = _ALIASES.get(_key(str(name)[:100]))
    if found is None:
        near = difflib.get_close_matches(_key(str(name)[:100]), _ALIASES, n=1)
        hint = f"did you mean {_ALIASES[near[0]].name!r}? " if near else ""
        raise UnitError(f"unknown unit {str(name)[:100]!r}; {hint}Known units: {', '.join(UNITS)}")
    return found


def convert(value: float, from_unit: str, to_unit: str) -> float:
    """`value`, given in `from_unit`, in `to_unit`.  Temperatures are points of a scale: 100 C is 212 F.

    Raises:
        UnitError: unknown or incompatible units, a value that is not finite, or one below absolute zero.
    """
    source, target = find_unit(from_unit), find_unit(to_unit)
    if source.dimension != target.dimension:
        fitting = ", ".join(u.name for u in UNITS.values() if u.dimension == source.dimension)
        raise UnitError(
            f"cannot convert {source.name} ({source.dimension}) to {target.name} ({target.dimension}); "
            f"units of {source.dimension}: {fitting}"
        )
    if not math.isfinite(value):
        raise UnitError(f"the value must be a finite number, got {value}")
    quantity = _registry().Quantity(float(value), source.pint)
    # Offset units come back with noise (211.99999999999991): twelve digits are what a double gives reliably.
    result = float(f"{quantity.to(target.pint).magnitude:.12g}")
    if source.dimension == "temperature" and quantity.to("kelvin").magnitude < -1e-9:
        raise UnitError(f"{value:g} {source.name} is below absolute zero")
    if not math.isfinite(result):
        raise UnitError("the result is too large")
    return result


def convert_units(value: float, from_unit: str, to_unit: str) -> str:
    """Convert a measurement from one unit to another.

    Args:
        value: The number to convert.
        from_unit: The unit it is given in, for example "km", "pounds" or "celsius".
        to_unit: The unit to convert it to.
    """
    return f"{convert(value, from_unit, to_unit):.10g} {find_unit(to_unit).name}"


@functools.cache
def units_tool(name: str = "convert_units") -> Tool:
    """The converter as a tool; it keeps nothing between calls."""
    return tool(convert_units, name=name, run_in="inline")


@functools.cache
def _registry() -> Any:
    try:
        import pint
    except ImportError as e:
        raise ImportError("unit conversion needs pint: pip install pint") from e
    return pint.UnitRegistry(cache_folder=None)
