"""JSON of any form in the place of any value of a reply: a turn, or a failure that costs its row alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from server_fixtures import Answer, recorded, scripted
from test_server_chat import call, completion

from toolstep.agents import SamplingParams
from toolstep.agents.server import ChatAgent
from toolstep.agents.server.client import Client
from toolstep.agents.server.dialect import Served
from toolstep.agents.server.engine import ServerEngine
from toolstep.agents.server.llamacpp import LlamaCpp
from toolstep.agents.server.sglang import SGLang
from toolstep.agents.server.vllm import VLLM
from toolstep.envs.openai_messages import read_message, write_observation
from toolstep.envs.types import Message

STOP = 257
LONG = "9" * 5000  # Python makes no number of so many digits
ODD = (
    *(None, True, 0, -1, 1.5, 2**40, 2**70, float("nan"), float("-inf")),
    *("", "x", LONG, "\u00b2", "\ud800", f"token_id:{LONG}", f"token_id:{2**40}"),
    *([], [[]], [None], [1], {}, {"a": 1}, [{}]),
)
TOLD = [{"id": i, "logprob": p, "prob": 0.5} for i, p in ((11, -0.75), (12, -1.25), (STOP, -0.125))]
LLAMA = {"tokens": [11, 12, STOP], "stop_type": "eos", "completion_probabilities": TOLD, "timings": {"cache_n": 2}}
# What llama.cpp says when it is asked for the second id, which it left out.
LEFT_OUT = {**LLAMA, "completion_probabilities": [TOLD[0], TOLD[2]]}
ASKED = {"completion_probabilities": [{"top_logprobs": [{"id": 12, "logprob": -0.5}, {"id": 7, "logprob": -1.5}]}]}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in `value`, its own first."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from places(one, (*path, key))


def changed(reply: Any) -> Iterator[Any]:
    """The reply with each odd value in each place."""
    for path in places(reply):
        for odd in ODD:
            whole = at = {"": copy.deepcopy(reply)}
            for key in ("", *path)[:-1]:
                at = at[key]
            at[("", *path)[-1]] = odd
            yield whole[""]


def replying(client: Client, *replies: Any) -> None:
    """Let the client have these replies without a socket, one after the other and from the first again."""
    count = 0

    async def send(path: str, body: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return copy.deepcopy(replies[(count - 1) % len(replies)])

    client.send = send  # type: ignore[method-assign]


@pytest.mark.parametrize("sampling", [SamplingParams(max_new_tokens=8), SamplingParams(top_k=9, max_new_tokens=8)])
@pytest.mark.parametrize(
    ("dialect", "first", "odd"),
    [
        (VLLM, [], recorded("vllm_completion")),
        (VLLM, [], recorded("vllm_completion_as_ids")),
        (SGLang, [], recorded("sglang_generate")),
        (LlamaCpp, [], LLAMA),
        (LlamaCpp, [LEFT_OUT], ASKED),
    ],
)
def test_any_json_of_a_token_server_is_a_turn_or_costs_its_row(dialect, first, odd, sampling):
    client = Client("http://127.0.0.1:9")
    engine = ServerEngine(client, dialect(Served("served-name", 64, slots=1)), 64, "processed")
    failures = turns = 0
    for reply in (odd, *changed(odd)):
        replying(client, *first, reply)
        engine.start(0, 1)
        engine.submit(0, [1, 2, 3], sampling, [STOP])
        while not (done := engine.step()):
            pass
        turn = done[0].completion
        turns += 1
        failures += turn.finish_reason == "abort"
        assert bool(turn.error) == (turn.finish_reason == "abort"), reply
        assert len(turn.error) < 500
        assert turns > 1 or turn.token_ids.tolist() == [11, 12, STOP]
        assert len(turn.logprobs) == len(turn.token_ids)
        assert np.isfinite(turn.logprobs).all(), reply
        assert (turn.logprobs <= 0).all(), reply
        assert engine.context(0).tolist() == [1, 2, 3, *turn.token_ids] or turn.error
    assert 0 < failures < turns
    assert client.counts()["failed"] == {"bad_reply": failures}
    assert min(engine.stats.shared, engine.stats.fed) >= 0
    client.close()


def test_any_json_of_a_text_api_is_a_turn_or_costs_its_row():
    usual = completion(None, [call("c1", '{"a": 1, "b": 1}'), call("c2", "{}")]).body
    with scripted(lambda got: Answer({"data": []})) as server:
        agent = ChatAgent(f"m@{server.url}")
    question = write_observation([Message("user", "hello")], [], 1000)
    failures = turns = 0
    for reply in (usual, *changed(usual)):
        replying(agent.client, reply)
        agent.start(0, 1)
        turn = agent.reply([0], [question])[0]
        turns += 1
        failures += bool(turn.error)
        assert len(turn.error) < 500
        if not turn.error:
            made, _ = read_message(turn.text)
            assert turns > 1 or len(made.calls) == 2
            # What it said goes back to it with the next turn, whatever it was.
            assert agent.reply([0], [question])[0].error == ""
    assert 0 < failures < turns
    counts = agent.counts()
    assert counts["failed"] == {"bad_reply": failures}
    assert counts["prompt_tokens"] >= 20
    assert json.dumps(counts)
    agent.close()
