"""`tool_choice` that forces a call, of a model that knows nothing of tools; and bodies that are too long."""

from __future__ import annotations

import http.client
import importlib.util
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import serve_fixtures as sf
from tiny import tiny_model, tiny_tokenizer

from toolstep.envs.chat import ChatTemplate
from toolstep.rollout.serve import body
from toolstep.rollout.serve.errors import BadRequest, Unsupported
from toolstep.rollout.serve.forced import ForcedCalls

needs_grammars = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None,
    reason="needs the extra `constrain` (pip install 'toolstep[constrain]')",
)
PAINT = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "blue"]}},
            "required": ["colour"],
        },
    },
}
PAINTED = {"type": "function", "function": {"name": "paint"}}
ODD = {"type": "function", "function": {"name": "x", "parameters": {"type": 1}}}


@pytest.fixture(scope="module")
def server() -> Iterator[sf.Running]:
    with sf.serving(tiny_model(258), tiny_tokenizer()) as running:
        yield running


def ask(server: sf.Running, **options: Any) -> Any:
    return server.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hello"}],
        **{"tools": [sf.ADD, PAINT], "max_tokens": 400, "temperature": 1.0, "seed": 3, "n": 16, **options},
    )


def right(call: Any) -> bool:
    """By the tool's schema."""
    arguments = json.loads(call.function.arguments)
    if call.function.name == "paint":
        return arguments in ({"colour": "red"}, {"colour": "blue"})
    return call.function.name == "add" and all(k in "ab" and int(v) == v for k, v in arguments.items())


@needs_grammars
def test_a_required_call_is_made_and_is_right_whatever_the_model_knows(server: sf.Running) -> None:
    assert not any(c.message.tool_calls for c in ask(server, tool_choice="auto").choices)
    choices = ask(server, tool_choice="required").choices
    ended = [c for c in choices if c.finish_reason == "tool_calls"]
    assert len(ended) >= 8
    assert {c.finish_reason for c in choices} <= {"tool_calls", "length"}
    assert all(c.message.tool_calls and all(map(right, c.message.tool_calls)) and not c.message.content for c in ended)
    assert {call.function.name for c in ended for call in c.message.tool_calls} == {"add", "paint"}


@needs_grammars
def test_a_tool_is_called_by_name_streamed_or_whole(server: sf.Running) -> None:
    choices = ask(server, tool_choice=PAINTED).choices
    ended = [c for c in choices if c.finish_reason == "tool_calls"]
    assert len(ended) >= 8
    assert {call.function.name for c in ended for call in c.message.tool_calls} == {"paint"}
    streamed: dict[int, list[str]] = {}
    for chunk in ask(server, tool_choice=PAINTED, stream=True):
        for choice in chunk.choices:
            for call in choice.delta.tool_calls or ():
                streamed.setdefault(choice.index, []).append(call.function.arguments)
    assert streamed == {
        c.index: [call.function.arguments for call in c.message.tool_calls] for c in choices if c.message.tool_calls
    }


@needs_grammars
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tool_choice": PAINTED, "tools": [sf.ADD]}, "tools has none of the name 'paint'"),
        ({"tool_choice": "required", "tools": []}, "there are no tools"),
        ({"tool_choice": "required", "tools": [ODD]}, "cannot be made a grammar"),
    ],
)
def test_a_call_that_cannot_be_forced_is_refused(server: sf.Running, options: dict[str, Any], said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        ask(server, **options)


@needs_grammars
def test_what_a_template_cannot_have_forced_is_said() -> None:
    tokenizer = tiny_tokenizer()
    forced = ForcedCalls(ChatTemplate(tokenizer), 258)
    with pytest.raises(Unsupported, match="the prompt opens a thought"):
        forced.constrain(None, [sf.ADD], "<|im_start|>assistant\n<think>\n")
    with pytest.raises(BadRequest, match="there are no tools"):
        forced.constrain(None, [], "")
    pythonic = ForcedCalls(ChatTemplate(tokenizer, tool_call_format="pythonic"), 258)
    with pytest.raises(Unsupported, match="calls of the format 'pythonic' are no JSON between tags"):
        pythonic.constrain(None, [sf.ADD], "")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_not_read_to_its_end(
    server: sf.Running, monkeypatch: pytest.MonkeyPatch, chunked: bool
) -> None:
    monkeypatch.setattr(body, "MOST", 100_000)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=sf.PATIENCE)
    text = json.dumps({"prompt": "x" * 100_000, "max_tokens": 1}).encode()
    data: Any = iter([text[:50_000], text[50_000:]]) if chunked else text
    connection.request("POST", "/v1/completions", data, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    assert reply.status == 413
    assert "the body has more than 100000 bytes" in json.loads(reply.read())["error"]["message"]
    connection.close()
    short = json.dumps({"prompt": "x" * 100, "max_tokens": 1}).encode()
    connection.request("POST", "/v1/completions", short, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()
