"""Small programs made of steps over a list of numbers or a text: what a step says, how it is coded, what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from toolstep.envs.tasks.draw import Draw


@dataclass(frozen=True, slots=True)
class Step:
    """One step: words for it, a line of code that changes the variable or returns something, and the same to call."""

    words: str
    code: str
    apply: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Program:
    """What a function has to do, a function that does it, and inputs to try it with.

    run takes the arguments of one input.
    """

    words: str
    argument: str
    code: str
    run: Callable[..., Any]
    inputs: tuple[tuple[Any, ...], ...]


NAME = "solve"


def numbers_program(draw: Draw, steps: int) -> Program:
    """A program over a list of whole numbers: `steps` changes, then what is returned."""
    chosen = [_number_step(draw) for _ in range(steps)]
    end = _NUMBER_ENDS[draw.integer(0, len(_NUMBER_ENDS) - 1)](draw)
    inputs = tuple(([draw.integer(-40, 99) for _ in range(size)],) for size in (0, 1, 2, 5, 7, 9, 12, 20))
    return _program("xs", "a list of whole numbers", [*chosen, end], inputs)


def text_program(draw: Draw, steps: int) -> Program:
    """A program over the words of a text: `steps` changes, then what is returned."""
    chosen = [_word_step(draw) for _ in range(steps)]
    end = _WORD_ENDS[draw.integer(0, len(_WORD_ENDS) - 1)](draw)
    split = Step("split it into words (at spaces)", "words = text.split()", lambda text: text.split())
    inputs = tuple((_sentence(draw, size),) for size in (0, 1, 2, 4, 6, 8, 10, 14))
    return _program("text", "a text of small letters and spaces", [split, *chosen, end], inputs)


def _program(argument: str, kind: str, steps: Sequence[Step], inputs: tuple[tuple[Any, ...], ...]) -> Program:
    words = f"takes {kind} and does this: {'; then '.join(step.words for step in steps)}"
    code = "\n".join([f"def {NAME}({argument}):", *(f"    {step.code}" for step in steps)])

    def run(value: Any) -> Any:
        for step in steps:
            value = step.apply(value)
        return value

    return Program(words, argument, code, run, inputs)


# -------------------------------------------------------------------------------------------------------------- numbers
def _number_step(draw: Draw) -> Step:
    return _NUMBER_STEPS[draw.integer(0, len(_NUMBER_STEPS) - 1)](draw)


def _divisible(draw: Draw) -> Step:
    k = draw.integer(2, 6)
    return Step(
        f"keep only those divisible by {k}",
        f"xs = [x for x in xs if x % {k} == 0]",
        lambda xs: [x for x in xs if x % k == 0],
    )


def _greater(draw: Draw) -> Step:
    k = draw.integer(-10, 40)
    return Step(
        f"keep only those greater than {k}", f"xs = [x for x in xs if x > {k}]", lambda xs: [x for x in xs if x > k]
    )


def _times(draw: Draw) -> Step:
    k = draw.integer(2, 9)
    return Step(f"multiply each by {k}", f"xs = [x * {k} for x in xs]", lambda xs: [x * k for x in xs])


def _plus(draw: Draw) -> Step:
    k = draw.integer(2, 60)
    return Step(f"add {k} to each", f"xs = [x + {k} for x in xs]", lambda xs: [x + k for x in xs])


def _square(draw: Draw) -> Step:
    return Step("square each", "xs = [x * x for x in xs]", lambda xs: [x * x for x in xs])


def _absolute(draw: Draw) -> Step:
    k = draw.integer(3, 30)
    return Step(
        f"replace each by its distance from {k}",
        f"xs = [abs(x - {k}) for x in xs]",
        lambda xs: [abs(x - k) for x in xs],
    )


def _distinct(draw: Draw) -> Step:
    return Step("drop those that occurred before", "xs = list(dict.fromkeys(xs))", lambda xs: list(dict.fromkeys(xs)))


def _every(draw: Draw) -> Step:
    k = draw.integer(2, 4)
    said = {2: "second", 3: "third", 4: "fourth"}[k]
    return Step(f"keep only every {said} one, beginning with the first", f"xs = xs[::{k}]", lambda xs: xs[::k])


def _without_first(draw: Draw) -> Step:
    k = draw.integer(1, 4)
    return Step(f"drop the first {k}", f"xs = xs[{k}:]", lambda xs: xs[k:])


def _differences(draw: Draw) -> Step:
    return Step(
        "replace them by the differences of neighbours (the later one minus the earlier one)",
        "xs = [b - a for a, b in zip(xs, xs[1:])]",
        lambda xs: [b - a for a, b in pairwise(xs)],
    )


_NUMBER_STEPS: tuple[Callable[[Draw], Step], ...] = (
    _divisible, _greater, _times, _plus, _square, _absolute, _distinct, _every, _without_first, _differences,
)  # fmt: skip
_NUMBER_ENDS: tuple[Callable[[Draw], Step], ...] = (
    lambda draw: Step("return their sum", "return sum(xs)", sum),
    lambda draw: Step("return how many are left", "return len(xs)", len),
    lambda draw: Step(
        "return the largest, or 0 if none is left", "return max(xs) if xs else 0", lambda xs: max(xs) if xs else 0
    ),
    lambda draw: Step(
        "return the smallest, or 0 if none is left", "return min(xs) if xs else 0", lambda xs: min(xs) if xs else 0
    ),
    lambda draw: Step(
        "return them, the largest first", "return sorted(xs, reverse=True)", lambda xs: sorted(xs, reverse=True)
    ),
    lambda draw: Step("return them in reverse order", "return xs[::-1]", lambda xs: xs[::-1]),
)


# ---------------------------------------------------------------------------------------------------------------- words
_SYLLABLES = ("ba", "ne", "ro", "ti", "mu", "la", "so", "ke", "vi", "du", "a", "e", "o", "st", "r")


def _sentence(draw: Draw, size: int) -> str:
    vocabulary = [
        "".join(draw.choice(_SYLLABLES) for _ in range(draw.integer(1, 4))) for _ in range(max(1, size * 2 // 3))
    ]
    return " ".join(draw.choice(vocabulary) for _ in range(size))


def _word_step(draw: Draw) -> Step:
    return _WORD_STEPS[draw.integer(0, len(_WORD_STEPS) - 1)](draw)


def _longer(draw: Draw) -> Step:
    k = draw.integer(2, 5)
    return Step(
        f"keep only words of more than {k} letters",
        f"words = [w for w in words if len(w) > {k}]",
        lambda words: [w for w in words if len(w) > k],
    )


def _with_letter(draw: Draw) -> Step:
    letter = draw.choice("aeorstmlk")
    return Step(
        f'keep only words with the letter "{letter}"',
        f'words = [w for w in words if "{letter}" in w]',
        lambda words: [w for w in words if letter in w],
    )


def _replace_letter(draw: Draw) -> Step:
    a, b = draw.sample("aeioubdklmnrst", 2)
    return Step(
        f'replace each "{a}" by "{b}"',
        f'words = [w.replace("{a}", "{b}") for w in words]',
        lambda words: [w.replace(a, b) for w in words],
    )


def _reversed_words(draw: Draw) -> Step:
    return Step("write each word backwards", "words = [w[::-1] for w in words]", lambda words: [w[::-1] for w in words])


def _prefixes(draw: Draw) -> Step:
    k = draw.integer(2, 5)
    return Step(
        f"cut each word after {k} letters", f"words = [w[:{k}] for w in words]", lambda words: [w[:k] for w in words]
    )


def _doubled(draw: Draw) -> Step:
    return Step(
        "repeat the first letter of each word in front of it",
        "words = [w[:1] + w for w in words]",
        lambda words: [w[:1] + w for w in words],
    )


_WORD_STEPS: tuple[Callable[[Draw], Step], ...] = (
    _longer, _with_letter, _replace_letter, _reversed_words, _prefixes, _doubled,
)  # fmt: skip
_WORD_ENDS: tuple[Callable[[Draw], Step], ...] = (
    lambda draw: Step('return the words joined by "-"', 'return "-".join(words)', "-".join),
    lambda draw: Step(
        "return how many different words are left", "return len(set(words))", lambda words: len(set(words))
    ),
    lambda draw: Step(
        "return them in alphabetical order, each once", "return sorted(set(words))", lambda words: sorted(set(words))
    ),
    lambda draw: Step(
        "return a dict that tells how often each of them occurs",
        "return {w: words.count(w) for w in words}",
        lambda words: {w: words.count(w) for w in words},
    ),
    lambda draw: Step(
        "return the longest, the first of several, or an empty text if none is left",
        'return max(words, key=len) if words else ""',
        lambda words: max(words, key=len) if words else "",
    ),
)
