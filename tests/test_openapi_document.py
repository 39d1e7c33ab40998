"""What becomes of OpenAPI documents: of good ones in every form, of odd ones, of hostile ones."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openapi_server import DOCUMENT, serving

pytest.importorskip("httpx2")
pytest.importorskip("jsonschema")

from toolstep.envs.tools import OpenAPI, OpenAPIError
from toolstep.envs.tools.openapi import load as load_module

URL = "http://host.example/v1"


def document(paths: Any = None, **more: Any) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": paths or {"/x": {"get": {}}}, **more}


def operation(**given: Any) -> dict[str, Any]:
    return document({"/x/{id}": {"post": {"operationId": "x", **given}}})


def names(source: OpenAPI) -> list[str]:
    return [tool.name for tool, _ in source.offered]


def schema(source: OpenAPI) -> Any:
    return source.offered[0][0].parameters


# Aliases of aliases: 9**12 parts when they are written out.
BOMB = "\n".join(f"b{i}: &a{i} [{','.join(['x' if i == 0 else f'*a{i - 1}'] * 9)}]" for i in range(12))
ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}


# --------------------------------------------------------------------------------------------------------- its form
def test_a_dict_a_file_a_text_and_an_address_are_the_same(tmp_path: Path) -> None:
    import yaml

    expected = [tool.schema for tool, _ in OpenAPI(DOCUMENT, URL).offered]
    as_json, as_yaml = tmp_path / "d.json", tmp_path / "d.yaml"
    as_json.write_text(json.dumps(DOCUMENT))
    as_yaml.write_text(yaml.safe_dump(DOCUMENT, sort_keys=False))
    for form in (as_json, str(as_yaml), json.dumps(DOCUMENT), as_yaml.read_text()):
        assert [tool.schema for tool, _ in OpenAPI(form, URL).offered] == expected


def test_a_document_is_fetched_and_its_server_is_relative_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        monkeypatch.setattr(
            "openapi_server.Handler.how_unknown",
            lambda self, _: self.answer(200, json.dumps(document(servers=[{"url": "../v2"}])).encode(), "text/plain"),
        )
        assert OpenAPI(f"{server.url}/misbehave/x").base_url == server.url.replace("v1", "v1/v2")
        monkeypatch.setattr(load_module, "MAX_BYTES", 1000)
        with pytest.raises(OpenAPIError, match="has more than 0 MiB"):
            OpenAPI(f"{server.url}/misbehave/big")
        with pytest.raises(OpenAPIError, match=r"cannot fetch the OpenAPI document .*500"):
            OpenAPI(f"{server.url}/misbehave/fail")


def test_yaml_is_read_as_json_means_it() -> None:
    source = OpenAPI(
        """
openapi: 3.0.0
paths:
  /x:
    get:
      parameters:
        - {name: land, in: query, schema: {type: string, enum: [NO, yes, on]}}
        - {name: day, in: query, schema: {type: string, default: 2024-01-01}}
        - {name: full, in: query, schema: {type: boolean, default: true}}
      responses: {200: {description: ok}}
