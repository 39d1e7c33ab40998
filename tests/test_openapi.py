"""The operations of an OpenAPI document as tools, against a server on loopback that answers and misbehaves."""

from __future__ import annotations

import gc
import json
import pickle
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_fixtures import call, eventually, make_env, make_envs, result, results, row_results
from openapi_server import DOCUMENT, Server, serving
from traces import descriptors, threads

pytest.importorskip("httpx2")
pytest.importorskip("jsonschema")

from toolstep.envs import ToolUseEnv
from toolstep.envs.tools import OpenAPI, OpenAPIError, ToolBackendError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


@pytest.fixture
def env(server: Server) -> Iterator[ToolUseEnv]:
    made = make_env(OpenAPI(DOCUMENT, server.url), max_result_tokens=100_000)
    made.reset(seed=0)
    yield made
    made.close()


def asked(env: ToolUseEnv, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """What the server says that it was asked."""
    found: dict[str, Any] = json.loads(result(env, call(tool, **arguments)))
    return found


def misbehave(env: ToolUseEnv, how: str, **arguments: Any) -> tuple[str, str]:
    """The status of the call, and what the model reads."""
    info = env.step(call("misbehave", how=how, **arguments))[4]
    (text,) = results(info)
    return info["call_statuses"][0], text


# ----------------------------------------------------------------------------------------------- where arguments go
def test_parameters_go_where_the_document_says(env: ToolUseEnv) -> None:
    told = asked(
        env,
        "search",
        q="a b&c=d",
        kind="cat",
        limit="5",
        tag=["x", "y&z"],
        ids=[1, 2],
        filter={"a": 1, "b": "c"},
        where={"n": [1]},
        **{"X-Trace": "t-1", "theme": "dark; x=1"},
    )
    assert told["path"] == "/v1/search"
    assert told["query"] == {
        "q": ["a b&c=d"],
        "kind": ["cat"],
        "limit": ["5"],
        "tag": ["x", "y&z"],
        "ids": ["1,2"],
        "filter[a]": ["1"],
        "filter[b]": ["c"],
        "where": ['{"n":[1]}'],
    }
    assert told["headers"]["x-trace"] == "t-1"
    assert told["headers"]["cookie"] == "theme=dark%3B%20x%3D1"
    assert "cookie" not in asked(env, "search", q="a")["headers"]


def test_a_json_body_is_spread_over_the_arguments(env: ToolUseEnv) -> None:
    told = asked(env, "putPet", id="7", name="Rex", id_body=8, age=None, friends=[{"name": "Tom"}])
    assert told["method"] == "PUT"
    assert told["path"] == "/v1/pets/7"
    assert told["headers"]["content-type"] == "application/json"
    assert json.loads(told["body"]) == {"name": "Rex", "id": 8, "age": None, "friends": [{"name": "Tom"}]}


def test_other_bodies(env: ToolUseEnv) -> None:
    told = asked(env, "post_form", a="x&y", b=[1, "z"])
    assert (told["headers"]["content-type"], told["body"]) == ("application/x-www-form-urlencoded", "a=x%26y&b=1&b=z")
    told = asked(env, "upload", file='x"\r\ny')
    assert told["headers"]["content-type"].startswith("multipart/form-data; boundary=")
    assert 'name="file"\r\n\r\nx"\r\ny\r\n--' in told["body"]
    told = asked(env, "note", body="plain words")
    assert (told["headers"]["content-type"], told["body"]) == ("text/plain", "plain words")
    assert asked(env, "note")["body"] == ""


def test_arguments_are_checked_before_the_server_is_asked(env: ToolUseEnv, server: Server) -> None:
    before = len(server.seen)
    turn = call("search", q="a", kind="cow") + call("search") + call("search", q="a", limit=0)
    turn += call("putPet", id="1", name="Rex", age=0) + call("putPet", id="1", name="x", serial=4)
    info = env.step(turn)[4]
    assert info["call_statuses"] == [
        "wrong_type", "missing_argument", "wrong_type", "wrong_type", "unexpected_argument",
    ]  # fmt: skip
    assert 'one of "cat", "dog"' in json.loads(results(info)[0])["message"]
    assert len(server.seen) == before


def test_what_the_model_is_shown(env: ToolUseEnv) -> None:
    schemas = {s["function"]["name"]: s["function"] for s in env.schemas}
    assert schemas["getPet"]["description"] == "One pet."
    assert schemas["post_form"]["description"] == "POST /form"
    assert schemas["search"]["parameters"]["properties"]["q"] == {"type": "string", "description": "Words."}
    assert schemas["search"]["parameters"]["required"] == ["q"]
    pet = schemas["putPet"]["parameters"]
    assert list(pet["properties"]) == ["id", "name", "id_body", "kind", "age", "friends"]
    assert pet["required"] == ["id", "name"]
    assert pet["properties"]["age"] == {"type": ["integer", "null"], "exclusiveMinimum": 0}
    assert "$ref" not in json.dumps(env.schemas)


# -------------------------------------------------------------------------------------------------- hostile arguments
PATHS = ["..", ".", "../admin", "a/../../admin", "..\\admin", "x/..", "", "a/./b"]


@pytest.mark.parametrize("value", PATHS)
def test_a_path_parameter_never_climbs(value: str, env: ToolUseEnv, server: Server) -> None:
    before = len(server.seen)
    assert env.step(call("getPet", id=value))[4]["call_statuses"] == ["wrong_type"]
    assert len(server.seen) == before


@pytest.mark.parametrize(
    "value",
    [
        "//evil.example/x",
        "@evil.example",
        "a?b=c#d",
        "%2e%2e%2fadmin",
        "a b",
        "é",
        "\r\nX-Evil: 1",
        "\x00",
        "a/b",
        "...",
    ],
)
def test_a_path_parameter_stays_one_part_of_the_path(value: str, env: ToolUseEnv) -> None:
    told = asked(env, "getPet", id=value)
    assert told["path"].count("/") == 3
    assert told["query"] == {}
    assert "x-evil" not in told["headers"]


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_no_text_leads_to_another_place(value: str) -> None:
    import httpx2

    from toolstep.envs.tools.openapi.request import RequestError, build

    source = OpenAPI(DOCUMENT, "http://host.example:8080/v1?fixed=1")
    operations = {operation.name: operation for _, operation in source.offered}
    for name, arguments in (("getPet", {"id": value}), ("search", {"q": value, "filter": {value: value}})):
        try:
            url = httpx2.URL(build(source.base_url, operations[name], arguments).url)
        except RequestError:
            continue
        assert (url.scheme, url.host, url.port, url.userinfo, url.fragment) == ("http", "host.example", 8080, b"", "")
        assert url.raw_path.startswith(b"/v1/pets/" if name == "getPet" else b"/v1/search?fixed=1&q=")
        assert url.raw_path.partition(b"?")[0].count(b"/") == (3 if name == "getPet" else 2)


def test_a_header_takes_no_line_break(env: ToolUseEnv) -> None:
    for value in ("x\r\nX-Evil: 1", "\x00", "你"):
        assert env.step(call("search", q="a", **{"X-Trace": value}))[4]["call_statuses"] == ["wrong_type"]


def test_an_address_has_an_end(env: ToolUseEnv) -> None:
    assert env.step(call("search", q="x" * 100_000))[4]["call_statuses"] == ["wrong_type"]


# ---------------------------------------------------------------------------------------------------- hostile answers
@pytest.mark.parametrize(
    ("how", "status", "text"),
    [
        ("unknown", "tool_error", "HTTP 404 Not Found: <h1>Not here</h1>"),
        ("empty", "ok", "HTTP 204 No Content"),
        ("created", "ok", 'HTTP 201 Created\n{"id": 7}'),
        ("teapot", "tool_error", "HTTP 799: what?"),
        ("html_as_json", "ok", "[the server calls this JSON, which it is not]\n<html>"),
        ("image", "ok", "[image/png, 10 bytes]"),
        ("bytes", "ok", "[application/(odd), 3 bytes]"),
        ("text_of_no_kind", "ok", "grüezi"),
        ("latin", "ok", "grüezi"),
        ("codec", "ok", "grueezi"),
        ("surrogate", "ok", '{"a": "�"}'),
        ("bomb", "tool_error", "compressed (gzip), which was not asked for"),
        ("cut", "tool_error", "the server's answer cannot be used"),
        ("no_http", "tool_error", "the server's answer cannot be used"),
        ("loop", "tool_error", "more than 5 redirects"),
    ],
)
def test_an_answer_of_any_kind_is_told(how: str, status: str, text: str, env: ToolUseEnv) -> None:
    found, read = misbehave(env, how)
    assert found == status
    if status == "ok":
        assert read == text
    else:
        assert text in json.loads(read)["message"]
    assert asked(env, "getPet", id="1")["path"] == "/v1/pets/1"  # the next call is none the worse for it


def test_large_and_endless_answers_are_cut(server: Server) -> None:
    env = make_env(OpenAPI(DOCUMENT, server.url, max_bytes=1000), max_result_tokens=100_000)
    env.reset(seed=0)
    for how in ("big", "endless"):
        status, text = misbehave(env, how)
        assert (status, text) == ("ok", "x" * 1000 + "\n[cut: only the first 1000 bytes were read]")
    status, text = misbehave(env, "fail")
    assert status == "tool_error"
    assert len(text) < 3000
    assert misbehave(env, "deep")[1].startswith("[[[[")
    env.close()


@pytest.mark.parametrize("how", ["silent", "drip"])
def test_a_server_that_takes_its_time_is_left_at_the_deadline(how: str) -> None:
    with serving() as server:
        env = make_env(OpenAPI(DOCUMENT, server.url, call_timeout=0.3))
        env.reset(seed=0)
        assert misbehave(env, how)[0] == "tool_timeout"
        assert misbehave(env, "empty")[0] == "ok"
        env.close()


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/x",
        "//evil.example/x",
        "https://127.0.0.1/x",
        "http://user:word@127.0.0.1:{port}/x",
        "file:///etc/passwd",
        "http://[",
        "http://127.0.0.1:1/x",
    ],
)
def test_no_answer_leads_to_another_server(target: str, env: ToolUseEnv, server: Server) -> None:
    status, text = misbehave(env, "redirect", to=target.format(port=server.server_address[1]))
    assert status == "tool_error"
    assert "word" not in text
    assert "another server" in text or "cannot be used" in text


