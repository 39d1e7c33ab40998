"""Answers as result sets: what counts as the same rows, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.envs.tasks.result_set import Rows, same_result, write_rows

ONE_NUMBER: Rows = [(1462,)]
ONE_TEXT: Rows = [("Ada Novak",)]
MEAN: Rows = [(753.83,)]
NAMES: Rows = [("Ada Novak",), ("Bo Weber",), ("Cy Quinn",)]
PAIRS: Rows = [("Ada Novak", 3499), ("Bo Weber", 2148)]


@pytest.mark.parametrize(
    ("text", "expected", "ordered", "right"),
    [
        ("1462", ONE_NUMBER, False, True),
        ("Ada has spent 1,462 euros.", ONE_NUMBER, False, True),
        ("1462.0", ONE_NUMBER, False, True),
        ("1463", ONE_NUMBER, False, False),
        ("1462 of 2000", ONE_NUMBER, False, False),
        ("", ONE_NUMBER, False, False),
        ("753.83", MEAN, False, True),
        ("about 753.8300001", MEAN, False, True),
        ("754", MEAN, False, False),
        ("Ada Novak", ONE_TEXT, False, True),
        ("The customer is ada novak.", ONE_TEXT, False, True),
        ("Ada Novak and Bo Weber", ONE_TEXT, False, False),
        ("Nada Novak", ONE_TEXT, False, False),
        ("Ada Novak\nBo Weber\nCy Quinn", NAMES, False, True),
        ("Cy Quinn\nAda Novak\nBo Weber", NAMES, False, True),
        ("Cy Quinn\nAda Novak\nBo Weber", NAMES, True, False),
        ("- Ada Novak\n- Bo Weber\n- Cy Quinn", NAMES, True, True),
        ("1. Ada Novak\n2. Bo Weber\n3. Cy Quinn", NAMES, True, True),
        ("| Ada Novak |\n| Bo Weber |\n| Cy Quinn |", NAMES, False, True),
        ("name\n---\nAda Novak\nBo Weber\nCy Quinn", NAMES, False, True),
        ("They are:\nAda Novak\nBo Weber\nCy Quinn", NAMES, False, True),
        ("They are: \n\n```\nAda Novak\nBo Weber\nCy Quinn\n```", NAMES, False, True),
        ("Ada Novak, Bo Weber, Cy Quinn", NAMES, False, True),
        ("Ada Novak, Bo Weber and Cy Quinn.", NAMES, False, True),
        ('["Ada Novak", "Bo Weber", "Cy Quinn"]', NAMES, False, True),
        ('[["Ada Novak"], ["Bo Weber"], ["Cy Quinn"]]', NAMES, False, True),
        ("Ada Novak\nBo Weber", NAMES, False, False),
        ("Ada Novak\nBo Weber\nCy Quinn\nDee Rossi", NAMES, False, False),
        ("Ada Novak\nAda Novak\nCy Quinn", NAMES, False, False),
        ("Ada Novak | 3499\nBo Weber | 2148", PAIRS, True, True),
        ("Bo Weber | 2148\nAda Novak | 3499", PAIRS, True, False),
        ("Bo Weber | 2148\nAda Novak | 3499", PAIRS, False, True),
        ("Ada Novak\t3499\nBo Weber\t2148", PAIRS, True, True),
        ("Ada Novak, 3499\nBo Weber, 2148", PAIRS, True, True),
        ("| name | total |\n|---|---:|\n| Ada Novak | 3,499 |\n| Bo Weber | €2148.00 |", PAIRS, True, True),
        ('[["Ada Novak", 3499], ["Bo Weber", 2148]]', PAIRS, True, True),
        ("Ada Novak | 2148\nBo Weber | 3499", PAIRS, False, False),
        ("Ada Novak | 3499 | 1\nBo Weber | 2148 | 2", PAIRS, True, False),
        ("3499\n2148", PAIRS, True, False),
        ("Ada Novak | lots\nBo Weber | 2148", PAIRS, True, False),
        ("| | 1 |\n| b | |", [(None, 1), ("b", None)], True, True),
        ("| | 1\nb |", [(None, 1), ("b", None)], True, True),
        ("NULL | 1\nb | None", [(None, 1), ("b", None)], True, True),
        ("a | 1\nb | NULL", [(None, 1), ("b", None)], True, False),
        ("null\n2", [(None,), (2,)], True, True),
    ],
)
def test_rows_are_read_as_people_write_them_and_nothing_else_is_right(
    text: str, expected: Rows, ordered: bool, right: bool
) -> None:
    assert same_result(text, expected, ordered=ordered) is right


cells = st.one_of(
    st.none(),
    st.integers(-(10**6), 10**6),
    st.text(alphabet="abcdefgh xyz", min_size=1, max_size=12).map(lambda t: "k" + t.strip()),
)


@given(st.integers(1, 3).flatmap(lambda w: st.lists(st.tuples(*[cells] * w), min_size=1, max_size=6)))
@settings(max_examples=200, deadline=None)
def test_what_is_written_is_right(rows: Rows) -> None:
    assert same_result(write_rows(rows), rows, ordered=True)
    assert same_result(write_rows(rows), rows, ordered=False)


@given(st.text(max_size=400), st.sampled_from([ONE_NUMBER, ONE_TEXT, NAMES, PAIRS]), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_text_is_judged(text: str, expected: Rows, ordered: bool) -> None:
    assert same_result(text, expected, ordered=ordered) in (True, False)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "|" * 100_000, "," * 100_000, "\n" * 100_000, "1" * 100_000, " and " * 20_000, "a\n" * 50_000],
)
def test_hostile_text_is_wrong(text: str) -> None:
    for expected in (ONE_NUMBER, ONE_TEXT, NAMES, PAIRS):
        assert not same_result(text, expected, ordered=False)