""",
        URL,
    )
    properties = schema(source)["properties"]
    assert properties["land"]["enum"] == ["NO", "yes", "on"]
    assert properties["day"]["default"] == "2024-01-01"
    assert properties["full"]["default"] is True


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ([{"url": "https://a.example/v1"}, {"url": "https://b.example"}], "https://a.example/v1"),
        ([{"url": "https://{where}.example", "variables": {"where": {"default": "eu"}}}], "https://eu.example"),
    ],
)
def test_the_first_server_is_taken(servers: Any, expected: str) -> None:
    assert OpenAPI(document(servers=servers)).base_url == expected
    assert OpenAPI(document(servers=servers), URL).base_url == URL


@pytest.mark.parametrize(
    ("gone", "given"),
    [("yaml", "openapi: 3.1.0\npaths: {}\n"), ("httpx2", "http://127.0.0.1:9/x.json"), ("jsonschema", document())],
)
def test_without_a_package_the_way_out_is_named(gone: str, given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, gone, None)
    with pytest.raises(ImportError, match=rf"need(s {gone}| {gone}).*pip install 'toolstep\[.*openapi\]'"):
        OpenAPI(given, URL)


# ----------------------------------------------------------------------------------------------------- its operations
def test_names_are_valid_and_different() -> None:
    paths = {
        "/a b": {"get": {"operationId": "list all: things/now"}, "post": {"operationId": "list all; things/now"}},
        "/pets/{id}/toys": {"parameters": [ID], "get": {}, "delete": {"operationId": 7}},
        "/" + "long" * 40: {"get": {}, "put": {"operationId": "x" * 64}, "post": {"operationId": "x" * 70}},
        "/ü": {"get": {"operationId": "漢字"}},
    }
    found = names(OpenAPI(document(paths), URL))
    assert found[:4] == ["list_all_things_now", "list_all_things_now_2", "get_pets_id_toys", "delete_pets_id_toys"]
    assert len(set(found)) == 8
    assert all(1 <= len(name) <= 64 and name.isascii() for name in found)


def test_arguments_that_would_clash_are_told_apart() -> None:
    parameters = [ID, {"name": "id", "in": "query", "schema": {}}, {"name": "a[b]", "in": "query", "schema": {}}]
    content = {"application/json": {"schema": {"type": "object", "properties": {"id": {}, "a b": {}, "ok": {}}}}}
    source = OpenAPI(operation(parameters=parameters, requestBody={"content": content}), URL)
    assert list(schema(source)["properties"]) == ["id", "id_query", "a_b", "id_body", "a_b_body", "ok"]


def test_references_are_followed_everywhere() -> None:
    found = document(
        {"/x/{id}": {"$ref": "#/components/pathItems/X"}},
        components={
            "pathItems": {"X": {"post": {"parameters": [{"$ref": "#/components/parameters/Id"}],
                                         "requestBody": {"$ref": "#/components/requestBodies/B"}}}},
            "parameters": {"Id": {**ID, "schema": {"$ref": "#/components/schemas/A~1b"}}},
            "requestBodies": {"B": {"required": True, "content": {"application/json": {
                "schema": {"$ref": "#/components/schemas/Node"}}}}},
            "schemas": {
                "A/b": {"type": "integer"},
                "Node": {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}}},
            },
        },
    )  # fmt: skip
    properties = schema(OpenAPI(found, URL))["properties"]
    assert properties["id"] == {"type": "integer"}
    assert properties["next"]["properties"]["next"] == {"type": "object"}  # a recursion is written out twice


def test_references_of_bundlers_are_followed() -> None:
    """They point to where a thing stood first: into lists, and with the braces of a path percent-encoded."""
    content = {
        "application/json": {"schema": {"type": "object", "properties": {"b c": {"anyOf": [{"type": "integer"}]}}}}
    }
    paths = {
        "/x/{id}": {
            "post": {"parameters": [{**ID, "schema": {"type": "integer"}}], "requestBody": {"content": content}}
        },
        "/y/{id}": {
            "get": {
                "parameters": [
                    {"$ref": "#/paths/~1x~1%7Bid%7D/post/parameters/0"},
                    {"name": "n", "in": "query", "schema": {"$ref": "#/paths/~1x~1%7Bid%7D/post/requestBody/content/"
                     "application~1json/schema/properties/b%20c/anyOf/0"}},
                ]
            }
        },
        "/z": {"get": {"parameters": [{"$ref": f"#/paths/~1x~1%7Bid%7D/post/parameters/{'9' * 5_000}"}]}},
        "/w": {"get": {"parameters": [{"$ref": "#/paths/~1x~1%7Bid%7D/post/parameters/-1"}]}},
    }  # fmt: skip
    source = OpenAPI(document(paths), URL)
    chosen = OpenAPI(document(paths), URL, tools=["GET /y/{id}"])
    assert schema(chosen)["properties"] == {"id": {"type": "integer"}, "n": {"type": "integer"}}
    assert set(source.skipped) == {"GET /z", "GET /w"}
    assert "not in the document" in source.skipped["GET /w"]


def test_operations_that_cannot_be_called_are_left_out_with_the_reason() -> None:
    paths = {
        "/good": {"get": {}},
        "/image": {"post": {"requestBody": {"content": {"image/png": {}}}}},
        "/other": {"get": {"parameters": [{"$ref": "other.yaml#/a"}]}},
        "/loop": {"get": {"parameters": [{"$ref": "#/paths/~1loop/get/parameters/x"}]}},
        "/place/{gone}": {"get": {}},
        "/body": {"get": {"parameters": [{"name": "b", "in": "body"}]}},
        "/type": {"get": {"parameters": [{"name": "b", "in": "query", "schema": {"type": "strin"}}]}},
        "/huge": {"get": {"parameters": [{"name": "b", "in": "query", "schema": {"enum": ["x" * 300_000]}}]}},
        "/list": {"get": {"parameters": {"a": 1}}},
        "/none": {"get": None},
    }
    source = OpenAPI(document(paths), URL)
    assert names(source) == ["get_good"]
    assert set(source.skipped) == {f"{'POST' if p == '/image' else 'GET'} {p}" for p in paths if p != "/good"}
    assert "image/png cannot be sent" in source.skipped["POST /image"]
    assert "not in the document" in source.skipped["GET /other"]
    assert "{gone}" in source.skipped["GET /place/{gone}"]
    with pytest.raises(OpenAPIError, match=r"GET /type: at \$\.properties\.b\.type"):
        OpenAPI(document(paths), URL, tools=["GET /type"])


@pytest.mark.parametrize(
    ("style", "explode", "value", "path"),
    [
        ("simple", False, ["a", "b/c"], "/x/a,b%2Fc"),
        ("simple", True, {"k": 1, "l": True}, "/x/k=1,l=true"),
        ("simple", False, {"k": 1}, "/x/k,1"),
        ("label", False, "a", "/x/.a"),
        ("matrix", False, "a", "/x/;id=a"),
    ],
)
def test_styles_of_a_path(style: str, explode: bool, value: Any, path: str) -> None:
    from toolstep.envs.tools.openapi.request import build

    source = OpenAPI(operation(parameters=[{**ID, "style": style, "explode": explode, "schema": {}}]), URL)
    assert build(URL, source.offered[0][1], {"id": value}).url == URL + path


@pytest.mark.parametrize(
    ("given", "value", "query"),
    [
        ({}, {"k": 1, "l": "m"}, "k=1&l=m"),
        ({"explode": False}, {"k": 1}, "q=k,1"),
        ({"style": "spaceDelimited", "explode": False}, [1, 2], "q=1%202"),
        ({"style": "pipeDelimited", "explode": False}, [1, 2], "q=1|2"),
        ({"allowReserved": True}, "a/b:c&d", "q=a/b:c%26d"),
        ({}, None, "q=null"),
        ({}, [], ""),
        ({}, 1.5, "q=1.5"),
    ],
)
def test_styles_of_a_query(given: dict[str, Any], value: Any, query: str) -> None:
    from toolstep.envs.tools.openapi.request import build

    source = OpenAPI(operation(parameters=[ID, {"name": "q", "in": "query", "schema": {}, **given}]), URL)
    url = build(URL, source.offered[0][1], {"id": "a", "q": value}).url
    assert url == f"{URL}/x/a" + (f"?{query}" if query else "")


# -------------------------------------------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("no-such-file.yaml", "cannot read the OpenAPI document 'no-such-file.yaml'"),
        ("{", "neither JSON nor YAML"),
        ("a: [\n", "neither JSON nor YAML"),
        ("[]\n", "is an object, found list"),
        ({"swagger": "2.0"}, "version 3, found openapi: '' .Swagger 2: convert it"),
        ({"openapi": "4.0"}, "version 3, found openapi: '4.0'"),
        ({"openapi": "3.0.0"}, "has no paths"),
        ({"openapi": "3.0.0", "paths": {"/x": {}}}, "no operation can be called"),
        ("a: !!python/object/apply:os.system ['true']\n", "neither JSON nor YAML"),
        ("a: &a [*a]\n", "contains itself"),
        ("[" * 100_000 + "\n", "nested too deeply"),
        ('{"a":' * 100_000 + "\n", "nested too deeply"),
        (BOMB, "more than 3000000 parts"),
    ],
)  # fmt: skip
def test_a_document_that_cannot_be_used_says_why(given: Any, problem: str) -> None:
    with pytest.raises(OpenAPIError, match=problem):
        OpenAPI(given, URL)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: OpenAPI(document(), "host/v1"), "base_url must be an address"),
        (lambda: OpenAPI(document()), "does not say where its server is"),
        (lambda: OpenAPI(document(), URL, tools="x"), "tools must be a list"),
        (lambda: OpenAPI(document(), URL, tools=["get_y"]), "no operation 'get_y'; did you mean 'get_x'"),
        (lambda: OpenAPI(document(), URL, call_timeout=0), "call_timeout"),
        (lambda: OpenAPI(document(), URL, max_bytes=0), "max_bytes"),
        (lambda: OpenAPI(document({f"/{i}": {"get": {}} for i in range(300)}), URL), "has 300 operations, at most 256"),
    ],
)
def test_a_description_that_cannot_work_is_refused(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises(OpenAPIError, match=problem):
        make()


def test_some_operations_of_many_can_be_chosen() -> None:
    many = document({f"/{i}": {"get": {}} for i in range(2000)})
    assert names(OpenAPI(many, URL, tools=["GET /7", "get_1999"])) == ["get_7", "get_1999"]


def test_references_that_multiply_stay_small() -> None:
    # Each refers to the next one ten times: written out, the last would stand there 10**30 times.
    schemas = {
        f"S{i}": {"properties": {f"p{k}": {"$ref": f"#/components/schemas/S{i + 1}"} for k in range(10)}}
        for i in range(30)
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}
    found = operation(parameters=[ID], requestBody={"content": content}) | {"components": {"schemas": schemas}}
    started = time.monotonic()
    source = OpenAPI(found, URL)
    assert len(json.dumps(schema(source))) < 256 << 10
    assert time.monotonic() - started < 60  # not for ever


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["", "x", "#/paths", "object", "query", "path", "form"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["$ref", "name", "in", "schema", "type", "properties", "required", "content", "application/json", "allOf",
             "items", "parameters", "requestBody", "operationId", "security", "style", "enum", "nullable"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(JSON, JSON, JSON)
def test_a_document_is_tools_or_an_error_and_nothing_else(item: Any, given: Any, component: Any) -> None:
    found = {
        "openapi": "3.1.0",
        "paths": {"/x/{id}": item, "/y": {"post": given, "get": {"parameters": [component]}}},
        "components": {"schemas": component},
        "security": component,
    }
    try:
        source = OpenAPI(found, URL)
    except OpenAPIError:
        return
    for tool, _ in source.offered:
        json.dumps(tool.schema)
        with contextlib.suppress(ValueError):
            tool.bind({"id": "a", "body": [1]})
