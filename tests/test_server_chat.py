"""OpenAI-compatible chat APIs: tools, parallel calls and their ids, refusals, failures; and the env's chat view."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from server_fixtures import Answer, Got, nobody, scripted
from typer.testing import CliRunner

from toolstep.agents import OracleAgent, SamplingParams, make_agent
from toolstep.agents.base import NotTrainable, TextAgent, check_trainable
from toolstep.agents.server import ChatAgent, ServerError
from toolstep.agents.server.retry import Retries
from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.openai_messages import read_message, write_observation
from toolstep.envs.types import CallStatus, Message
from toolstep.rollout.cli import app
from toolstep.rollout.collect import collect, group_specs

CHAT = "/chat/completions"
ONCE = Retries(0, 0.0, 0.0)


def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def call(id_: str, arguments: Any, name: str = "add") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(content: str | None = None, calls: Any = None, finish: str | None = None, **more: Any) -> Answer:
    """In the form of OpenAI's API reference."""
    message = {"role": "assistant", "content": content, "refusal": None, "annotations": [], **more}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None}
    choice["finish_reason"] = finish or ("tool_calls" if calls else "stop")
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    return Answer({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": usage})


class Api:
    """Answers by what the last message is; `fails` has the answer to the request of that number instead."""

    def __init__(self, *turns: Answer, fails: dict[int, Answer] | None = None):
        self.turns, self.fails, self.count = turns, fails or {}, 0

    def __call__(self, got: Got) -> Answer:
        if got.path == "/models":
            return Answer({"object": "list", "data": [{"id": "other"}]})
        assert got.path == CHAT
        self.count += 1
        said = sum(m["role"] == "assistant" for m in got.body["messages"])
        return self.fails.get(self.count) or self.turns[min(said, len(self.turns) - 1)]


@pytest.fixture
def play() -> Iterator[Any]:
    """(trajectories, server, agent) of `episodes` episodes against an API."""

    def one(api: Any, episodes: int = 1, rows: int = 1, **options: Any) -> Any:
        sampling = options.pop("sampling", SamplingParams(temperature=0.0, max_new_tokens=50))
        with scripted(api) as server:
            agent = ChatAgent(f"some/model@{server.url}", sampling=sampling, retries=options.pop("retries", ONCE))
            options = {"tools": [add], **agent.env_kwargs, **options}
            envs = ToolUseVectorEnv(rows, [{"prompt": "2 + 3, and 4 + 5?", "answer": "5 and 9"}], **options)
            try:
                done = collect(envs, agent, group_specs(episodes, 1, 0), seed=0)
            finally:
                envs.close()
                agent.close()
        return done, server, agent

    return one


def test_parallel_calls_are_run_and_each_result_answers_the_apis_own_id(play):
    calls = [call("call_Zq", '{"a": 2, "b": 3}'), call("call_Ab", '{"a": 4, "b": 5}')]
    done, server, agent = play(Api(completion(None, calls), completion("5 and 9")))
    assert done[0].metrics["success"] == 1.0
    assert (done[0].status, done[0].turns, done[0].stop_reason) == ("ok", 2, "answered")
    assert done[0].metrics["calls/ok"] == 2
    first, second = (g.body for g in server.of(CHAT))
    assert [m["role"] for m in first["messages"]] == ["user"]
    assert first["tools"][0]["function"]["name"] == "add"
    assert first["temperature"] == 0.0
    assert first["max_tokens"] == 50
    assert "top_p" not in first
    assert first["stream"] is False
    assert first["seed"] != second["seed"]
    assert second["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_Zq", "content": "5"},
        {"role": "tool", "tool_call_id": "call_Ab", "content": "9"},
    ]
    counts = agent.counts()
    assert (counts["requests"], counts["prompt_tokens"], counts["completion_tokens"]) == (2, 40, 10)
    assert agent.describe() == {"url": server.url, "dialect": "openai", "model": "some/model", "trainable": False}


def test_calls_that_are_none_get_their_errors_and_the_api_its_words_back(play):
    bad = [
        call("c1", '{"a": 2'),
        call("c2", "[1]"),
        call("c3", "{}", name="subtract"),
        call("c4", '{"a": "x", "b": 1}'),
        {"id": "c5", "type": "function", "function": {"arguments": "{}"}},
        call("c6", {"a": 1, "b": 1}),
    ]
    done, server, _ = play(Api(completion("", bad), completion("no")))
    metrics = done[0].metrics
    for status in ("invalid_json", "arguments_not_object", "unknown_tool", "wrong_type", "missing_name", "ok"):
        assert metrics[f"calls/{status}"] == 1, status
    told = server.of(CHAT)[1].body["messages"][1:]
    assert [c["function"]["arguments"] for c in told[0]["tool_calls"]][:2] == ['{"a": 2', "[1]"]
    assert [m["tool_call_id"] for m in told[1:]] == ["c1", "c2", "c3", "c4", "c5", "c6"]
    assert told[-1]["content"] == "2"


def test_more_calls_than_are_looked_at_are_all_answered(play):
    many = [call(f"c{n}", '{"a": 1, "b": 1}') for n in range(200)]
    done, server, _ = play(Api(completion(None, many), completion("done")))
    told = server.of(CHAT)[1].body["messages"][2:]
    assert [m["tool_call_id"] for m in told] == [f"c{n}" for n in range(200)]
    assert "were not looked at" in told[-1]["content"]
    assert done[0].status == "ok"


def test_text_that_looks_like_a_call_is_text(play):
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    done, server, _ = play(Api(completion(text)))
    assert len(server.of(CHAT)) == 1
    assert done[0].messages[-1]["content"] == text
    assert not [k for k in done[0].metrics if k.startswith("calls/")]


def test_a_refusal_is_an_answer_and_is_counted(play):
    done, _, agent = play(Api(completion(None, refusal="I can't help with that.")))
    assert (done[0].status, done[0].stop_reason) == ("ok", "answered")
    assert done[0].messages[-1]["content"] == "I can't help with that."
    assert agent.counts()["refusals"] == 1


def test_a_turn_that_was_cut_runs_no_calls(play):
    done, _, _ = play(Api(completion(None, [call("c1", '{"a": 1, "b": 1}')], finish="length")))
    assert done[0].stop_reason == "cut_turn"
    assert done[0].metrics["truncated_responses"] == 1
    assert done[0].metrics["calls/truncated"] == 1


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer({"error": {"message": "The model `some/model` does not exist"}}, 404), "does not exist"),
        (Answer({"error": {"message": "bad key"}}, 401), "401: bad key; the key is missing or wrong"),
        (Answer({"error": {"message": "try later"}}, 503), "503: try later"),
        (Answer({"choices": []}), r"no choices\[0\].message"),
        (completion("x", finish="content_filter"), "finish_reason is 'content_filter'"),
        (completion([1]), "expected text, found list"),  # type: ignore[arg-type]
        (Answer({"choices": 1}, cut=3), "no JSON, or cut|the reply was cut"),
    ],
)
def test_a_failure_costs_its_row_and_no_other(play, answer, message):
    api = Api(completion("5 and 9"), fails={2: answer})
    done, _, agent = play(api, episodes=4, rows=1)
    assert [t.status for t in done] == ["ok", "agent_error", "ok", "ok"]
    assert re.search(message, done[1].error), done[1].error
    assert sum(agent.counts()["failed"].values()) == 1
    assert [t.metrics["success"] for t in done] == [1.0, 0.0, 1.0, 1.0]


