"""Functions that toolstep/Python-v0 asks for at its third level, with what they are asked to do and inputs for them.

The text of such a function is what the oracle answers with, so each keeps to what a sandbox of a part of Python runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.pipelines import NAME, Program


def run_lengths(text: str, least: int) -> str:
    out, i = "", 0
    while i < len(text):
        j = i
        while j < len(text) and text[j] == text[i]:
            j += 1
        out += text[i] + str(j - i) if j - i >= least else text[i:j]
        i = j
    return out


def merge_intervals(intervals: list[list[int]], gap: int) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, end in sorted(intervals):
        if merged and start - merged[-1][1] <= gap:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def best_window(xs: list[int], size: int) -> int:
    sums = [sum(xs[i : i + size]) for i in range(len(xs) - size + 1)]
    return max(sums) if sums else 0


def in_base(number: int, base: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    out = ""
    while number > 0:
        out = digits[number % base] + out
        number //= base
    return out or "0"


def ways_to_pay(amount: int, coins: list[int]) -> int:
    ways = [1] + [0] * amount
    for coin in coins:
        for i in range(coin, amount + 1):
            ways[i] += ways[i - coin]
    return ways[amount]


def count_islands(grid: list[str], diagonal: bool) -> int:
    left = {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell == "#"}
    count = 0
    while left:
        count += 1
        todo = [left.pop()]
        while todo:
            r, c = todo.pop()
            for dr in (-1, 0, 1):
                for dc in (-1, 0, 1):
                    near = (r + dr, c + dc)
                    if near in left and (diagonal or dr == 0 or dc == 0):
                        left.remove(near)
                        todo.append(near)
    return count


def shift_letters(text: str, steps: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "".join(letters[(letters.index(c) + steps) % 26] if c in letters else c for c in text)


def longest_climb(xs: list[int], least: int) -> int:
    best = run = 1 if xs else 0
    for i in range(1, len(xs)):
        run = run + 1 if xs[i] - xs[i - 1] >= least else 1
        best = max(best, run)
    return best


def last_one(people: int, step: int) -> int:
    circle, at = list(range(1, people + 1)), 0
    while len(circle) > 1:
        at = (at + step - 1) % len(circle)
        circle.pop(at)
    return circle[0]


def spread(text: str, width: int) -> list[str]:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = line + " " + word if line else word
    return [*lines, line] if line else lines


def _text(draw: Draw, letters: str, size: int) -> str:
    return "".join(draw.choice(letters) for _ in range(size))


def _many(make: Callable[[int], Any], sizes: tuple[int, ...] = (0, 1, 2, 3, 5, 8, 12, 20)) -> list[tuple[Any, ...]]:
    return [(make(size),) for size in sizes]


def _numbers(draw: Draw, low: int = -20, high: int = 60) -> list[tuple[Any, ...]]:
    return _many(lambda size: [draw.integer(low, high) for _ in range(size)])


def _intervals(draw: Draw) -> list[tuple[Any, ...]]:
    def make(size: int) -> list[list[int]]:
        starts = [draw.integer(0, 90) for _ in range(size)]
        return [[start, start + draw.integer(0, 9)] for start in starts]

    return _many(make)


def _grids(draw: Draw) -> list[tuple[Any, ...]]:
    return _many(
        lambda size: [_text(draw, "#...#", draw.integer(size, size) + 2) for _ in range(size)], (0, 1, 2, 3, 4, 5, 6, 7)
    )


# function: the words with {value} in them, the argument's name, how the value is drawn, how the inputs are
_FAMILIES: tuple[
    tuple[Callable[..., Any], str, str, Callable[[Draw], Any], Callable[[Draw], list[tuple[Any, ...]]]], ...
] = (
    (
        run_lengths,
        "takes a text and shortens it: each run of at least {value} equal characters becomes the character and the "
        "length of the run, shorter runs stay as they are",
        "text",
        lambda draw: draw.integer(2, 9),
        lambda draw: _many(lambda size: "".join(draw.choice("abx") * draw.integer(1, 11) for _ in range(size))),
    ),
    (
        merge_intervals,
        "takes a list of intervals [start, end] and merges those that overlap or have at most {value} between the end "
        "of one and the start of the next; returns the list of merged intervals [start, end], sorted by start",
        "intervals",
        lambda draw: draw.integer(0, 12),
        _intervals,
    ),
    (
        best_window,
        "takes a list of whole numbers and returns the largest sum of {value} neighbouring elements, or 0 if the list "
        "has fewer elements",
        "xs",
        lambda draw: draw.integer(2, 12),
        _numbers,
    ),
    (
        in_base,
        "takes a whole number >= 0 and returns it as text in base {value}, with the digits 0-9a-z",
        "number",
        lambda draw: draw.choice([b for b in range(2, 37) if b != 10]),
        lambda draw: [(n,) for n in (0, 1, 35, 36, *(draw.integer(2, 10**6) for _ in range(4)))],
    ),
    (
        ways_to_pay,
        "takes a whole number >= 0 and returns in how many ways it can be paid with coins of {value} (any number of "
        "each; the order does not count)",
        "amount",
        lambda draw: sorted(draw.sample(range(1, 16), draw.integer(2, 4))),
        lambda draw: [(n,) for n in (0, 1, 2, *(draw.integer(3, 90) for _ in range(5)))],
    ),
    (
        count_islands,
        'takes a list of equally long rows of "#" (land) and "." (water) and returns the number of islands; land that '
        "touches {value} belongs together",
        "grid",
        lambda draw: draw.chance(0.5),
        _grids,
    ),
    (
        shift_letters,
        "takes a text and replaces each letter a to z by the one {value} places further in the alphabet, going on with "
        "a after z; other characters stay as they are",
        "text",
        lambda draw: draw.integer(1, 25),
        lambda draw: _many(lambda size: _text(draw, "abcmnxyz ,.A", size * 2)),
    ),
    (
        longest_climb,
        "takes a list of whole numbers and returns the length of the longest run of neighbouring elements in which "
        "each one is at least {value} more than the one before it (0 for an empty list)",
        "xs",
        lambda draw: draw.integer(1, 40),
        lambda draw: _many(lambda size: [(draw.integer(-9, 30) + 20 * (i % 4)) for i in range(size)]),
    ),
    (
        last_one,
        "takes a number of people >= 1, who stand in a circle and are numbered from 1; counting begins with number 1, "
        "every {value}th person leaves, and counting goes on with the next one; returns the number of the last one",
        "people",
        lambda draw: draw.choice([4, 5, 6, 7, 8, 9, 10, *range(14, 21), *range(24, 31)]),
        lambda draw: [(n,) for n in (1, 2, 3, 5, *(draw.integer(6, 60) for _ in range(4)))],
    ),
    (
        spread,
        "takes a text and breaks it, between words, into lines of at most {value} characters with as many words as "
        "fit; words are separated by one space, a longer word has a line of its own; returns the list of lines",
        "text",
        lambda draw: draw.integer(5, 40),
        lambda draw: _many(lambda size: " ".join(_text(draw, "abcde", draw.integer(1, 9)) for _ in range(size))),
    ),
)


def algorithm(draw: Draw) -> Program:
    """One of the functions, with a value of its own."""
    function, words, argument, draw_value, draw_inputs = draw.choice(_FAMILIES)
    value = draw_value(draw)
    inputs = tuple(draw_inputs(draw))
    return Program(
        words.format(value=_said(value)), argument, _code(function, argument, value), _with(function, value), inputs
    )


def _with(function: Callable[..., Any], value: Any) -> Callable[..., Any]:
    return lambda argument: function(argument, value)


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "at a side or at a corner" if value else "at a side"
    if isinstance(value, list):
        return f"{', '.join(map(str, value[:-1]))} and {value[-1]}"
    return str(value)


def _code(function: Callable[..., Any], argument: str, value: Any) -> str:
    """The function as text, and the one that was asked for on top of it."""
    source = inspect.getsource(function).rstrip()
    return f"{source}\n\n\ndef {NAME}({argument}):\n    return {function.__name__}({argument}, {value!r})"
