"""What a tool returned becomes text that a model can read."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from toolstep.envs.tools import NotJSONError, error_text, limit_result, to_text
from toolstep.envs.tools.result import to_result
from toolstep.envs.types import CallStatus, ToolResult


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    YES = "yes"


class Point(BaseModel):
    x: int


@dataclasses.dataclass
class Box:
    width: int
    inner: Point


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        ("", ""),
        ({}, "{}"),
        ([], "[]"),
        (None, "null"),
        (False, "false"),
        ("as it is", "as it is"),
        ({"a": "é 你好"}, '{"a": "é 你好"}'),
        ((1, 2), "[1, 2]"),
        ({3, 1, 2}, "[1, 2, 3]"),
        (Colour.RED, '"red"'),
        (Word.YES, "yes"),
        ({"d": datetime.date(2024, 2, 29)}, '{"d": "2024-02-29"}'),
        (Box(1, Point(x=2)), '{"width": 1, "inner": {"x": 2}}'),
        (np.float32(0.5), "0.5"),
        (np.arange(3), "[0, 1, 2]"),
        ({1: "a"}, '{"1": "a"}'),
    ],
)
def test_values_are_text_and_falsy_ones_are_values(value: Any, text: str) -> None:
    assert to_text(value) == text


def circle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def tower() -> list[Any]:
    items: list[Any] = []
    for _ in range(100_000):
        items = [items]
    return items


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "builtins.object"),
        ({"a": [object()]}, "builtins.object"),
        (decimal.Decimal(1), "decimal.Decimal"),
        (b"bytes", "builtins.bytes"),
        (1 + 2j, "builtins.complex"),
        (float("nan"), "not finite"),
        ({"a": [float("inf")]}, "not finite"),
        (np.float64("nan"), "not finite"),
        ({(1, 2): 3}, "key"),
        (circle(), "contains itself"),
        (tower(), "nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_json_cannot_carry_is_an_error_without_a_repr(value: Any, words: str) -> None:
    with pytest.raises(NotJSONError, match=words) as caught:
        to_text(value)
    assert " at 0x" not in str(caught.value)
    result = to_result(value)
    assert result.error is CallStatus.TOOL_ERROR
    assert words in json.loads(result.content)["message"]


def test_a_tool_result_passes_through_and_gets_its_time() -> None:
    result = to_result(ToolResult("bye", terminate=True, reward=0.5), seconds=1.5)
    assert result == ToolResult("bye", terminate=True, reward=0.5, seconds=1.5)
    assert to_result(ToolResult({"a": 1})).content == '{"a": 1}'  # type: ignore[arg-type]
    assert to_result(ToolResult("", reward=float("nan"))).error is CallStatus.TOOL_ERROR


def test_a_coroutine_is_told_and_closed(recwarn: pytest.WarningsRecorder) -> None:
    async def co() -> None: ...

    result = to_result(co())
    assert result.error is CallStatus.TOOL_ERROR
    assert "async" in result.content
    assert not recwarn.list


def test_error_text_is_json() -> None:
    text = error_text(CallStatus.TOOL_TIMEOUT, 'a "quoted" é\nline')
    assert json.loads(text) == {"error": "tool_timeout", "message": 'a "quoted" é\nline'}
    assert json.loads(error_text("tool_error", "\ud800"))["error"] == "tool_error"


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.characters(codec=None)))
def test_text_is_always_well_formed(text: str) -> None:
    for value in (text, {"k": text}, [text]):
        to_text(value).encode("utf-8")
    error_text("tool_error", text).encode("utf-8")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        pass
    else:
        assert to_text(text) == text


def test_halves_of_a_character_are_joined() -> None:
    assert to_text("\ud83d\ude00 \ud83d.") == "\U0001f600 \ufffd."


def keep(text: str, n: int) -> str:
    """One token is 4 characters."""
    return text[: 4 * n]


def test_a_result_within_the_limit_is_untouched() -> None:
    assert limit_result("a" * 400, 100, keep) == "a" * 400
    assert limit_result("", 0, keep) == ""


def test_a_cut_result_says_how_much_is_missing() -> None:
    text = json.dumps(list(range(1000)))
    cut = limit_result(text, 100, keep)
    kept, marker = cut.rsplit("\n", 1)
    assert text.startswith(kept)
    assert len(kept) > 300
    assert marker == f"[cut: {len(text) - len(kept)} of {len(text)} characters left out]"
    with pytest.raises(ValueError):
        json.loads(cut)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400), st.integers(0, 60), st.integers(1, 9))
def test_a_cut_result_fits_and_is_always_marked(text: str, limit: int, size: int) -> None:
    def keep_some(some: str, n: int) -> str:
        return some[: size * n]

    cut = limit_result(text, limit, keep_some)
    assert keep_some(cut, limit) == cut
    if cut != text:
        assert len(text) > size * limit
        assert "[cut" in cut or limit * size < len("[cut]") + len("\n[cut: 400 of 400 characters left out]")


def test_a_tokenizer_that_merges_across_the_seam_still_fits() -> None:
    def count(text: str) -> int:
        return sum(3 if ch == "\n" else 1 for ch in text)  # a line break costs more than it does alone

    def keep_merging(text: str, n: int) -> str:
        while count(text) > n:
            text = text[:-1]
        return text

    cut = limit_result("x" * 500, 120, keep_merging)
    assert count(cut) <= 120
    assert "characters left out]" in cut


def test_the_cost_does_not_grow_with_the_text() -> None:
    seen = []

    def keep_counting(text: str, n: int) -> str:
        seen.append(len(text))
        return text[: 4 * n]

    began = time.thread_time()
    limit_result("a" * 50_000_000, 64, keep_counting)
    assert max(seen) < 10_000
    assert len(seen) < 100
    assert time.thread_time() - began < 2


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        limit_result("a", -1, keep)
