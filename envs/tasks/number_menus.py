"""The menus of toolstep/Calculator-v0 and toolstep/UnitConvert-v0: which numbers of the question go into which call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolstep.envs.menu import Menu, Page, last_result
from toolstep.envs.tasks.conversation import call, result_of, results
from toolstep.envs.tools.units import UNITS
from toolstep.envs.types import EpisodeRecord, Turn

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:/\d+)?")
_EXPRESSION = re.compile(r"What is (.+)\?")
# The numbers of a story by their place in it, as the seven kinds of stories put them together.
_RULES = {
    "what is left of the money": "{4} - {0} * {1} - {2} * {3}",
    "a price with a discount": "{2} * {0} * (100 - {1}) / 100",
    "equal shares of a price": "({0} * {1} - {2}) * 3 / {3}",
    "filled, then drained": "({0} + {1} * {2}) * (1 - {3})",
    "a square without its beds": "{0}^2 - {1} * {2} * {3}",
    "doubled every hour": "{0} * 2^{1} - {2}",
    "an average speed": "({0} * {1} + {2} * {3}) / ({0} + {2})",
    "a sum": "{0} + {1}",
    "a difference": "{0} - {1}",
    "a product": "{0} * {1}",
}
_WORDS = ("pays", "off", "boxes", "tank", "garden", "doubles", "train", "What is")
_MOST = 6  # numbers that are counted


class CalculatorMenu(Menu):
    """Calculate the expression in the question, or its numbers by a rule; answer a number.

    A story has to be told from another by its words; which rule belongs to it has to be learned.
    """

    labels = (
        "calculate the expression in the question",
        *(f"calculate {rule}" for rule in _RULES),
        "answer the last result",
        "answer the first number in the question",
        "answer the last number in the question",
    )
    features = (
        *(f"the question says {word!r}" for word in _WORDS),
        *(f"{n} numbers in the question" for n in range(_MOST + 1)),
        "there is a result",
        "turns",
    )

    def page(self, record: EpisodeRecord) -> Page:
        asked = record.task.messages[-1].content
        found = _NUMBER.findall(asked)
        expression = _EXPRESSION.fullmatch(asked)
        result = last_result(record)

        def calculate(text: str | None) -> Turn | None:
            return None if text is None else call(record, ("calculator", {"expression": text}))

        return Page(
            [
                calculate(expression[1] if expression else None),
                *(calculate(_filled(form, found)) for form in _RULES.values()),
                _answer(result),
                _answer(found[0] if found else None),
                _answer(found[-1] if found else None),
            ],
            [
                *(float(word in asked) for word in _WORDS),
                *(float(min(len(found), _MOST) == n) for n in range(_MOST + 1)),
                float(result is not None),
                min(record.turns / 8, 1.0),
            ],
        )


_MEASURE = re.compile(rf"(\d+(?:\.\d+)?) ({'|'.join(sorted(UNITS, key=len, reverse=True))})\b")
_TARGET = re.compile(rf"(?:to|in) ({'|'.join(sorted(UNITS, key=len, reverse=True))})[.?]$")
_PARTS = 3  # measurements that a question has at most


class UnitConvertMenu(Menu):
    """Convert a measurement of the question, or add results up; answer a result."""

    labels = (
        *(f"convert measurement {i + 1} to the unit that is asked for" for i in range(_PARTS)),
        "convert measurement 1 the other way round",
        "add all conversions up",
        "add the numbers in the question up",
        "answer the last result",
        "answer the first number in the question",
    )
    features = (
        *(f"{i + 1} measurements in the question" for i in range(_PARTS)),
        *(f"measurement {i + 1} is converted" for i in range(_PARTS)),
        "a sum was calculated",
        "there is a result",
        "turns",
    )

    def page(self, record: EpisodeRecord) -> Page:
        asked = record.task.messages[-1].content
        match = _TARGET.search(asked)
        target = match[1] if match else None
        parts = [(float(value), unit) for value, unit in _MEASURE.findall(asked)][:_PARTS]
        wanted = [{"value": value, "from_unit": unit, "to_unit": target} for value, unit in parts]
        shown = [result_of(record, "convert_units", w) for w in wanted]
        summed = any(made.name == "calculator" for made, _ in results(record))
        result = last_result(record)

        def convert(arguments: dict[str, object] | None) -> Turn | None:
            return None if arguments is None or target is None else call(record, ("convert_units", arguments))

        def add(numbers: Sequence[str]) -> Turn | None:
            # The calculator is on offer where there is something to add up.
            return call(record, ("calculator", {"expression": " + ".join(numbers)})) if len(numbers) > 1 else None

        back = {"value": parts[0][0], "from_unit": target, "to_unit": parts[0][1]} if parts else None
        return Page(
            [
                *(convert(w) for w in (*wanted, *[None] * (_PARTS - len(wanted)))),
                convert(back),
                add([text.split(" ")[0] for text in shown if text is not None]),
                add([f"{value:g}" for value, _ in parts]),
                _answer(result),
                _answer(f"{parts[0][0]:g}" if parts else None),
            ],
            [
                *(float(len(parts) == i + 1) for i in range(_PARTS)),
                *(float(i < len(shown) and shown[i] is not None) for i in range(_PARTS)),
                float(summed),
                float(result is not None),
                min(record.turns / 8, 1.0),
            ],
        )


def _answer(text: str | None) -> Turn | None:
    """The exact part of a result: "17/3 (about 5.667)" is 17/3, "4 miles" is 4."""
    return None if text is None else Turn(text.split(" ")[0])


def _filled(form: str, numbers: Sequence[str]) -> str | None:
    """The rule with these numbers in their places; None where it has more places than there are numbers."""
    places = {int(place) for place in re.findall(r"\{(\d)\}", form)}
    return form.format(*numbers) if max(places) < len(numbers) else None