def test_what_may_pass_is_asked_again(play):
    api = Api(completion("5 and 9"), fails={1: Answer({}, 429), 2: Answer({}, 500)})
    done, server, agent = play(api, retries=Retries(3, 0.001, 0.001))
    assert done[0].metrics["success"] == 1.0
    assert agent.counts()["retried"] == {"429": 1, "500": 1}
    assert len({json.dumps(g.body, sort_keys=True) for g in server.of(CHAT)}) == 1


def test_only_rows_that_need_a_turn_cost_a_request(play):
    """Three episodes in two rows: the row that is over while the other goes on is not asked."""
    _, server, _ = play(Api(completion("5 and 9")), episodes=3, rows=2)
    assert len(server.of(CHAT)) == 3


def test_temperature_1_is_left_to_the_api(play):
    _, server, _ = play(Api(completion("x")), sampling=SamplingParams(max_new_tokens=7))
    assert "temperature" not in server.of(CHAT)[0].body


def test_nothing_can_be_trained_on_it():
    with scripted(Api(completion("x"))) as server:
        agent = make_agent(f"openai:m@{server.url}")
        assert isinstance(agent, TextAgent)
        with pytest.raises(NotTrainable, match="for evaluation only: a text API tells neither the ids"):
            check_trainable(agent)
        agent.close()
        line = ["rollout", "calculator", "--agent", f"openai:m@{server.url}", "--out", "x.npz", "--temperature", "1"]
        done = CliRunner().invoke(app, line)
        assert done.exit_code == 2
        assert "samples no token ids" in done.stderr
        with pytest.raises(ValueError, match="takes temperature, top_p and max_new_tokens"):
            ChatAgent(f"m@{server.url}", sampling=SamplingParams(top_k=3))


