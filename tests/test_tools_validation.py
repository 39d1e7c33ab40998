"""What a model passes to a tool: harmless slips are mended, everything else is told so that it can act."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, Field
from shared import shared

from toolstep.envs.tools import ArgumentError, BoundCall, Tool, as_tool, resolve
from toolstep.envs.tools.check import check
from toolstep.envs.tools.problems import MismatchError
from toolstep.envs.types import CallStatus, ToolCall


class Unit(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Point(BaseModel):
    x: int
    y: float = 0.0


def own(
    n: int = 0,
    x: float = 0.0,
    flag: bool = False,
    text: str = "",
    unit: Unit = Unit.CELSIUS,
    kind: Literal["a", "b"] = "a",
    items: list[int] = [],  # noqa: B006
    table: dict[str, int] = {},  # noqa: B006
    point: Point = Point(x=0),  # noqa: B008
    either: int | list[str] = 0,
    maybe: int | None = None,
    anything: Any = None,
) -> None: ...


FOREIGN_SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "flag": {"type": "boolean"},
        "text": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "kind": {"enum": ["a", "b"]},
        "items": {"type": "array", "items": {"type": "integer"}},
        "table": {"type": "object", "additionalProperties": {"type": "integer"}},
        "point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
            "required": ["x"],
        },
        "either": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]},
        "maybe": {"type": ["integer", "null"]},
        "anything": {},
    },
}
OWN = as_tool(own)
FOREIGN = Tool.from_schema(lambda **kw: kw, name="own", parameters=FOREIGN_SCHEMA)
BOTH = pytest.mark.parametrize("made", [OWN, FOREIGN], ids=["function", "schema"])


@BOTH
@pytest.mark.parametrize(
    ("name", "sent", "bound"),
    [
        ("n", "5", 5),
        ("n", 5.0, 5),
        ("n", "5.0", 5),
        ("n", " -5 ", -5),
        ("n", 10**30, 10**30),
        ("x", "2.5", 2.5),
        ("x", 3, 3),
        ("x", "1e3", 1000),
        ("flag", "true", True),
        ("flag", "No", False),
        ("flag", 1, True),
        ("items", "[1, 2]", [1, 2]),
        ("items", ["1", 2.0], [1, 2]),
        ("table", '{"a": "1"}', {"a": 1}),
        ("either", '["a"]', ["a"]),
        ("either", "7", 7),
        ("maybe", None, None),
        ("maybe", "4", 4),
        ("text", '["a"]', '["a"]'),
        ("text", "5", "5"),
        ("anything", "[1]", "[1]"),
        ("anything", True, True),
    ],
)
def test_harmless_slips_are_mended(made: Tool, name: str, sent: Any, bound: Any) -> None:
    got = made.bind({name: sent})[name]
    assert got == bound
    assert isinstance(got, bool) == isinstance(bound, bool)


@BOTH
@pytest.mark.parametrize(
    ("name", "sent", "words"),
    [
        ("n", True, ["n", "integer", "true"]),
        ("n", "1,000", ["integer", '"1,000"']),
        ("n", 5.5, ["integer", "5.5"]),
        ("n", "five", ["integer", '"five"']),
        ("n", None, ["integer", "null"]),
        ("n", [], ["integer", "an array of 0 items"]),
        ("n", 1e400, ["n", "Infinity"]),
        ("x", False, ["number", "false"]),
        ("x", float("inf"), ["x"]),
        ("x", "nan", ["x"]),
        ("x", "-Infinity", ["x"]),
        ("flag", "maybe", ["true or false", '"maybe"']),
        ("text", 5, ["string", "5"]),
        ("text", None, ["string", "null"]),
        ("unit", "Celsius", ['"celsius"', '"fahrenheit"', '"Celsius"']),
        ("kind", "c", ['"a"', '"b"', '"c"']),
        ("items", "1, 2", ["array"]),
        ("items", '{"a": 1}', ["array"]),
        ("items", "[NaN]", ["array"]),
        ("items", [1, "x"], ["items[1]", "integer", '"x"']),
        ("items", [True], ["items[0]", "integer", "true"]),
        ("table", {"a": "b"}, ["table.a", "integer"]),
        ("table", {"a": True}, ["table.a"]),
        ("point", {"x": "q"}, ["point.x", "integer"]),
        ("point", {}, ["point.x", "missing"]),
        ("point", {"x": 1, "y": float("inf")}, ["point.y"]),
        ("either", {"a": 1}, ["either", "integer", "array"]),
        ("maybe", "x", ["maybe", "integer", "null"]),
    ],
)
def test_what_cannot_be_meant_is_told(made: Tool, name: str, sent: Any, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as caught:
        made.bind({name: sent})
    assert caught.value.status is CallStatus.WRONG_TYPE
    assert all(word in caught.value.message for word in ["own", name, *words]), caught.value.message
    assert "http" not in caught.value.message
    assert "pydantic" not in caught.value.message


@BOTH
def test_unknown_argument_names_the_nearest_and_all(made: Tool) -> None:
    with pytest.raises(ArgumentError) as caught:
        made.bind({"txet": "a"})
    assert caught.value.status is CallStatus.UNEXPECTED_ARGUMENT
    assert "did you mean 'text'?" in caught.value.message
    assert "unit (one of" in caught.value.message


def test_missing_argument_names_what_is_required() -> None:
    def f(city: str, unit: Unit = Unit.CELSIUS) -> None: ...

    for sent in ({}, {"unit": "celsius"}, {"town": "x"}):
        with pytest.raises(ArgumentError) as caught:
            as_tool(f).bind(sent)
        assert caught.value.status is CallStatus.MISSING_ARGUMENT
        assert "city: required, but missing" in caught.value.message
        assert "city (a string, required)" in caught.value.message


def test_messages_stay_short_whatever_was_sent() -> None:
    huge = {"n": "9" * 100_000, "items": ["x"] * 10_000, "text": {str(i): i for i in range(10_000)}}
    for made in (OWN, FOREIGN):
        for sent in (huge, {"k" * 10**6: 1}, {f"k{i}": 1 for i in range(10_000)}):
            with pytest.raises(ArgumentError) as caught:
                made.bind(sent)
            assert len(caught.value.message) < 3000
    call, bound = resolve(ToolCall("1", "z" * 10**6, parsed={}), {f"tool{i}": OWN for i in range(5000)})
    assert bound is None
    assert len(call.error) < 1000


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


def broken(value: int) -> int:
    raise KeyError("oops")


def test_words_of_the_authors_validator_reach_the_model() -> None:
    def f(x: Annotated[int, AfterValidator(even)] = 0, y: Annotated[int, AfterValidator(broken)] = 0) -> None: ...

    with pytest.raises(ArgumentError, match="x: must be even, got 3"):
        as_tool(f).bind({"x": 3})
    with pytest.raises(ArgumentError, match="oops"):
        as_tool(f).bind({"y": 3})


def test_unknown_tool_names_the_nearest_and_the_list() -> None:
    tools = dict.fromkeys(("get_weather", "add", "search"), OWN)
    call, bound = resolve(ToolCall("1", "get_wether", parsed={}), tools)
    assert bound is None
    assert call.status is CallStatus.UNKNOWN_TOOL
    assert "did you mean 'get_weather'?" in call.error
    assert "get_weather, add, search" in call.error
    call, _ = resolve(ToolCall("1", "\ud800", parsed={}), {})
    assert call.status is CallStatus.UNKNOWN_TOOL
    call.error.encode("utf-8")


def test_malformed_calls_come_back_as_they_are() -> None:
    call = ToolCall("1", "own", status=CallStatus.INVALID_JSON, error="why")
    assert resolve(call, {"own": OWN}) == (call, None)


def test_bound_call_holds_python_values() -> None:
    call = ToolCall("1", "own", parsed={"unit": "celsius", "n": "1"})
    same, bound = resolve(call, {"own": OWN})
    assert same is call
    assert bound == BoundCall(call, OWN, {"unit": Unit.CELSIUS, "n": 1})


def shared_cases() -> list[Any]:
    folder = shared("tool_calls")
    cases = []
    for path in sorted(folder.glob("*.jsonl")):
        for number_, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            expect = json.loads(line)["expect"]
            for call, status in zip(expect["calls"], expect["validation"], strict=True):
                cases.append(pytest.param(call, status, id=f"{path.stem}-{number_}"))
    return cases


def test_shared_calls_get_the_expected_status() -> None:
    offered = json.loads(shared("tool_calls/tools.json").read_text(encoding="utf-8"))["tools"]
    tools = {t["function"]["name"]: Tool.from_schema(lambda **kw: kw, **t["function"]) for t in offered}
    cases = shared_cases()
    assert len(cases) > 200
    for case in cases:
        call, status = case.values
        got, bound = resolve(ToolCall("1", call["name"], parsed=call["arguments"]), tools)
        assert (None if got.status is CallStatus.OK else str(got.status)) == status, (case.id, got)
        assert (bound is not None) == (status is None)
        if bound is not None:
            assert bound.arguments == call["arguments"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["[1]", "{}", "5", "inf"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(list(FOREIGN_SCHEMA["properties"])) | st.text(max_size=5)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(NAMES, JSON, max_size=4) | JSON, st.sampled_from([OWN, FOREIGN]))
def test_resolve_never_raises(arguments: Any, made: Tool) -> None:
    call, bound = resolve(ToolCall("1", "own", parsed=arguments), {"own": made})
    assert (bound is None) == (call.status is not CallStatus.OK)
    call.error.encode("utf-8")
    if bound is not None:
        assert set(bound.arguments) == set(arguments)


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for made in (OWN, FOREIGN):
        for name in ("items", "anything", "either"):
            call, _ = resolve(ToolCall("1", "own", parsed={name: deep}), {"own": made})
            assert call.status in (CallStatus.OK, CallStatus.WRONG_TYPE)
    call, _ = resolve(ToolCall("1", "own", parsed={"items": "[" * 100_000}), {"own": OWN})
    assert call.status is CallStatus.WRONG_TYPE


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 3}, [1, 3, "2"], [0, 4, "9"]),
        ({"type": "number", "exclusiveMinimum": 0}, [0.1], [0, -1]),
        ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, [0.1], [0]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab"], ["a", "abcd"]),
        ({"type": "array", "minItems": 1, "maxItems": 2}, [[1]], [[], [1, 2, 3]]),
        ({"const": 1}, [1, 1.0], [True, 2]),
        ({"enum": [1, "a", None]}, [1, "a", None], [True, "b", 0]),
        ({"enum": [1, False]}, [1, False], [True, 0]),
        ({"allOf": [{"type": "integer"}, {"minimum": 2}]}, [2, "3"], [1, "x"]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["5", 5], [5.5, None]),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, ["5"], [[]]),
        (
            {"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
            [["a", 1]],
            [[1, "b"]],
        ),
        ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
        (False, [], [1]),
        (True, [1, None], []),
        ({"type": "string", "minLength": "two"}, ["a"], []),
    ],
)
def test_json_schema_keywords(schema: Any, good: list[Any], bad: list[Any]) -> None:
    whole = {"type": "object", "properties": {"v": schema}}
    for value in good:
        check({"v": value}, whole)
    for value in bad:
        with pytest.raises(MismatchError):
            check({"v": value}, whole)


def test_right_values_are_never_mended_into_another_alternative() -> None:
    whole = {"type": "object", "properties": {"v": {"anyOf": [{"type": "integer"}, {"type": "string"}]}}}
    assert check({"v": "5"}, whole) == {"v": "5"}


class Strict(BaseModel, extra="forbid"):
    x: int


class Loose(BaseModel, extra="ignore"):
    x: int


class ByName(BaseModel, populate_by_name=True):
    x: int = Field(alias="ex")


def nested(
    point: Point | None = None,
    points: list[Point] = [],  # noqa: B006
    strict: Strict = Strict(x=0),  # noqa: B008
    loose: Loose = Loose(x=0),  # noqa: B008
    by_name: ByName = ByName(ex=0),  # noqa: B008
    pair: tuple[int, str] = (0, ""),
) -> None: ...


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"point": {"x": 1, "Y": 2}}, "point.Y: no such argument (did you mean 'y'?)"),
        ({"points": [{"x": 1}, {"z": 2}]}, "points[1].z: no such argument; points[1].x: required, but missing"),
        ({"strict": {"x": 1, "y": 2}}, "strict.y: no such argument"),
        ({"pair": [1]}, "pair[1]: required, but missing"),
    ],
)
def test_what_a_nested_object_has_no_name_for_is_told(sent: dict[str, Any], message: str) -> None:
    made = as_tool(nested)
    with pytest.raises(ArgumentError) as caught:
        made.bind(sent)
    assert caught.value.message == f"nested: {message}"


def test_a_model_that_takes_more_names_says_so() -> None:
    made = as_tool(nested)
    bound = made.bind({"loose": {"x": 1, "y": 2}, "by_name": {"x": 3}})
    assert (bound["loose"], bound["by_name"].x) == (Loose(x=1), 3)
    shown = made.schema["function"]["parameters"]["properties"]
    closed = {name for name, part in shown.items() if part.get("additionalProperties") is False}
    assert closed == {"strict"}
    assert shown["points"]["items"]["additionalProperties"] is False


def choosing(
    of_two: Literal[1, 2] = 1,
    one: Literal[3] = 3,
    maybe: Literal[1, 2] | None = None,
    mixed: Literal["1", 1, 2] = 1,
    switch: Literal[True] = True,
    word: Literal["yes", "no"] = "no",
) -> None: ...


def test_a_choice_may_come_as_text_and_a_text_stays_one() -> None:
    sent = {"of_two": "2", "one": "3", "maybe": "1", "mixed": "1", "switch": "true", "word": "yes"}
    bound = {"of_two": 2, "one": 3, "maybe": 1, "mixed": "1", "switch": True, "word": "yes"}
    made = as_tool(choosing)
    assert made.bind(sent) == bound
    schema = made.schema["function"]["parameters"]
    assert check(sent, schema) == bound
    for wrong in ({"of_two": "3"}, {"one": "x"}, {"maybe": "3"}, {"switch": "false"}, {"word": "true"}):
        with pytest.raises(ArgumentError):
            made.bind(wrong)
        with pytest.raises(MismatchError):
            check(wrong, schema)
