"""What each option and each parameter becomes in a request, and what is counted, without a model behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from server_fixtures import PATIENCE, Answer, scripted
from test_server_chat import Api, completion

from toolstep.agents import SamplingParams
from toolstep.agents.server import ChatAgent
from toolstep.agents.server.address import openai_address, server_address
from toolstep.agents.server.client import Client
from toolstep.agents.server.connect import make_client
from toolstep.agents.server.dialect import Ask, Served
from toolstep.agents.server.engine import ServerEngine
from toolstep.agents.server.llamacpp import LlamaCpp
from toolstep.agents.server.logprobs import GREEDY, measure, tells_sampled
from toolstep.agents.server.retry import Retries
from toolstep.agents.server.seeds import turn_seed
from toolstep.agents.server.sglang import SGLang
from toolstep.agents.server.vllm import VLLM
from toolstep.envs.openai_messages import write_observation
from toolstep.envs.types import Message

SERVED = Served("served-name", 64, slots=2)
WARM = SamplingParams(temperature=0.6, top_k=7, top_p=0.8, min_p=0.05)
COLD = SamplingParams(temperature=0.0, top_k=7, top_p=0.8, min_p=0.05)


def sampling_of(dialect: Any, sampling: SamplingParams) -> tuple[float, ...]:
    body = dialect(SERVED).request(Ask([1], sampling, 8)).body
    body = body.get("sampling_params", body)
    return tuple(body[name] for name in ("temperature", "top_k", "top_p", "min_p"))


def test_every_sampling_parameter_is_sent_as_it_is_and_a_greedy_turn_has_none():
    assert sampling_of(VLLM, WARM) == sampling_of(SGLang, WARM) == sampling_of(LlamaCpp, WARM) == (0.6, 7, 0.8, 0.05)
    assert sampling_of(VLLM, COLD) == (0.0, 0, 1.0, 0.0)
    assert sampling_of(SGLang, COLD) == (0.0, -1, 1.0, 0.0)
    assert LlamaCpp(SERVED).request(Ask([1], COLD, 8)).body["samplers"] == ["temperature"]


def test_llama_cpp_has_a_slot_for_each_row_as_far_as_there_are_slots():
    slots = [LlamaCpp(SERVED).request(Ask([1], WARM, 8, slot=row)).body["id_slot"] for row in range(4)]
    assert slots == [0, 1, -1, -1]


def test_options_of_an_address_are_those_of_its_client():
    made = make_client(server_address("http://host?concurrency=3&timeout=4&deadline=5&retries=2"))
    assert (made.concurrency, made.timeout, made.deadline, made.retries.most) == (3, 4, 5, 2)
    assert make_client(openai_address("m@http://host")).retries == Retries()


def test_seeds_are_numbers_that_every_server_takes():
    seeds = {turn_seed(seed, turn) for seed in range(20) for turn in range(20)}
    assert len(seeds) == 400
    assert 0 <= min(seeds) < max(seeds) < 2**31


# ---------------------------------------------------------------------------------------------------------- the client
def test_the_jitter_of_a_request_is_that_of_its_seed():
    asked = []

    class Watched(Retries):
        def delay(self, attempt: int, seed: int, error: Any) -> float:
            asked.append((attempt, seed, error.retry_after))
            return 0.0

    with scripted(lambda got: Answer({}, 429, {"retry-after": "1.5"})) as server:
        client = Client(server.url, retries=Watched(2))
        with pytest.raises(Exception, match="429"):
            client.post("/x", {}, seed=77).result(PATIENCE)
        client.close()
    assert asked == [(0, 77, 1.5), (1, 77, 1.5), (2, 77, 1.5)]


def test_a_deadline_is_one_for_all_attempts_and_its_seconds_are_told():
    class Hanging(Client):
        async def _once(self, *args: Any) -> Any:
            await asyncio.sleep(PATIENCE)

    client = Hanging("http://127.0.0.1:9", timeout=0.1, deadline=0.25, retries=Retries(9, 0.0, 0.0))
    with pytest.raises(Exception, match=r"no answer in 0\.\d+ s \(after 3 attempts\)"):
        client.post("/x", {}).result(PATIENCE)
    client.close()
    client = Hanging("http://127.0.0.1:9", timeout=PATIENCE, deadline=0.05)
    with pytest.raises(Exception, match=r"no answer in 0\.05 s$"):
        client.post("/x", {}).result(PATIENCE)
    client.close()


def test_headers_of_a_request_go_out_and_one_that_is_too_long_is_counted_once(monkeypatch):
    monkeypatch.setattr("toolstep.agents.server.client._MOST_BYTES", 100)
    with scripted(lambda got: Answer({"x": "y" * 200})) as server:
        client = Client(server.url)
        engine = ServerEngine(client, VLLM(SERVED), 64, "raw")
        engine.start(0, 1)
        engine.submit(0, [1], WARM)
        while not (done := engine.step()):
            pass
        assert "more than 100 bytes" in done[0].completion.error
        assert client.counts()["failed"] == {"too_long": 1}
        assert server.got[0].headers["x-session-id"]
        client.close()


# ---------------------------------------------------------------------------------------------------------- the engine
def test_a_turn_that_was_cancelled_is_asked_again_as_it_was_and_within_the_context():
    sent = []
    client = Client("http://127.0.0.1:9")

    async def send(path: str, body: Any, **options: Any) -> Any:
        sent.append(body)
        await asyncio.sleep(PATIENCE)

    client.send = send  # type: ignore[method-assign]
    engine = ServerEngine(client, VLLM(SERVED), 64, "raw")
    engine.start(0, 1)
    for _ in range(2):
        ticket = engine.submit(0, range(60), SamplingParams(max_new_tokens=50))
        under_way = engine._turns[ticket].future
        while len(sent) < _ + 1:
            engine.step()
        engine.cancel(ticket)
        assert under_way.cancelled()
        assert engine.context(0).size == 0
    assert sent[0] == sent[1]
    assert sent[0]["max_tokens"] == 4
    client.close()


# --------------------------------------------------------------------------------------------------- log-probabilities
def test_a_server_that_knows_one_kind_of_truncation_tells_no_processed_logprobs():
    def of_top_k(params: SamplingParams) -> float:
        return -1.5 if params == GREEDY or params.top_p < 1 else -0.001

    assert measure(of_top_k) == "tempered"
    assert measure(lambda params: -1.5 if params == GREEDY else -0.001) == "processed"
    assert measure(lambda params: -1.5) == "raw"


@pytest.mark.parametrize("narrow", [{"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.7}])
def test_each_parameter_takes_a_turn_away_from_the_plain_model(narrow):
    sampling = SamplingParams(**narrow)
    told = [tells_sampled(VLLM(SERVED), mode, sampling) for mode in ("raw", "tempered", "processed")]
    assert told == [False, "temperature" in narrow, True]


# ------------------------------------------------------------------------------------------------------------ text APIs
def asked_for(query: str = "", **sampling: Any) -> dict[str, Any]:
    with scripted(Api(completion("hi"))) as server:
        agent = ChatAgent(f"m@{server.url}{query}", sampling=SamplingParams(**sampling))
        agent.start(0, 1)
        agent.reply([0], [write_observation([Message("user", "hello")], [], 1000)])
        agent.close()
        return dict(server.of("/chat/completions")[0].body)


def test_what_a_text_api_is_asked_for(monkeypatch):
    body = asked_for(top_p=0.5, max_new_tokens=9)
    assert (body["top_p"], body["max_tokens"]) == (0.5, 9)
    assert body["seed"] == turn_seed(1, 0)
    assert "seed" not in asked_for("?seed=off")
    monkeypatch.setattr("toolstep.agents.server.chat.OPENAI_URL", "http://127.0.0.1/v1")
    body = asked_for(max_new_tokens=9)
    assert body["max_completion_tokens"] == 9
    assert "max_tokens" not in body


KEY = "sk-test-0123456789abcdef"


def test_neither_a_key_nor_a_part_of_one_is_in_what_is_told_of_a_turn():
    """A server repeats it where its message is cut, and within a reply that is none."""
    answers = [
        Answer({"error": {"message": "x" * 390 + KEY}}, 403),
        Answer(("x" * 390 + KEY).encode(), 403),
        Answer({"choices": [{"token_ids": [11], "finish_reason": KEY}]}),
    ]
    with scripted(lambda got: answers[got.body["prompt"][0]]) as server:
        client = Client(server.url, key=KEY, retries=Retries(0))
        engine = ServerEngine(client, VLLM(SERVED), 64, None)
        for row in range(3):
            engine.start(row, 1)
            engine.submit(row, [row], WARM)
            while not (done := engine.step()):
                pass
            assert "**" in done[0].completion.error
            assert KEY[:5] not in done[0].completion.error
        client.close()
