"""Reading an answer out of text: numbers as numbers, phrases as whole words.  Nothing here raises."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

# Full-width digits and signs (as Chinese and Japanese text has them), and dashes written for a minus.
_PLAIN = str.maketrans("０１２３４５６７８９．，％／＋－−–﹣⁄", "0123456789.,%/+----/", "")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\{\s*(-?[0-9]{1,400})\s*\}\{\s*(-?[0-9]{1,400})\s*\}")
_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})++(?![0-9])|[0-9]++)"
_NUMBER = re.compile(
    r"(?<![^\W_])(?<![\^.])"  # not inside a word (H2O), an exponent (m^2) or behind a point
    r"(?P<sign>(?<![)\]])[-+])?"  # "10 - 5" and "(1)-5" have a minus operator, not a sign
    rf"(?:(?P<whole>[0-9]++)[ ](?=[0-9]++/))?(?P<number>{_INTEGER}(?:\.[0-9]++)?|\.[0-9]++)"
    r"(?:[eE](?P<exponent>[-+]?[0-9]{1,3}+)(?![0-9]))?"
    r"(?:[ ]?/[ ]?(?P<denominator>[0-9]++)(?![.,]?[0-9]))?"
    r"(?!\w*\d)(?!\.\d)"  # 0x1F, 1e5000 and 1.2.3 are no numbers, nor are ASCII digits before others
    r"(?P<percent>[ ]?(?:%|\\%))?"
)
_LONGEST = 1_000  # characters of one number; Python itself refuses to read more than 4,300 digits


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it stands in a text: its exact value, and how many decimals it was written with."""

    value: Fraction
    decimals: int = 0
    percent: bool = False

    @property
    def readings(self) -> tuple[Fraction, ...]:
        """What it may mean: "50%" is said of 50 and of 1/2."""
        return (self.value, self.value / 100) if self.percent else (self.value,)


def numbers(text: str) -> list[Number]:
    """Every number of `text`, in order.

    Read are signs (ASCII or typographic), thousands separators (`1,234`), decimals, exponents (`1e3`), fractions
    (`3/4`, `1 3/4`, `\\frac{3}{4}`) and percent signs.  A number is never a part of a longer one.
    """
    return [n for n in map(_number, _matches(text)) if n is not None]


def last_number(text: str) -> Number | None:
    """The last number of `text`: where an answer states its result.  None if there is none to read."""
    last = deque(_matches(text), maxlen=1)
    return _number(last[0]) if last else None


def _matches(text: str) -> Iterator[re.Match[str]]:
    return _NUMBER.finditer(_LATEX_FRACTION.sub(r" \1/\2 ", text.translate(_PLAIN)))


def _number(match: re.Match[str]) -> Number | None:
    if match.end() - match.start() > _LONGEST:
        return None
    digits = match["number"].replace(",", "")
    value = Fraction(digits if digits[0] != "." else "0" + digits)
    if match["exponent"]:
        value *= Fraction(10) ** int(match["exponent"])
    if match["denominator"]:
        denominator = int(match["denominator"])
        if denominator == 0:
            return None
        value /= denominator
    if match["whole"]:
        value += int(match["whole"])
    if match["sign"] == "-":
        value = -value
    decimals = len(digits.partition(".")[2]) - int(match["exponent"] or 0)
    return Number(value, max(0, decimals), bool(match["percent"]))


_TIME = re.compile(r"(?<![\w:])([0-9]{1,2}):([0-9]{2})(?::[0-9]{2})?(?![\w:])(?:\s?([AaPp])\.?[Mm]\b\.?)?")
_GLUED_TIME = re.compile(r"(?<=[0-9]{2})(?=[AaPp]\.?[Mm]\b)")


