"""Whether an answer is right: one class for each kind of answer.  Model text is hostile: none of it makes these raise.

What foreign text could hang is in modules of its own: `patterns.py` (regex), `symbolic.py` (math), `programs.py`
(program), `queries.py` (sql).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from toolstep.envs.rewards.rubric import RewardError
from toolstep.envs.tasks.answers import Number, is_exactly, is_near, last_number, normalised, numbers, states
from toolstep.envs.tasks.result_set import same_items, same_result, write_rows
from toolstep.envs.types import EpisodeRecord

_OPEN, _CLOSE = "<answer>", "</answer>"
_NOTHING = frozenset(("", "[]", "{}", "none", "nothing", "empty", "∅"))


class Verifier(ABC):
    """A reward by name: 1.0 where the episode's answer is right by `task.answer`, else 0.0.

    An object serves any number of envs and episodes; it is JSON-able by its name and options (see `make_reward`).
    """

    name: ClassVar[str]

    def check(self, expected: Any) -> None:  # noqa: B027  everything will do is the rule
        """ValueError where `expected` cannot be the answer of a task; the message says what was expected."""

    @abstractmethod
    def verify(self, answer: str, expected: Any) -> bool:
        """Whether `answer`, a model's text, is right.  Returns within a bounded time and does not raise on any text."""

    def write(self, expected: Any) -> str:
        """An answer that is right.  Raises ValueError where none can be told from `expected`."""
        return str(alternatives(expected)[0])

    def close(self) -> None:  # noqa: B027  nothing to free is the rule
        """Free what it holds (a process, say); it may be used again."""

    def __call__(self, record: EpisodeRecord) -> float:
        expected = record.task.answer
        try:
            self.check(expected)
        except ValueError as error:
            raise RewardError(f"reward {self.name!r}, task {record.task.id!r}: {error}") from error
        return float(self.verify(final_answer(record.answer), expected))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def final_answer(text: str) -> str:
    """What stands in the last `<answer>...</answer>`, or the whole text where there is none."""
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    return text[start + len(_OPEN) : end] if start >= 0 else text


class Stated(Verifier):
    """The answer ends in what is expected (`answers.states`): the rule where no reward is named."""

    name = "stated"

    def check(self, expected: Any) -> None:
        for one in alternatives(expected):
            if isinstance(one, float) and not math.isfinite(one):
                raise ValueError(f"expected a finite number, or text, found {one!r}")

    def verify(self, answer: str, expected: Any) -> bool:
        return any(states(answer, one) for one in alternatives(expected))


class Exact(Verifier):
    """The answer is the expected text (or one of a list), letter by letter; only the space around it is free."""

    name = "exact"

    def check(self, expected: Any) -> None:
        check_texts(expected)

    def verify(self, answer: str, expected: Any) -> bool:
        return answer.strip() in {str(one).strip() for one in alternatives(expected)}


class Text(Verifier):
    """As "exact", but for case, spacing, Unicode forms, and the quotes and punctuation around it."""

    name = "text"

    def check(self, expected: Any) -> None:
        check_texts(expected)

    def verify(self, answer: str, expected: Any) -> bool:
        return normalised(answer) in {normalised(str(one)) for one in alternatives(expected)}


