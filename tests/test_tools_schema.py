"""A signature and a docstring become the JSON schema that a model sees."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import enum
import functools
import json
import pickle
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
import typing_extensions
from pydantic import BaseModel, Field

from toolstep.envs.tools import Tool, ToolSchemaError, as_tool, tool
from toolstep.envs.tools.inline import MAX_REFERENCES, inline


class Unit(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Point(BaseModel):
    """A point."""

    x: int
    title: str = "here"


class Node(BaseModel):
    value: int
    children: list[Node] = []


@dataclasses.dataclass
class Box:
    width: int
    label: str | None = None


class Query(typing_extensions.TypedDict):
    text: str


class OldQuery(typing.TypedDict):
    text: str


def parameter(function: Callable[..., Any], name: str = "x") -> dict[str, Any]:
    found: dict[str, Any] = as_tool(function).parameters["properties"][name]
    return found


def google(x: int, y: str = "a") -> None:
    """Do a thing.

    With more words.

    Args:
        x (int): The first,
            on two lines.
        y: The second.

    Returns:
        Nothing.
    """


def numpy_style(x: int, y: str = "a") -> None:
    """Do a thing.

    With more words.

    Parameters
    ----------
    x : int
        The first,
        on two lines.
    y
        The second.
    """


def sphinx(x: int, y: str = "a") -> None:
    """Do a thing.

    With more words.

    :param x: The first,
        on two lines.
    :param str y: The second.
    :returns: nothing
    """


@pytest.mark.parametrize("function", [google, numpy_style, sphinx])
def test_every_docstring_style_describes_tool_and_parameters(function: Callable[..., Any]) -> None:
    schema = as_tool(function).schema
    assert schema == {
        "type": "function",
        "function": {
            "name": function.__name__,
            "description": "Do a thing.\n\nWith more words.",
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"type": "integer", "description": "The first, on two lines."},
                    "y": {"type": "string", "default": "a", "description": "The second."},
                },
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }


def test_schema_is_the_callers_to_change() -> None:
    made = as_tool(google)
    made.schema["function"]["parameters"]["properties"].clear()
    assert made.schema["function"]["parameters"]["properties"]
    assert as_tool(google).parameters["properties"]


def test_no_docstring_and_undocumented_parameters_are_fine() -> None:
    def bare(x: int, y): ...  # type: ignore[no-untyped-def]

    def half(x: int, y: int) -> None:
        """Half.

        Args:
            y: Told.
        """

    assert as_tool(bare).description == ""
    assert as_tool(bare).parameters["properties"] == {"x": {"type": "integer"}, "y": {}}
    assert as_tool(half).parameters["properties"]["x"] == {"type": "integer"}
    assert as_tool(half).parameters["properties"]["y"] == {"type": "integer", "description": "Told."}


def test_literals_and_enums_are_lists_of_values_in_place() -> None:
    def f(x: Literal["a", "b"], y: Unit = Unit.CELSIUS): ...  # type: ignore[no-untyped-def]

    assert parameter(f) == {"type": "string", "enum": ["a", "b"]}
    assert parameter(f, "y") == {
        "type": "string",
        "enum": ["celsius", "fahrenheit"],
        "default": "celsius",
    }


def test_none_as_default_means_that_null_may_be_given() -> None:
    def f(x: str = None, y: int | None = None, z: Annotated[int, Field(ge=0)] = None): ...  # type: ignore[no-untyped-def, assignment]  # noqa: RUF013

    assert parameter(f) == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert parameter(f, "y") == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert {"type": "null"} in parameter(f, "z")["anyOf"]
    assert as_tool(f).bind({"x": None, "z": None}) == {"x": None, "z": None}


def test_nested_types_are_written_out_in_place() -> None:
    def f(x: Point, box: Box, query: Query, points: list[Point], day: datetime.date, some: set[int]): ...  # type: ignore[no-untyped-def]

    made = as_tool(f)
    text = json.dumps(made.parameters)
    assert "$ref" not in text
    assert "$defs" not in text
    assert parameter(f)["properties"]["x"] == {"type": "integer"}
    assert parameter(f)["properties"]["title"] == {"type": "string", "default": "here"}  # a name, no keyword
    assert "title" not in {key for key in parameter(f) if key != "properties"}
    assert parameter(f, "box")["required"] == ["width"]
    assert parameter(f, "query")["required"] == ["text"]
    assert parameter(f, "points")["items"]["description"] == "A point."
    assert parameter(f, "day") == {"type": "string", "format": "date"}
    bound = made.bind(
        {
            "x": {"x": 1},
            "box": {"width": "2"},
            "query": {"text": "q"},
            "points": '[{"x": 3}]',
            "day": "2024-02-29",
            "some": [1, 1],
        }
    )
    assert bound["x"] == Point(x=1)
    assert bound["box"] == Box(2)
    assert bound["points"] == [Point(x=3)]
    assert bound["day"] == datetime.date(2024, 2, 29)
    assert bound["some"] == {1}


def test_recursive_types_end() -> None:
    def f(x: Node): ...  # type: ignore[no-untyped-def]

    text = json.dumps(parameter(f))
    assert "$ref" not in text
    assert text.count('"value"') == 4
    deep = {"value": 1, "children": [{"value": 2, "children": [{"value": 3, "children": [{"value": "4"}]}]}]}
    assert as_tool(f).bind({"x": deep})["x"].children[0].children[0].children[0].value == 4


def test_definitions_that_refer_to_each_other_do_not_explode() -> None:
    names = [f"d{i}" for i in range(12)]
    definition = {"type": "object", "properties": {name: {"$ref": f"#/$defs/{name}"} for name in names}}
    schema = {"$ref": "#/$defs/d0", "$defs": dict.fromkeys(names, definition)}
    assert len(json.dumps(inline(schema))) < 2000 * MAX_REFERENCES


def test_variadic_parameters_are_array_and_object() -> None:
    def f(*args: int, **kw: float) -> tuple[Any, ...]:
        """F.

        Args:
            *args: Numbers.
            **kw: Named ones.
        """
        return args, kw

    assert parameter(f, "args") == {
        "type": "array",
        "items": {"type": "integer"},
        "default": [],
        "description": "Numbers.",
    }
    assert parameter(f, "kw")["additionalProperties"] == {"type": "number"}
    made = as_tool(f)
    assert made.call(**made.bind({"args": ["1", 2], "kw": {"a": 1}})) == ((1, 2), {"a": 1.0})
    assert made.call(**made.bind({})) == ((), {})


def test_every_kind_of_parameter_reaches_its_place() -> None:
    def f(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> tuple[Any, ...]:
        return a, b, c, rest, d, e, more

    made = as_tool(f)
    assert list(made.parameters["properties"]) == ["a", "b", "c", "rest", "d", "e", "more"]
    assert made.parameters["required"] == ["a", "d"]
    assert made.call(**made.bind({"a": 1, "d": 4})) == (1, 2, 3, (), 4, 5, {})
    assert made.call(**made.bind({"a": 1, "c": 9, "d": 4})) == (1, 2, 9, (), 4, 5, {})
    assert made.call(**made.bind({"a": 1, "rest": [7], "d": 4, "more": {"z": 1}})) == ((1, 2, 3, (7,), 4, 5, {"z": 1}))


def test_annotated_bounds_and_texts_are_kept() -> None:
    def f(
        x: Annotated[int, Field(ge=1, description="In field.")],
        y: Annotated[int, "In words."],
        z: int = Field(3, le=9),
        w: Annotated[int, Field(default=4)] = Field(),
    ) -> tuple[int, ...]:
        """F.

        Args:
            x: In the docstring.
            z: Of z.
        """
        return x, y, z, w

    assert parameter(f) == {"type": "integer", "minimum": 1, "description": "In field."}
    assert parameter(f, "y") == {"type": "integer", "description": "In words."}
    assert parameter(f, "z") == {"type": "integer", "maximum": 9, "default": 3, "description": "Of z."}
    made = as_tool(f)
    assert made.call(**made.bind({"x": 1, "y": 2, "w": 4})) == (1, 2, 3, 4)


def test_parameter_names_that_pydantic_would_refuse() -> None:
    def f(_x: int, copy: int, model_config: int, json: int = 4, self: int = 5) -> list[int]:
        return [_x, copy, model_config, json, self]

    made = as_tool(f)
    assert made.call(**made.bind({"_x": 1, "copy": 2, "model_config": 3})) == [1, 2, 3, 4, 5]


class Counter:
    """Counts."""

    def __init__(self, start: int) -> None:
        self.count = start

    @tool(name="add", run_in="inline")
    def decorated(self, n: int = 1) -> int:
        """Add to the count."""
        self.count += n
        return self.count

    def plain(self, n: int) -> int:
        return self.count + n

    def __call__(self, n: int) -> int:
        """Called."""
        return n


def test_methods_belong_to_their_object() -> None:
    one, two = Counter(0), Counter(100)
    assert one.decorated.call(**one.decorated.bind({"n": "2"})) == 2
    assert two.decorated.call() == 101
    assert list(Counter.decorated.parameters["properties"]) == ["n"]
    assert as_tool(one.plain).call(n=1) == 3
    assert as_tool(Counter(0)).name == "Counter"
    assert as_tool(Counter(0)).description == "Called."


def test_partial_hides_what_it_fixes() -> None:
    def f(database: object, key: str, limit: int = 3) -> tuple[Any, ...]:
        """Look up."""
        return database, key, limit

    made = as_tool(functools.partial(f, limit=5, database="db"))
    assert made.name == "f"
    assert made.description == "Look up."
    assert list(made.parameters["properties"]) == ["key"]
    assert made.call(key="k") == ("db", "k", 5)


def test_run_in_follows_the_function() -> None:
    async def co() -> None: ...

    def plain() -> None: ...

    assert as_tool(co).run_in == "async"
    assert as_tool(plain).run_in == "thread"
    assert as_tool(functools.partial(co)).run_in == "async"
    assert tool(co, run_in="process").run_in == "process"
    for wrong in ("inline", "thread"):
        with pytest.raises(ToolSchemaError, match="use 'async'"):
            tool(co, run_in=wrong)  # type: ignore[call-overload]
    with pytest.raises(ToolSchemaError, match="coroutine function"):
        tool(plain, run_in="async")
    with pytest.raises(ToolSchemaError, match="'inline', 'async', 'thread' or 'process'"):
        tool(plain, run_in="fork")  # type: ignore[call-overload]


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeout_must_be_a_time(timeout: float) -> None:
    with pytest.raises(ToolSchemaError, match="timeout"):
        tool(google, timeout=timeout)


def test_errors_name_the_function_and_the_parameter() -> None:
    def old(a: int, query: OldQuery): ...  # type: ignore[no-untyped-def]

    def unknown(a: int, query: Nowhere): ...  # type: ignore[name-defined, no-untyped-def]  # noqa: F821

    def opaque(a: int, query: threading_lock): ...  # type: ignore[valid-type, no-untyped-def]

    for function, words in ((old, "typing_extensions"), (unknown, "Nowhere"), (opaque, "query")):
        with pytest.raises(ToolSchemaError, match=words) as caught:
            as_tool(function)
        assert function.__name__ in str(caught.value)
        assert "'query'" in str(caught.value)
    with pytest.raises(ToolSchemaError, match="name="):
        as_tool(lambda x: x)
    with pytest.raises(TypeError, match="int"):
        as_tool(3)  # type: ignore[arg-type]


class threading_lock:
    """A type that JSON cannot fill."""


def test_defaults_that_json_cannot_show_are_left_out() -> None:
    sentinel = object()

    def f(x: Any = sentinel) -> bool:
        return x is sentinel

    made = as_tool(f)
    assert made.parameters["properties"]["x"] == {}
    assert made.call(**made.bind({})) is True


def test_tool_made_anew_in_each_episode_sees_its_own_closure() -> None:
    def make(n: int, default: Any) -> Tool:
        def f(x: int = default) -> tuple[int, int]:
            return n, x

        return tool(f)

    first, second, third = make(1, 1), make(2, 1), make(3, True)
    assert [t.call() for t in (first, second, third)] == [(1, 1), (2, 1), (3, True)]
    shown = [json.dumps(made.parameters) for made in (first, second, third)]
    assert shown[0] == shown[1] != shown[2]  # a default of True is not one of 1
    first.parameters["properties"].clear()
    assert second.parameters["properties"]
    assert make(4, 1).parameters["properties"]


@tool(run_in="inline")
def at_module_level(x: int) -> int:
    """Add one."""
    return x + 1


def test_tools_can_be_copied_and_pickled() -> None:
    foreign = Tool.from_schema(
        google, name="g", parameters={"type": "object", "properties": {"x": {"type": "integer"}}}
    )
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    for made in (as_tool(google), tool(google, name="other", timeout=2.0), foreign):
        again = pickle.loads(pickle.dumps(made))
        assert again.schema == made.schema
        assert again.timeout == made.timeout
        assert again.run_in == made.run_in
        assert again.bind({"x": "1"}) == {"x": 1}
    counter = Counter(5)
    assert copy.deepcopy(counter.decorated).call() == 6
    assert counter.count == 5


def test_a_tool_can_still_be_called_as_the_function_it_was() -> None:
    assert at_module_level(2) == 3


def test_foreign_schema_is_kept_but_for_references() -> None:
    schema = {
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/P"}, "title": {"type": "string", "title": "Title"}},
        "required": ["p"],
        "$defs": {"P": {"type": "object", "properties": {"x": {"type": "integer"}}}},
    }
    made = Tool.from_schema(lambda **kw: kw, name="f", parameters=schema)
    assert made.parameters == {
        "type": "object",
        "properties": {
            "p": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "title": {"type": "string"},
        },
        "required": ["p"],
        "additionalProperties": False,
    }
    with pytest.raises(ToolSchemaError, match="object"):
        Tool.from_schema(lambda: None, name="f", parameters={"type": "array"})
