"""Answers that are the result of a query: rows in text, compared with the rows that are right."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from toolstep.envs.tasks.answers import exact_value, is_near, last_number, normalised, states

Cell = str | int | float | None
Rows = Sequence[Sequence[Cell]]

MAX_ANSWER = 20_000  # characters that are looked at
_NEAR = Fraction(1, 10**4)  # relative, of floats
_BULLET = re.compile(r"^\s*(?:[-*•]\s+|\d{1,3}[.)]\s+)")
_RULE = re.compile(r"^[\s|:+=-]+$")
_NULL = ("null", "none")
_FENCE = re.compile(r"^\s*```")


def write_rows(rows: Rows) -> str:
    """One row a line, values separated by " | "."""
    return "\n".join(" | ".join(_written(cell) for cell in row) for row in rows)


def same_result(text: str, expected: Rows, *, ordered: bool) -> bool:
    """True where `text` gives exactly the rows of `expected`: no more, no fewer; in their order where that counts.

    Rows are lines (bullets, numbering, table rules, code fences and a line that introduces them are passed over), or a
    JSON list; values are separated by "|", a tab, or a comma.  A single column may also be one line with commas.  A
    single value may be said in a sentence: it ends in the value (`answers.states`), or its last number is the value.
    Numbers are compared as numbers, floats to one part in ten thousand (a mean is given with two decimals), text
    without case and punctuation around it; None is "NULL", "None" or nothing.
    """
    text = text[:MAX_ANSWER]
    if len(expected) == 1 and len(expected[0]) == 1:
        return _says(text, expected[0][0])
    width = len(expected[0]) if expected else 0
    return any(_equal(rows, expected, ordered) for rows in _readings(text, width))


def same_items(text: str, expected: Sequence[Cell]) -> bool:
    """True where `text` lists the `expected` items, all of them and no others; how often one is named is no matter.

    It is read as `same_result` reads a single column.
    """
    rows = [[item] for item in {_meaning(_written(item)): item for item in expected}.values()]
    for found in _readings(text[:MAX_ANSWER], 1):
        distinct = list({tuple(map(_meaning, row)): row for row in found}.values())
        if _equal(distinct, rows, ordered=False):
            return True
    return False


def _meaning(item: str) -> str | Fraction:
    """Equal for items that are the same one, written in two ways."""
    value = exact_value(item)
    return normalised(item) if value is None else value


def _says(text: str, value: Cell) -> bool:
    if isinstance(value, int | float):
        number = last_number(text)
        return number is not None and is_near(number, Fraction(value), rel=_tolerance(value))
    return any(states(text, word) for word in (_NULL if value is None else (str(value),)))


def _readings(text: str, width: int) -> list[list[list[str]]]:
    """The ways in which the text may be read as rows."""
    lines = [_BULLET.sub("", line).strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not _RULE.match(line) and not _FENCE.match(line)]
    introduced = lines[1:] if lines and lines[0].endswith(":") else lines
    readings = [[_cells(line, width) for line in lines], [_cells(line, width) for line in introduced]]
    if len(lines) > 1:  # a table with a header
        readings.append([_cells(line, width) for line in lines[1:]])
    if width == 1 and introduced:
        readings.append([[cell] for cell in re.split(r",\s*|\s+and\s+", introduced[-1].rstrip("."))])
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError):
        return readings
    if isinstance(decoded, list) and len(decoded) <= 1_000:
        rows = [row if isinstance(row, list) else [row] for row in decoded]
        readings.append([[_written(cell) for cell in row] for row in rows])
    return readings


def _cells(line: str, width: int) -> list[str]:
    if width == 1:
        return [line.strip("|").strip()]
    for separator in ("|", "\t", ","):
        if separator in line:
            cells = [cell.strip() for cell in line.split(separator)]
            if len(cells) > width and not cells[0]:  # the border of a table, no empty value
                del cells[0]
            if len(cells) > width and not cells[-1]:
                del cells[-1]
            return cells
    return [line]


def _equal(found: Sequence[Sequence[str]], expected: Rows, ordered: bool) -> bool:
    if len(found) != len(expected) or any(len(row) != len(expected[0]) for row in found):
        return False
    if ordered:
        return all(_same_row(row, right) for row, right in zip(found, expected, strict=True))
    # Numbers are compared with a tolerance, so rows can't be looked up; texts sort out which may belong together.
    left = list(expected)
    for row in found:
        match = next((right for right in left if _same_row(row, right)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _same_row(row: Sequence[str], right: Sequence[Cell]) -> bool:
    return all(_same_cell(cell, value) for cell, value in zip(row, right, strict=True))


def _same_cell(said: str, value: Cell) -> bool:
    if isinstance(value, int | float):
        number = exact_value(said.strip(" $€.*`"))
        return number is not None and abs(number - Fraction(value)) <= _tolerance(value) * abs(Fraction(value))
    if value is None:
        return normalised(said) in ("", *_NULL)
    return normalised(said) == normalised(_written(value))


def _tolerance(value: int | float) -> Fraction:
    return _NEAR if isinstance(value, float) else Fraction(0)


def _written(cell: object) -> str:
    return "NULL" if cell is None else str(cell)


def unique(rows: Rows) -> bool:
    """True where no row stands there twice."""
    return max(Counter(map(tuple, rows)).values(), default=0) <= 1