def test_a_redirect_on_the_same_server_is_followed(env: ToolUseEnv) -> None:
    assert json.loads(misbehave(env, "redirect", to="/v1/pets/9")[1])["path"] == "/v1/pets/9"


def test_control_tokens_stay_text(tokenizer: Any, server: Server) -> None:
    env = make_env(OpenAPI(DOCUMENT, server.url), tokenizer=tokenizer, view="tokens")
    env.reset(seed=0)
    ids = env.step(env.config.chat.encode_turn(call("misbehave", how="tokens")))[0]
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert sum(int(i) == start for i in ids) == 2  # the tool's message, and the turn that follows
    env.close()


# -------------------------------------------------------------------------------------------------------- credentials
def test_credentials_come_from_the_environment_and_stay_hidden(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env(OpenAPI(DOCUMENT, server.url))
    env.reset(seed=0)
    assert "HTTP 401 Unauthorized" in result(env, call("private"))
    env.close()
    monkeypatch.setenv("PETS_KEY", "s3cret-key")
    env = make_env(OpenAPI(DOCUMENT, server.url, auth={"key": "PETS_KEY"}))
    prompt, _ = env.reset(seed=0)
    text = result(env, call("private"))
    assert '"x-key": "[secret]"' in text
    assert "s3cret-key" not in prompt + text
    assert misbehave(env, "echo_key") == ("ok", "HTTP 200 OK")  # it does not want the key, so it got none
    env.close()


@pytest.mark.parametrize(
    ("scheme", "secret", "sent"),
    [
        ({"type": "http", "scheme": "bearer"}, "token-1", ("Authorization", "Bearer token-1")),
        ({"type": "http", "scheme": "Basic"}, "user:pass", ("Authorization", "Basic dXNlcjpwYXNz")),
        ({"type": "oauth2", "flows": {}}, "token-1", ("Authorization", "Bearer token-1")),
        ({"type": "apiKey", "in": "cookie", "name": "sid"}, "a;b", ("Cookie", "sid=a%3Bb")),
        ({"type": "apiKey", "in": "query", "name": "key"}, "a&b", ("query", {"key": ["a&b"]})),
        (None, "token-1", ("Authorization", "Bearer token-1")),
    ],
)
def test_every_kind_of_credential(
    scheme: Any, secret: str, sent: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", secret)
    monkeypatch.setattr("toolstep.envs.tools.openapi.auth.MIN_SECRET", 1000)  # see it
    document = {
        "openapi": "3.1.0",
        "paths": {"/x": {"get": {"operationId": "x", "parameters": [{"name": "key", "in": "query", "schema": {}}]}}},
    }
    if scheme is not None:
        document |= {"security": [{"s": []}], "components": {"securitySchemes": {"s": scheme}}}
    env = make_env(OpenAPI(document, server.url, auth="SECRET"))
    env.reset(seed=0)
    told = asked(env, "x")
    assert (told["query"] if sent[0] == "query" else told["headers"][sent[0].lower()]) == sent[1]
    hidden = "key" not in env.schemas[0]["function"]["parameters"]["properties"]
    assert hidden == (sent[0] == "query")  # a model is not asked for what it cannot know
    env.close()


def test_a_credential_that_is_missing_is_told_when_the_env_is_made(server: Server) -> None:
    with pytest.raises(ToolBackendError, match="environment variable NO_SUCH_KEY is not set"):
        make_env(OpenAPI(DOCUMENT, server.url, auth={"key": "NO_SUCH_KEY"}))
    with pytest.raises(OpenAPIError, match="no security scheme 'kee'; it has key, token, login"):
        OpenAPI(DOCUMENT, server.url, auth={"kee": "PETS_KEY"})


# -------------------------------------------------------------------------------------------------- rows and episodes
def test_cookies_belong_to_an_episode(server: Server) -> None:
    envs = make_envs(2, OpenAPI(DOCUMENT, server.url))
    for _ in range(2):
        envs.reset(seed=0)
        assert row_results(envs, call("count"), call("count")) == ["1", "1"]
        assert row_results(envs, call("count"), call("getPet", id="1"))[0] == "2"
        assert row_results(envs, call("count"), call("count")) == ["3", "2"]
    envs.close()


def test_a_server_that_cannot_be_reached_is_no_failure_of_the_model() -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    envs = make_envs(2, OpenAPI(DOCUMENT, f"http://127.0.0.1:{port}/v1"))
    envs.reset(seed=0)
    _, rewards, _, truncations, infos = envs.step([call("count"), "2"])
    assert infos["status"].tolist() == ["env_error", "ok"]
    assert f"http://127.0.0.1:{port}: ConnectError" in infos["error"][0]
    assert (rewards.tolist(), truncations.tolist()) == ([0.0, 1.0], [True, False])
    envs.close()


def test_rows_wait_for_each_other_only_at_the_end() -> None:
    with serving() as server:
        envs = make_envs(16, OpenAPI(DOCUMENT, server.url, call_timeout=0.5))
        envs.reset(seed=0)
        slow = [call("misbehave", how="silent")] * 8 + [call("getPet", id=str(i)) for i in range(8)]
        infos = envs.step(slow)[4]
        assert [s[0] for s in infos["call_statuses"]] == ["tool_timeout"] * 8 + ["ok"] * 8
        assert envs.call("tool_seconds")[0] < 8 * 0.5
        envs.close()


def test_100_episodes_leave_nothing() -> None:
    # Another process would be cleaner, but then its descriptors could not be counted: the server's ends close too.
    at_rest = threading.active_count()  # a progress bar of an earlier test leaves its monitor
    with serving() as server:
        source = OpenAPI(DOCUMENT, server.url)
        warm = make_env(source)
        warm.reset(seed=0)
        asked(warm, "getPet", id="1")
        warm.close()
        assert eventually(lambda: threading.active_count() <= at_rest + 1)
        before = threads(), descriptors()
        envs = make_envs(4, source)
        for seed in range(25):
            envs.reset(seed=seed)
            envs.step([call("count"), call("misbehave", how="empty"), call("misbehave", how="cut"), "2"])
        envs.close()
        envs.close()
        assert eventually(lambda: threads() <= before[0] and descriptors() <= before[1])
        env = make_env(source)
        env.reset(seed=0)
        asked(env, "getPet", id="1")
        del env, source, envs, warm
        gc.collect()
        assert eventually(lambda: threads() <= before[0] and descriptors() <= before[1])


def test_a_source_can_be_pickled_and_given_to_several_envs(server: Server) -> None:
    source = pickle.loads(pickle.dumps(OpenAPI(DOCUMENT, server.url)))
    envs = [make_env(source), make_env(source)]
    for env in envs:
        env.reset(seed=0)
        asked(env, "getPet", id="1")
    envs[0].close()
    assert asked(envs[1], "getPet", id="2")["path"] == "/v1/pets/2"
    envs[1].close()


def test_a_document_beside_functions_and_a_server(server: Server) -> None:
    def double(x: int) -> int:
        """Twice x."""
        return 2 * x

    env = make_env([double, OpenAPI(DOCUMENT, server.url, tools=["GET /pets/{id}", "count"], prefix="pets_")])
    env.reset(seed=0)
    assert [s["function"]["name"] for s in env.schemas] == ["double", "pets_getPet", "pets_count"]
    assert results(env.step(call("double", x=4) + call("pets_count"))[4]) == ["8", "1"]
    env.close()


def test_the_document_that_a_web_framework_serves() -> None:
    pytest.importorskip("fastapi")
    import uvicorn
    from openapi_app import app

    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    served = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical"))
    thread = threading.Thread(target=served.run, daemon=True)
    thread.start()
    assert eventually(lambda: served.started)
    env = make_env(OpenAPI(f"http://127.0.0.1:{port}/openapi.json"))
    env.reset(seed=0)
    (schema,) = env.schemas
    name = schema["function"]["name"]
    assert schema["function"]["description"].splitlines() == ["Place Order", "Place an order."]
    assert result(env, call(name, shop="1", lines=[{"item": "tea", "count": 2}, {"item": "milk"}], urgent=True)) == (
        'HTTP 201 Created\n{"items": 3, "dry": false, "urgent": true}'
    )
    info = env.step(call(name, shop=2, lines=[]) + call(name, shop=1, lines=[{"item": "tea", "count": 0}]))[4]
    assert info["call_statuses"] == ["tool_error", "wrong_type"]
    assert "HTTP 404 Not Found" in results(info)[0]
    env.close()
    served.should_exit = True
    thread.join()


def test_the_examples_of_the_documentation_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from pets_server import serving as serving_pets

    blocks = re.findall(r"```python openapi\n(.*?)```", (ROOT / "docs" / "tools.md").read_text(), re.S)
    assert blocks
    for code in blocks:
        exec(code, {"__name__": "example", "serving": serving_pets})
