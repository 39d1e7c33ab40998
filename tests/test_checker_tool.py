"""check_tool names exactly what is broken, and finds nothing where nothing is."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import checker_faults as faulty
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, Field

from toolstep.envs.checker import CheckFailed, Report, check_tool
from toolstep.envs.checker.samples import NoSample, sample_arguments
from toolstep.envs.tools import Tool, ToolFactory, tool
from toolstep.envs.tools.builtin import SQL, Files, Search, builtin_names
from toolstep.envs.tools.builtin.corpus import Document
from toolstep.envs.tools.tool import as_tool

FEW: dict[str, Any] = {"calls": 4, "rows": 2, "quiet": True}
# Deadlines that no busy machine misses, for whatever returns.
CALM: dict[str, Any] = {**FEW, "timeout": 60.0, "slow": 60.0}
HANGING: dict[str, Any] = {**FEW, "calls": 20, "timeout": 0.5, "slow": 60.0}


@pytest.fixture(scope="module", autouse=True)
def _let_go() -> Iterator[None]:
    faulty.OVER.clear()
    yield
    faulty.OVER.set()


@pytest.mark.parametrize("name", ["add", "divide", "later", "Basket"])
def test_a_clean_tool_passes_without_a_word(name: str) -> None:
    report = check_tool(getattr(faulty, name), **CALM)
    assert report.findings == [], str(report)
    assert [c.name for c in report.checks] == [
        "an env takes it",
        "schema",
        "calls",
        "a new episode",
        "rows at once",
        "nothing left behind",
    ]


def test_a_list_of_tools_is_checked_together() -> None:
    report = check_tool([faulty.add, faulty.Basket, "calculator"], **CALM)
    assert report.findings == [], str(report)
    assert report.checks[0].detail == "add, put, calculator"


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("raises", "raises", "checker_faults.py:"),
        ("always_raises", "raises", "the backend is not configured"),
        ("terse", "unhelpful-error", "ZeroDivisionError"),
        ("lies", "return-type", "its annotation says int, it returned str: '1'"),
        ("large", "large-result", "10,000,000 characters"),
        ("control_tokens", "control-tokens", "'<|im_end|>'"),
        ("not_json", "not-json", "lock"),
        ("not_a_number", "not-json", "not finite"),
        ("surrogate", "bad-unicode", "surrogate"),
        ("exits", "exits", "SystemExit"),
        ("exits_for_real", "exits", "exit code 3"),
        ("random_result", "global-random", "random.random()"),
        ("clock_result", "nondeterministic", "clock"),
        ("remembers", "remembers", "a global variable"),
        ("basket", "shared-state", "one Basket object"),
        ("one_basket", "shared-state", "one Basket object"),
        ("Leaky", "leaks", "2 threads (left, left)"),
        ("undescribed", "no-description", "docstring"),
        ("half_described", "no-parameter-description", "'b'"),
        ("untyped", "untyped-parameter", "'a'"),
        ("not_importable", "not-importable", "must be importable"),
    ],
)
def test_a_fault_is_named_and_nothing_else(name: str, code: str, says: str) -> None:
    report = check_tool(getattr(faulty, name), **CALM)
    assert report.codes == [code, "no-parameter-description"][: 1 + (name == "undescribed")], str(report)
    finding = next(f for f in report.findings if f.code == code)
    assert finding.fix
    assert says in f"{finding.where} {finding.what} {finding.fix}"


@pytest.mark.parametrize("name", ["hangs", "hangs_inline", "hangs_in_process"])
def test_a_tool_that_hangs_is_named_with_the_call_that_shows_it(name: str) -> None:
    report = check_tool(getattr(faulty, name), **HANGING)
    assert report.codes == ["hangs"], str(report)
    assert report.errors[0].example == (f"{name}(a=7)" if name == "hangs" else f"{name}(a=1)")
    assert "process" in report.errors[0].what + report.errors[0].fix


@pytest.mark.parametrize("name", ["slow", "slow_inline"])
def test_a_slow_tool_is_named(name: str) -> None:
    report = check_tool(getattr(faulty, name), **{**CALM, "slow": 0.2})
    assert report.codes == ["slow"]
    assert report.ok  # a warning


def test_rows_that_share_something_are_told_from_a_tool_that_draws() -> None:
    report = check_tool(faulty.shares, **CALM)
    assert report.codes == ["rows-interfere"], str(report)
    assert "Row " in report.errors[0].what


def test_a_tool_that_waits_for_another_row_hangs_beside_others_only() -> None:
    free = threading.Lock()

    def locked(a: int) -> int:
        """One at a time, and whoever comes second waits for ever.

        Args:
            a: Anything.
        """
        if not free.acquire(blocking=False):
            faulty.OVER.wait(60)
        threading.Event().wait(0.2)
        free.release()
        return a

    report = check_tool(locked, **{**HANGING, "calls": 2, "timeout": 5.0})
    assert report.codes == ["hangs"]
    assert report.errors[0].where == "locked, beside other rows"


def test_a_report_can_be_raised_and_read() -> None:
    with pytest.raises(CheckFailed, match="return-type") as raised:
        check_tool(faulty.lies, raises=True, **CALM)
    report = raised.value.report
    text = str(report)
    assert text.splitlines()[0] == "tool lies: 1 error"
    assert "mend: " in text
    assert "example: lies(a=1)" in text
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))).to_dict() == report.to_dict()


def test_a_report_is_printed_unless_it_is_not_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    check_tool(faulty.add, **{**CALM, "quiet": False})
    assert capsys.readouterr().out == "tool add: nothing is wrong\n"
    check_tool(faulty.add, **CALM)
    assert capsys.readouterr().out == ""


def test_examples_are_tried_first_and_those_of_the_schema_too() -> None:
    seen: list[str] = []

    @tool
    def capital(country: Annotated[str, Field(examples=["France"])]) -> str:
        """Its capital.

        Args:
            country: Which one.
        """
        seen.append(country)
        if country not in ("France", "Peru"):
            raise ValueError(f"unknown country {country!r}")
        return "Paris"

    report = check_tool(capital, examples=[{"country": "Peru"}], **CALM)
    assert report.findings == [], str(report)
    assert seen[:2] == ["Peru", "France"]


def test_a_tool_of_which_no_call_succeeds_is_told_in_a_note() -> None:
    def population(city: str) -> int:
        """People.

        Args:
            city: Where.
        """
        raise ValueError(f"unknown city {city!r}")

    report = check_tool(population, **CALM)
    assert report.codes == []
    assert [f.code for f in report.notes] == ["never-succeeds"]
    assert "examples" in report.notes[0].fix


def even(value: int) -> int:
    """For a validator."""
    if value % 2:
        raise ValueError("it must be even")
    return value


def test_a_validation_that_refuses_what_the_schema_allows_is_told() -> None:
    def half(n: Annotated[int, AfterValidator(even)]) -> int:
        """Half of it.

        Args:
            n: An even number.
        """
        return n // 2

    report = check_tool(half, **{**CALM, "calls": 12})
    assert report.codes == ["schema-promises-more"], str(report)
    assert "it must be even" in report.warnings[0].what


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"type": "object", "properties": {"a": {"type": "strng", "description": "x"}}}, "'strng'"),
        ({"type": "object", "properties": {}, "required": ["b"]}, "'b' is required"),
        ({"type": "object", "properties": {"a": {"enum": [], "description": "x"}}}, "enum is empty"),
        ({"type": "object", "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 2}}}, "above"),
        ({"type": "object", "properties": {"a": {"type": "string", "default": {1, 2}, "description": "x"}}}, "as JSON"),
    ],
)  # fmt: skip
def test_a_schema_that_is_none_is_named_by_its_place(parameters: dict[str, Any], says: str) -> None:
    made = Tool.from_schema(lambda **_: "x", name="foreign", parameters=parameters, description="From elsewhere.")
    report = check_tool(made, **CALM)
    assert {f.code for f in report.errors} == {"bad-schema"}, str(report)
    assert says in report.errors[0].what


def test_what_cannot_be_a_tool_is_an_error_and_no_exception() -> None:
    def odd(a: threading.Thread) -> int:
        return 1

    assert check_tool(odd, **CALM).codes == ["not-a-tool"]
    assert check_tool("calculater", **CALM).codes == ["not-a-tool"]
    assert check_tool(5, **CALM).codes == ["not-a-tool"]


def test_a_factory_that_fails_or_hangs_is_named() -> None:
    class Broken(ToolFactory):
        def make(self, episode: Any) -> Any:
            raise RuntimeError("no server")

    report = check_tool(Broken(), **CALM)
    assert report.codes == ["raises"]
    assert "no server" in report.errors[0].what


def test_equal_results_beyond_python_types_are_no_lie() -> None:
    import numpy as np

    def pair(a: int) -> list[int]:
        """Two numbers.

        Args:
            a: Anything.
        """
        return (np.int64(a), 2)  # type: ignore[return-value]

    assert check_tool(pair, **CALM).findings == []


# ------------------------------------------------------------------------------------------------- our own tools
BUILT_IN: list[Any] = [
    *builtin_names(),
    Files({"a.txt": "one\ntwo\n"}),
    SQL(script="CREATE TABLE t(a); INSERT INTO t VALUES (1);"),
    Search([Document("d1", "Rex", "Rex is a dog.")]),
]


@pytest.mark.parametrize(
    "given", BUILT_IN, ids=lambda g: g if isinstance(g, str) else f"{type(g).__name__} with content"
)
def test_built_in_tools_pass(given: Any) -> None:
    report = check_tool(given, **CALM)
    assert report.codes == [], str(report)


# ------------------------------------------------------------------------------------------------------- samples
def kinds(a: int, b: Literal["x", "y"], c: list[tuple[int, str]], d: dict[str, float] | None = None) -> None:
    """Many types."""


def test_samples_begin_with_the_simplest_and_are_the_same_for_the_same_seed() -> None:
    schema = as_tool(kinds).parameters
    made = sample_arguments(schema, 30, seed=1)
    assert made == sample_arguments(schema, 30, seed=1)
    assert made != sample_arguments(schema, 30, seed=2)
    assert made[0] == {"a": 1, "b": "x", "c": [[1, "a"]]}
    assert len({json.dumps(m, sort_keys=True) for m in made}) == len(made) == 30
    assert {m["b"] for m in made} == {"x", "y"}
    assert any(m.get("d", 0) is None for m in made)


LEAVES = st.one_of(
    st.builds(
        lambda low, n, step: {"type": "integer", "minimum": low, "maximum": low + n * step, "multipleOf": step},
        st.integers(-50, 50), st.integers(1, 20), st.integers(1, 7),
    ),
    st.builds(lambda low, size: {"type": "number", "exclusiveMinimum": low, "maximum": low + size},
              st.integers(-9, 9), st.integers(1, 9)),
    st.builds(lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size},
              st.integers(0, 40), st.integers(0, 40)),
    st.sampled_from([{"type": "string", "format": f} for f in ("date", "uuid", "email", "date-time")]),
    st.sampled_from([{"type": "string", "pattern": p} for p in ("^[A-Z]{3}$", r"^\d{4}-\d{2}-\d{2}$", "^[a-z]+$")]),
    st.just({"type": ["boolean", "null"]}),
    st.lists(st.integers(-3, 3), min_size=1).map(lambda v: {"enum": v}),
)  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists, tuples, alternatives and objects of these."""
    return st.one_of(
        st.builds(lambda items, n: {"type": "array", "items": items, "minItems": n, "maxItems": n + 2},
                  inner, st.integers(0, 3)),
        st.builds(lambda a, b: {"type": "array", "prefixItems": [a, b], "minItems": 2, "items": False}, inner, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["b"],
                                "additionalProperties": False}, inner, inner),
    )  # fmt: skip


SCHEMAS = st.one_of(LEAVES, nested(LEAVES), nested(nested(LEAVES)))


@given(schema=SCHEMAS)
@settings(max_examples=40, deadline=None)
def test_samples_fit_their_schema(schema: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    whole = {"type": "object", "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}
    for made in sample_arguments(whole, 20):
        jsonschema.validate(made, whole, cls=jsonschema.Draft202012Validator)


def test_what_no_sample_is_known_for_is_said() -> None:
    schema = {"type": "object", "properties": {"v": {"type": "string", "pattern": "^Zx[0-9]{9}q$"}}, "required": ["v"]}
    with pytest.raises(NoSample, match=re.escape("the pattern '^Zx[0-9]{9}q$'")):
        sample_arguments(schema, 5)
    made = Tool.from_schema(lambda **_: "x", name="coded", parameters=schema, description="Odd.")
    report = check_tool(made, **CALM)
    assert [f.code for f in report.notes] == ["no-sample"]
    given = check_tool(made, examples=[{"v": "Zx123456789q"}], **CALM)
    assert given.notes == []
