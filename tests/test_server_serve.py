"""The client against our own `toolstep serve`, which speaks vLLM's dialect: over a real socket, with a real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serve_fixtures as sf
from server_fixtures import soon
from tiny import tiny_model, tiny_tokenizer

from toolstep.agents import Engine, LLMAgent, SamplingParams, ServerAgent, load_model
from toolstep.agents.server.retry import Retries
from toolstep.agents.server.seeds import turn_seed
from toolstep.agents.shipped import model_source
from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.chat import load_tokenizer
from toolstep.rollout.collect import collect, group_specs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def running() -> Iterator[sf.Running]:
    tokenizer = tiny_tokenizer()
    with sf.serving(tiny_model(len(tokenizer)), tokenizer, max_context=512) as server:
        yield server


@pytest.fixture
def make(folder: Path) -> Iterator[Any]:
    made: list[ServerAgent] = []

    def one(server: sf.Running, sampling: SamplingParams, query: str = "", **options: Any) -> ServerAgent:
        made.append(ServerAgent(f"{server.url}?tokenizer={folder}{query}", sampling=sampling, **options))
        return made[-1]

    yield one
    for agent in made:
        agent.close()


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(tiny_model(len(tiny_tokenizer())), verify=False, max_context=512)


def ids(text: str) -> np.ndarray:
    return np.array(tiny_tokenizer()(text)["input_ids"], np.int64)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0, max_new_tokens=24),
        SamplingParams(max_new_tokens=24),
        SamplingParams(temperature=0.6, top_k=30, top_p=0.9, min_p=0.005, max_new_tokens=24),
    ],
)
def test_turns_are_the_engines(running, make, engine, sampling):
    """With seeds, not only the greedy ones: our server draws from the stream of the request's seed."""
    agent = make(running, sampling)
    assert agent.describe()["dialect"] == "vllm"
    assert agent.engine.mode == "processed"  # measured
    assert agent.untrainable is None
    assert agent.max_context == 512
    agent.start(0, 5)
    contexts = ids("hello there")
    for turn in range(3):
        sampled = agent.act([0], [contexts if turn == 0 else ids(" go on")])[0]
        whole = agent.engine.context(0)
        before = whole[: len(whole) - len(sampled.token_ids)]
        engine.start(9, turn_seed(5, turn))
        engine.extend(9, before)
        expected = engine.generate([9], sampling, agent.stop_ids)[0]
        assert sampled.token_ids.tolist() == expected.token_ids.tolist()
        assert sampled.finish_reason == expected.finish_reason
        np.testing.assert_allclose(sampled.logprobs, expected.logprobs, atol=1e-5)
        if sampling.temperature in (0, 1):
            np.testing.assert_allclose(sampled.model_logprobs, expected.model_logprobs, atol=1e-5)
        else:
            assert not sampled.model_logprobs.any()  # not told
        assert sampled.weight_version == 0


def test_a_model_that_calls_tools_plays_its_episodes_over_http():
    """toolstep-tiny, which has learnt to call the calculator: the same episodes as in this process."""
    sampling = SamplingParams(temperature=0.0, max_new_tokens=64)
    tokenizer, specs = load_tokenizer(model_source("tiny-sft")), group_specs(4, 1, 0)
    with sf.serving(load_model("tiny-sft", "cpu"), tokenizer, name=model_source("tiny-sft")) as server:
        served = ServerAgent(server.url, sampling=sampling)  # the server's name for its model is where it is
        local = LLMAgent.load("tiny-sft", device="cpu", sampling=sampling)
        runs = []
        for agent in (served, local):
            envs = ToolUseVectorEnv(2, "calculator", split="test", **agent.env_kwargs)
            try:
                runs.append(collect(envs, agent, specs, seed=0))
            finally:
                envs.close()
        served.close()
    assert sum(t.metrics.get("calls/ok", 0) for t in runs[0]) > 0
    for one, two in zip(*runs, strict=True):
        assert one.status == "ok"
        assert one.has_logprobs
        assert one.token_ids.tolist() == two.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-4)


def test_an_overloaded_server_is_asked_again(make):
    tokenizer = tiny_tokenizer()
    with sf.serving(tiny_model(len(tokenizer)), tokenizer, max_running=1, max_queue=0) as server:
        agent = make(server, SamplingParams(temperature=0.0, max_new_tokens=30), retries=Patient(100_000))
        for row in range(4):
            agent.start(row, row)
        turns = agent.act(range(4), [ids("hello")] * 4)
        assert {t.finish_reason for t in turns} <= {"stop", "length"}
        assert len({tuple(t.token_ids) for t in turns}) == 1
        counts = agent.counts()
        assert counts["retried"].get("429", 0) > 0
        assert counts["failed"] == {}


class Patient(Retries):
    """Does not wait for as long as Retry-After says, so that the test is quick."""

    def delay(self, attempt: int, seed: int, error: Any) -> float:
        return 0.02


def test_a_cancelled_turn_frees_its_place_at_the_server(running, make):
    agent = make(running, SamplingParams(max_new_tokens=400))
    agent.stop_ids = frozenset()
    agent.start(0, 1)
    ticket = agent.submit(0, ids("hello"))
    soon(lambda: running.metric("running") == 1)
    agent.cancel(ticket)
    soon(lambda: running.metric("running") == 0)
    assert not agent.busy
    assert agent.engine.context(0).size == 0


def test_a_server_that_dies_costs_its_rows_and_nothing_else(make, folder):
    tokenizer = tiny_tokenizer()
    specs = group_specs(6, 1, 3)
    with sf.serving(tiny_model(len(tokenizer)), tokenizer) as server:
        sampling = SamplingParams(temperature=0.0, max_new_tokens=8)
        agent = make(server, sampling, retries=Retries(1, 0.01, 0.01))
        envs = ToolUseVectorEnv(1, "calculator", **agent.env_kwargs)
        seen: list[Any] = []

        def finished(trajectory: Any) -> None:
            seen.append(trajectory)
            if len(seen) == 2:
                server.served.worker.drain(0)  # from now on it answers 503

        try:
            done = collect(envs, agent, specs, seed=1, on_episode=finished)
        finally:
            envs.close()
    assert [t.status for t in done] == ["ok", "ok", *["agent_error"] * 4]
    assert "503" in done[-1].error
    assert agent.counts()["failed"] == {"503": 4}
    assert agent.counts()["retried"] == {"503": 4}