def split_times(text: str) -> tuple[list[str], str]:
    """The times of day in `text` as 24-hour "HH:MM", in order, and the text without them.

    "14:05", "14:05:30", "2:05 PM" and "2:05pm" are read; what is no time of day ("25:00", "13:00 PM") is left alone.
    """
    found: list[str] = []

    def take(match: re.Match[str]) -> str:
        hour, minute, half = int(match[1]), int(match[2]), (match[3] or "").lower()
        if minute > 59 or hour > 23 or (half and not 1 <= hour <= 12):
            return match[0]
        if half:
            hour = hour % 12 + (12 if half == "p" else 0)
        found.append(f"{hour:02d}:{minute:02d}")
        return " "

    rest = _TIME.sub(take, _GLUED_TIME.sub(" ", text))
    return found, rest


def exact_value(text: str) -> Fraction | None:
    """The value of a text that is one number and nothing else, or None."""
    stripped = text.translate(_PLAIN).strip()
    match = _NUMBER.fullmatch(stripped)
    number = _number(match) if match else None
    return number.readings[-1] if number else None


def terminates(value: Fraction) -> bool:
    """True where `value` can be written as a decimal with an end."""
    rest = value.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    return rest == 1


def is_exactly(number: Number, expected: Fraction) -> bool:
    """True where `number` is `expected`, or rounds it to 4 or more decimals where no decimal is exact."""
    if expected in number.readings:
        return True
    if terminates(expected) or number.decimals < 4:
        return False
    return bool(abs(number.value - expected) * 10**number.decimals <= Fraction(1, 2))


def is_near(number: Number, expected: Fraction, *, rel: Fraction, abs_: Fraction = Fraction(0)) -> bool:
    """True where a reading of `number` is within `rel` of `expected`, relatively, or within `abs_`."""
    return any(abs(v - expected) <= max(abs_, rel * abs(expected)) for v in number.readings)


def normalised(text: str) -> str:
    """`text` for comparison: NFKC, case folded, single spaces, no quotes or punctuation around it."""
    return _folded(text).strip(" .!?*_`\"'“”")


def _folded(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold().translate(_QUOTES)
    return " ".join(folded.split())


_QUOTES = str.maketrans("‘’", "''")


def mentions(text: str, phrase: str) -> int:
    """How often `phrase` stands in `text` as whole words, case and spacing aside."""
    wanted = normalised(phrase)
    if not wanted:
        return 0
    words = _folded(text)
    # Chinese and Japanese put no spaces between words.
    left = r"(?<!\w)" if wanted[0].isalnum() and wanted[0] < "\u2e80" else ""
    right = r"(?!\w)" if wanted[-1].isalnum() and wanted[-1] < "\u2e80" else ""
    return len(re.findall(left + re.escape(wanted) + right, words))


def tells(text: str, expected: str, rivals: Sequence[str]) -> bool:
    """True where `text` gives `expected`, a whole number or one of a closed list of words.

    A number must be the last one.  A word must stand in the text, and none of its `rivals`.
    """
    if expected.isdigit():
        number = last_number(text)
        return number is not None and is_exactly(number, Fraction(expected))
    return mentions(text, expected) > 0 and not any(mentions(text, w) for w in rivals if w != expected)


def states(text: str, expected: object) -> bool:
    """True where `text` ends in `expected`: its last number if that is a number, else its last words.

    The rule for answers that came without a rule: "The capital is Paris." states "Paris", "470" and "= 470" state 470;
    "1532" does not state 5.  Floats are compared to nine digits.
    """
    if isinstance(expected, bool) or expected is None:
        return normalised(text) == normalised(str(expected))
    if isinstance(expected, (int, Fraction)):
        value: Fraction | None = Fraction(expected)
    elif isinstance(expected, float):
        number = last_number(text)
        try:
            return number is not None and is_near(number, Fraction(expected), rel=Fraction(1, 10**9))
        except (ValueError, OverflowError):  # nan, inf
            return False
    else:
        value = exact_value(str(expected))
    if value is not None:
        number = last_number(text)
        return number is not None and is_exactly(number, value)
    said, wanted = normalised(text), normalised(str(expected))
    if not wanted or not said.endswith(wanted):
        return said == wanted
    before = said[: -len(wanted)][-1:]
    return not (before.isalnum() and wanted[0].isalnum())
