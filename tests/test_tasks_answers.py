"""Reading numbers, times and phrases out of an answer."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.envs.tasks.answers import (
    exact_value,
    is_exactly,
    is_near,
    last_number,
    mentions,
    numbers,
    split_times,
    states,
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("470", ["470"]),
        ("The answer is 470.", ["470"]),
        ("874 - 404 = 470", ["874", "404", "470"]),
        ("874-404=-470", ["874", "404", "-470"]),
        ("It is −470", ["-470"]),
        ("(5)-3", ["5", "3"]),
        ("$1,234.50!", ["1234.5"]),
        ("-1,234,567", ["-1234567"]),
        ("1,2345", ["1", "2345"]),
        ("1,2,3", ["1", "2", "3"]),
        ("3/4", ["3/4"]),
        ("-3 / 4", ["-3/4"]),
        ("1 3/4", ["7/4"]),
        ("-1 3/4", ["-7/4"]),
        ("17/3 (about 5.66667)", ["17/3", "5.66667"]),
        (r"\boxed{470}", ["470"]),
        (r"\frac{3}{4}", ["3/4"]),
        ("**470**", ["470"]),
        ("__470__", ["470"]),
        ("1e3 and 2.5E-1", ["1000", "0.25"]),
        (".5", ["0.5"]),
        ("5.", ["5"]),
        ("12.4km", ["12.4"]),
        ("212°F", ["212"]),
        ("５０．５", ["50.5"]),
        ("m^2", []),
        ("5 m^2", ["5"]),
        ("H2O", []),
        ("x15", []),
        ("1.2.3", []),
        ("0x1F", []),
        ("1e5000", []),
        ("5/0", []),
        ("call00001", []),
        ("12٣", []),
        ("1.٣", []),
        ("no number", []),
        ("", []),
    ],
)
def test_numbers_are_read_as_they_are_meant(text: str, values: list[str]) -> None:
    assert [n.value for n in numbers(text)] == [Fraction(v) for v in values]


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.text(alphabet="abc .:;!?$€=()\n", max_size=20))
def test_number_behind_any_words_is_the_last_one(n: int, words: str) -> None:
    for written in (str(n), f"{n:,}", f"{n}.0", str(n).replace("-", "−"), f"{n}."):
        number = last_number(f"{words} {written}")
        assert number is not None
        assert number.value == n


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(100, 10**9))
def test_number_is_not_found_inside_a_longer_one(short: int, long: int) -> None:
    assert not states(f"The result is {long}", short)


@settings(deadline=None)
@given(st.text())
def test_no_text_raises(text: str) -> None:
    numbers(text)
    last_number(text)
    split_times(text)
    mentions(text, text)
    states(text, text)
    exact_value(text)


@pytest.mark.parametrize("piece", ["1", "1,", "1.", "1/", "1 ", "1:", "a1", "-", "1e", "_", "1%", r"\frac{1}{", "٣"])
def test_reading_is_linear(piece: str) -> None:
    text = piece * (100_000 // len(piece))
    start = time.process_time()  # a busy machine makes no regular expression quadratic
    numbers(text)
    split_times(text)
    states(text, "12")
    assert time.process_time() - start < 3.0


def test_percent_is_read_both_ways() -> None:
    number = last_number("so 50%")
    assert number is not None
    assert is_exactly(number, Fraction(50))
    assert is_exactly(number, Fraction(1, 2))
    assert not is_exactly(number, Fraction(5))
    assert is_near(number, Fraction(501, 1000), rel=Fraction(1, 100))
    assert is_near(number, Fraction(501, 10), rel=Fraction(1, 100))


@pytest.mark.parametrize(
    ("said", "expected", "right"),
    [
        ("12.75", "51/4", True),
        ("51/4", "51/4", True),
        ("12.7500", "51/4", True),
        ("12.751", "51/4", False),
        ("12.8", "51/4", False),
        ("0.1235", "0.12345", False),  # which has an end: nothing was to be rounded
        ("17/3", "17/3", True),
        ("5 2/3", "17/3", True),
        ("5.6667", "17/3", True),
        ("5.66666667", "17/3", True),
        ("5.667", "17/3", False),
        ("5.6666", "17/3", False),
        ("-5.6667", "17/3", False),
    ],
)
def test_exactness(said: str, expected: str, right: bool) -> None:
    number = last_number(said)
    assert number is not None
    assert is_exactly(number, Fraction(expected)) is right


def test_nearness_is_relative_or_absolute() -> None:
    number = last_number("100.04")
    assert number is not None
    assert is_near(number, Fraction(100), rel=Fraction(1, 1000))
    assert not is_near(number, Fraction(100), rel=Fraction(1, 10_000))
    assert is_near(number, Fraction(100), rel=Fraction(0), abs_=Fraction(5, 100))
    below = last_number("-100.04")
    assert below is not None
    assert is_near(below, Fraction(-100), rel=Fraction(1, 1000))
    assert not is_near(below, Fraction(100), rel=Fraction(1))
    assert not is_near(number, Fraction(99), rel=Fraction(1, 100), abs_=Fraction(1, 10))  # not their sum


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("14:05", ["14:05"]),
        ("It's 2:05 PM in Rome.", ["14:05"]),
        ("2:05pm", ["14:05"]),
        ("12:30 a.m. and 12:30 p.m.", ["00:30", "12:30"]),
        ("2025-03-01 14:05:59", ["14:05"]),
        ("25:00", []),
        ("10:75", []),
        ("13:00 PM", []),
        ("1:2", []),
        ("10:20:30:40", []),
    ],
)
def test_times_of_day(text: str, times: list[str]) -> None:
    assert split_times(text)[0] == times


def test_time_leaves_no_numbers_behind() -> None:
    found, rest = split_times("at 14:05 it is 21 degrees")
    assert found == ["14:05"]
    assert [n.value for n in numbers(rest)] == [21]


@pytest.mark.parametrize(
    ("text", "phrase", "count"),
    [
        ("It is Merci!", "merci", 1),
        ("merci, merci", "merci", 2),
        ("mercies", "merci", 0),
        ("s’il  vous plaît", "s'il vous plaît", 1),
        ("água", "água", 1),
        ("désagua", "agua", 0),
        ("我说你好吗", "你好", 1),
        ("anything", "", 0),
    ],
)
def test_phrases_are_whole_words(text: str, phrase: str, count: int) -> None:
    assert mentions(text, phrase) == count


@pytest.mark.parametrize(
    ("text", "expected", "right"),
    [
        ("The capital is Paris.", "Paris", True),
        ('**"paris"**', "Paris", True),
        ("Paris is not Rome", "Paris", False),
        ("Comparis", "Paris", False),
        ("= 470", 470, True),
        ("= 470", "470", True),
        ("1532", 5, False),
        ("1532", "5", False),
        ("0.1", 0.1, True),
        ("0.2", 0.1, False),
        ("0.100000001", 0.1, False),
        ("x", float("nan"), False),
        ("1", float("inf"), False),
        ("yes", True, False),
        ("True", True, True),
        ("50%", "50%", True),
        ("", "", True),
        ("anything", "", False),
    ],
)
def test_default_rule_for_answers(text: str, expected: object, right: bool) -> None:
    assert states(text, expected) is right