class Numeric(Verifier):
    """The last number of the answer is the expected one: exactly, or within a tolerance.

    "5" is not found in "1532"; `1,234.50`, `3/4`, `50%` and a typographic minus are read (`answers.numbers`), "nan" and
    "inf" are no numbers.  Where no decimal is exact (2/3), a rounding to 4 or more decimals is right; a float is
    compared to nine digits.

    rel, abs: tolerances, relative to what is expected and absolute.  Expected: a number, text whose last number it is,
    a list of these (one of them will do), or {"value": ..., "rel": ..., "abs": ...}.
    """

    name = "numeric"

    def __init__(self, *, rel: float = 0.0, abs: float = 0.0) -> None:  # noqa: A002  as in math.isclose
        self._rel = _tolerance("rel", rel)
        self._abs = _tolerance("abs", abs)

    def check(self, expected: Any) -> None:
        for one in alternatives(expected):
            self._wanted(one)

    def verify(self, answer: str, expected: Any) -> bool:
        said = last_number(answer)
        return said is not None and any(self._equal(said, one) for one in alternatives(expected))

    def write(self, expected: Any) -> str:
        first = alternatives(expected)[0]
        return str(first["value"] if isinstance(first, Mapping) else first)

    def _equal(self, said: Number, expected: Any) -> bool:
        number, rel, absolute = self._wanted(expected)
        if rel or absolute:
            return any(is_near(said, value, rel=rel, abs_=absolute) for value in number.readings)
        return any(is_exactly(said, value) for value in number.readings)

    def _wanted(self, expected: Any) -> tuple[Number, Fraction, Fraction]:
        rel, absolute = self._rel, self._abs
        if isinstance(expected, Mapping):
            if unknown := sorted(expected.keys() - {"value", "rel", "abs"}):
                raise ValueError(f"'value', 'rel' and 'abs' are what it may have, found {unknown}")
            rel = _tolerance("rel", expected["rel"]) if "rel" in expected else rel
            absolute = _tolerance("abs", expected["abs"]) if "abs" in expected else absolute
            expected = expected.get("value")
        found = numbers(str(expected)) if isinstance(expected, int | float | str) else []
        if not found:
            raise ValueError(f"expected a finite number, or text that ends in one, found {expected!r:.80}")
        if isinstance(expected, float) and not rel and not absolute:
            rel = Fraction(1, 10**9)
        return found[-1], rel, absolute

    def __repr__(self) -> str:
        return f"Numeric(rel={float(self._rel):g}, abs={float(self._abs):g})"


class Set(Verifier):
    """The answer lists the expected items, all of them and no others, in any order; one named twice counts once.

    Lines, bullets, commas and a JSON list are read; items are compared as "text", numbers as numbers.
    """

    name = "set"

    def check(self, expected: Any) -> None:
        if not isinstance(expected, list | tuple) or not all(_is_cell(x) and x is not None for x in expected):
            raise ValueError(f"expected a list of texts and numbers, found {expected!r:.80}")

    def verify(self, answer: str, expected: Any) -> bool:
        if not expected:
            return normalised(answer) in _NOTHING
        return same_items(answer, expected)

    def write(self, expected: Any) -> str:
        return "\n".join(map(str, expected)) or "none"


class SQLResult(Verifier):
    """The answer is the result of a query: the expected rows, all of them and no others (`result_set.same_result`).

    ordered: their order counts.  Expected: a list of rows (lists), or {"rows": [...], "ordered": true}.
    """

    name = "sql_result"

    def __init__(self, *, ordered: bool = False) -> None:
        self._ordered = ordered

    def check(self, expected: Any) -> None:
        rows, ordered = self._wanted(expected)
        fits = isinstance(rows, list | tuple) and all(
            isinstance(r, list | tuple) and all(map(_is_cell, r)) for r in rows
        )
        if not fits or len({len(row) for row in rows}) > 1 or not isinstance(ordered, bool):
            raise ValueError(
                'expected rows of one length, [["Ann", 3], ["Ben", 5]], or {"rows": [...], "ordered": true}, '
                f"found {expected!r:.80}"
            )

    def verify(self, answer: str, expected: Any) -> bool:
        rows, ordered = self._wanted(expected)
        if not rows:
            return normalised(answer) in _NOTHING
        return same_result(answer, rows, ordered=ordered)

    def write(self, expected: Any) -> str:
        return write_rows(self._wanted(expected)[0]) or "none"

    def _wanted(self, expected: Any) -> tuple[Any, Any]:
        if isinstance(expected, Mapping):
            return expected.get("rows"), expected.get("ordered", self._ordered)
        return expected, self._ordered

    def __repr__(self) -> str:
        return f"SQLResult(ordered={self._ordered})"


def alternatives(expected: Any) -> Sequence[Any]:
    """The answers of which one will do: those of a list, else what is expected itself."""
    return expected if isinstance(expected, list | tuple) and expected else (expected,)


def check_texts(expected: Any) -> None:
    """ValueError unless it is a text or a number, or a list of these."""
    if not all(isinstance(one, str | int | float) for one in alternatives(expected)):
        raise ValueError(f"expected a text, or a list of texts of which one will do, found {expected!r:.80}")


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _tolerance(name: str, value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"'{name}' must be a finite number >= 0, found {value!r:.80}")
    return Fraction(str(value))