def test_openais_own_key_is_for_openai_alone(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("MINE", "sk-mine")
    with scripted(Api(completion("x"))) as server:
        ChatAgent(f"m@{server.url}").close()
        ChatAgent(f"m@{server.url}?key_env=MINE").close()
        assert [g.headers.get("authorization") for g in server.of("/models")] == [None, "Bearer sk-mine"]


def test_nobody_there_or_a_wrong_key_is_told_before_anything_is_played():
    def closed(got: Got) -> Answer:
        return Answer({"error": {"message": "no"}}, 401)

    with scripted(closed) as server, pytest.raises(ServerError, match="the key is missing or wrong"):
        ChatAgent(f"m@{server.url}", retries=ONCE)
    with nobody() as url, pytest.raises(ServerError, match="cannot connect"):
        ChatAgent(f"m@{url}", retries=ONCE)
    with scripted(lambda got: Answer({}, 404)) as server:
        ChatAgent(f"m@{server.url}", retries=ONCE).close()  # many have no list of models


def test_predict_is_stable_baselines3s():
    with scripted(Api(completion("hi"))) as server:
        agent = ChatAgent(f"m@{server.url}", retries=ONCE)
        seen = write_observation([Message("user", "hello")], [], 10_000)
        action, state = agent.predict(seen)
        assert json.loads(action)["content"] == "hi"
        (one, two), _ = agent.predict((seen, seen), state, np.array([True, True]))
        assert one == two == action
        agent.close()


# ---------------------------------------------------------------------------------------------------- the env's view
def test_the_oracle_plays_in_the_chat_view():
    envs = ToolUseVectorEnv(2, "calculator", view="chat")
    try:
        done = collect(envs, OracleAgent(), group_specs(4, 1, 0), seed=0)
    finally:
        envs.close()
    assert [t.metrics["success"] for t in done] == [1.0] * 4
    assert sum(t.metrics.get("calls/ok", 0) for t in done) > 0


def test_any_text_is_a_turn():
    for text in ("", "hello", "[1]", '{"content": 3}', '{"tool_calls": 7}', "[" * 100_000, '{"content": "\\ud800"}'):
        turn, cut = read_message(text)
        assert (turn.calls, cut) == ((), False)
    assert read_message('{"tool_calls": [1, null]}')[0].calls[1].status is CallStatus.MISSING_NAME
    envs = ToolUseVectorEnv(1, "calculator", view="chat")
    try:
        envs.reset(seed=0)
        action = '{"tool_calls": [{"function": {"name": "\\ud800", "arguments": "' + "[" * 5000 + '"}}]}'
        observation, *_ = envs.step((action,))
        shown = json.loads(observation[0])
        assert shown["messages"][0]["role"] == "tool"
        assert shown["tools"]
        assert envs.observation_space.contains(observation)
    finally:
        envs.close()


def test_an_observation_that_is_too_long_is_cut_with_a_word():
    text = write_observation([Message("tool", "x" * 5000), Message("user", "y" * 50)], [], 1000)
    assert len(text) <= 1000
    first, second = json.loads(text)["messages"]
    assert first["content"].endswith("[cut: the message has 5000 characters]")
    assert second["content"] == "y" * 50
