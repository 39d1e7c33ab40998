"""Recorded replies of vLLM and SGLang over a real socket: what is sent, what is read, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_fixtures import Answer, Got, recorded, scripted
from tiny import tiny_tokenizer

from toolstep.agents import SamplingParams, ServerAgent, ServerError
from toolstep.agents.base import NotTrainable
from toolstep.agents.server.retry import Retries
from toolstep.agents.server.sglang import SGLang
from toolstep.rollout.generator import RolloutGenerator

STOP = 257  # "<|im_end|>" of the tiny tokenizer
ONCE = Retries(0, 0.0, 0.0)
COMPLETIONS, GENERATE = "/v1/completions", "/generate"
Change = Callable[[Any], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer().save_pretrained(folder)
    return folder


def logprob(body: dict[str, Any], mode: str) -> float:
    """What a server of that mode tells of the most probable id, whose plain log-prob is -1.5."""
    sampling = body.get("sampling_params", body)
    narrow = sampling.get("top_p", 1.0) < 0.01 or sampling.get("top_k") == 1
    cold = 0 < sampling["temperature"] < 0.1
    certain = (cold and mode in ("tempered", "processed")) or (narrow and mode == "processed")
    return -0.001 if certain else -1.5


class VLLMServer:
    """Answers as vLLM does: the recorded completion for the real turns, one id where one is asked for."""

    dialect = "vllm"

    def __init__(self, mode: str = "raw", reply: str = "vllm_completion", change: Change | None = None):
        self.mode, self.reply, self.change = mode, reply, change

    def __call__(self, got: Got) -> Answer:
        if got.path == "/v1/models":
            return Answer(recorded("vllm_models"))
        assert got.path == COMPLETIONS
        out = recorded(self.reply)
        choice = out["choices"][0]
        if isinstance(got.body["prompt"], str):
            choice["prompt_token_ids"] = tiny_tokenizer()(got.body["prompt"])["input_ids"]
            return Answer(out)
        if "prompt_token_ids" in choice:
            choice["prompt_token_ids"] = got.body["prompt"]
        if got.body["max_tokens"] == 1:
            choice |= {"finish_reason": "length", "stop_reason": None}
            if "token_ids" in choice:
                choice["token_ids"] = [11]
            logprobs = choice["logprobs"]
            logprobs["tokens"], logprobs["token_logprobs"] = logprobs["tokens"][:1], [logprob(got.body, self.mode)]
        if self.change is not None:
            self.change(out)
        return Answer(out)


class SGLangServer:
    dialect = "sglang"

    def __init__(self, mode: str = "tempered", change: Change | None = None):
        self.mode, self.change = mode, change

    def __call__(self, got: Got) -> Answer:
        if got.path == "/v1/models":
            return Answer(recorded("sglang_models"))
        if got.path == "/model_info":
            return Answer({"error": "no such path"}, 404)  # an older one
        if got.path == "/get_model_info":
            return Answer(recorded("sglang_model_info"))
        if got.path == "/tokenize":
            return Answer({"tokens": tiny_tokenizer()(got.body["prompt"])["input_ids"], "count": 1})
        assert got.path == GENERATE
        out = recorded("sglang_generate")
        if got.body["sampling_params"]["max_new_tokens"] == 1:
            out["output_ids"] = [11]
            out["meta_info"]["output_token_logprobs"] = [[logprob(got.body, self.mode), 11, None]]
            out["meta_info"]["finish_reason"] = {"type": "length", "length": 1}
        if self.change is not None:
            self.change(out)
        return Answer(out)


@pytest.fixture
def connect(folder: Path) -> Iterator[Any]:
    """(agent, server) by a rule."""
    open_: list[Any] = []

    def one(rule: Any, query: str = "", **options: Any) -> tuple[ServerAgent, Any]:
        context = scripted(rule)
        server = context.__enter__()
        open_.append(lambda: context.__exit__(None, None, None))
        options.setdefault("retries", ONCE)
        agent = ServerAgent(f"{server.url}?tokenizer={folder}{query}", **options)
        open_.append(agent.close)
        return agent, server

    yield one
    for close in reversed(open_):
        close()


def turn(agent: ServerAgent, prompt: tuple[int, ...] = (1, 2, 3), row: int = 0, seed: int = 7) -> Any:
    agent.start(row, seed)
    return agent.act([row], [np.array(prompt)])[0]


# ---------------------------------------------------------------------------------------------- what is sent and read
def test_vllm_is_asked_for_ids_in_every_parameter_and_read(connect):
    agent, server = connect(VLLMServer(), sampling=SamplingParams(max_new_tokens=8))
    done = turn(agent)
    assert done.token_ids.tolist() == [11, 12, STOP]
    assert done.logprobs.tolist() == done.model_logprobs.tolist() == [-0.75, -1.25, -0.125]
    assert (done.finish_reason, done.weight_version) == ("stop", 0)
    assert agent.engine.stats.shared == 2
    got = server.of(COMPLETIONS)[-1]
    seed = got.body.pop("seed")
    assert 0 <= seed < 2**31
    assert got.body == {
        "model": "served-name",
        "prompt": [1, 2, 3],
        "max_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        # What is not sent, a server takes from the model's generation config.
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "stop_token_ids": [STOP],
        "skip_special_tokens": False,
        "return_token_ids": True,
        "logprobs": 0,
        "n": 1,
        "stream": False,
    }
    agent.act([0], [np.array([4])])
    last = server.of(COMPLETIONS)[-1]
    assert last.body["prompt"] == [1, 2, 3, 11, 12, STOP, 4]
    assert last.body["seed"] != seed
    assert last.headers["x-session-id"] == got.headers["x-session-id"] != ""
    turn(agent, row=1, seed=7)
    other = server.of(COMPLETIONS)[-1]
    assert other.headers["x-session-id"] != got.headers["x-session-id"]
    assert other.body["seed"] == seed  # the episode's seed decides, not the row
    assert agent.describe() == {
        "url": server.url,
        "dialect": "vllm",
        "model": "served-name",
        "tokenizer": agent.tokenizer,
        "tokenizer_checked": True,
        "max_context": 64,
        "logprobs_mode": "raw",
        "trainable": True,
    }


def test_an_older_vllm_tells_ids_in_its_tokens(connect):
    agent, _ = connect(VLLMServer(reply="vllm_completion_as_ids"))
    assert turn(agent).token_ids.tolist() == [11, 12, STOP]


def test_sglang_is_asked_for_ids_in_every_parameter_and_read(connect):
    agent, server = connect(SGLangServer(), sampling=SamplingParams(temperature=0.5, max_new_tokens=8))
    done = turn(agent)
    assert done.token_ids.tolist() == [11, 12, STOP]
    assert done.logprobs.tolist() == [-0.75, -1.25, -0.125]
    assert done.model_logprobs.tolist() == [0, 0, 0]  # told after temperature
    assert (done.finish_reason, done.weight_version, agent.weight_version) == ("stop", 4, 4)
    assert agent.untrainable is None
    assert agent.engine.stats.shared == 2
    got = server.of(GENERATE)[-1]
    assert got.headers["x-smg-routing-key"]
    assert 0 <= got.body["sampling_params"].pop("sampling_seed") < 2**31
    assert got.body == {
        "input_ids": [1, 2, 3],
        "sampling_params": {
            "max_new_tokens": 8,
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "ignore_eos": True,
            "stop_token_ids": [STOP],
            "skip_special_tokens": False,
            "no_stop_trim": True,
        },
        "return_logprob": True,
        "stream": False,
    }


def test_new_weights_leave_what_older_ones_computed_unused(connect):
    agent, server = connect(VLLMServer())
    assert "cache_salt" not in server.of(COMPLETIONS)[-1].body
    assert agent.update_weights() == 1
    assert turn(agent).weight_version == 1
    assert server.of(COMPLETIONS)[-1].body["cache_salt"] == "weights-1"
    with pytest.raises(ValueError, match="a server takes its weights by its own ways"):
        agent.engine.update_weights({"w": np.zeros(1)})
    agent, server = connect(SGLangServer())
    assert agent.update_weights() == 1
    turn(agent)
    assert server.of(GENERATE)[-1].body["extra_key"] == "weights-1"
    assert agent.update_weights() == 5  # it has said that it has version 4
    assert turn(agent).weight_version == 4  # it still says so: these ids are the older weights'
    assert agent.weight_version == 5


def test_a_fork_begins_with_the_context_that_it_was_made_of(connect):
    agent, server = connect(VLLMServer())
    turn(agent)
    agent.engine.fork(0, [1, 2], [8, 9])
    agent.act([2], [np.array([5])])
    assert server.of(COMPLETIONS)[-1].body["prompt"] == [1, 2, 3, 11, 12, STOP, 5]
    assert agent.engine.context(1).tolist() == [1, 2, 3, 11, 12, STOP]
    assert agent.engine.context(0).tolist() == [1, 2, 3, 11, 12, STOP]


def test_a_server_that_stops_elsewhere_has_cut_the_turn(connect):
    def at_another_id(reply: Any) -> None:
        reply["choices"][0]["token_ids"][-1] = 13

    agent, _ = connect(VLLMServer(change=at_another_id), sampling=SamplingParams(max_new_tokens=8))
    done = turn(agent)
    assert (done.token_ids.tolist(), done.finish_reason) == ([11, 12, 13], "length")


def test_what_comes_behind_a_stop_id_is_not_taken(connect):
    def goes_on(reply: Any) -> None:
        reply["choices"][0]["token_ids"][:] = [11, STOP, 12]

    agent, _ = connect(VLLMServer(change=lambda r: goes_on(r) if len(r["choices"][0]["token_ids"]) == 3 else None))
    done = turn(agent)
    assert (done.token_ids.tolist(), done.finish_reason, len(done.logprobs)) == ([11, STOP], "stop", 2)
    assert agent.engine.context(0).tolist() == [1, 2, 3, 11, STOP]


# ------------------------------------------------------------------------------------------------- log-probs of what
@pytest.mark.parametrize("mode", ["raw", "tempered", "processed"])
@pytest.mark.parametrize("server", [VLLMServer, SGLangServer])
def test_the_mode_of_a_servers_logprobs_is_measured(connect, server, mode):
    narrow = SamplingParams(temperature=0.7, top_p=0.9)
    agent, _ = connect(server(mode=mode), sampling=narrow)
    assert agent.describe()["logprobs_mode"] == mode
    assert (agent.untrainable is None) == (mode == "processed")
    done = turn(agent)
    if mode == "processed":
        assert done.logprobs.tolist() == [-0.75, -1.25, -0.125]
        return
    assert done.weight_version == -1
    assert not done.logprobs.any()
    assert done.model_logprobs.any() == (mode == "raw")
    flag = "--logprobs-mode processed_logprobs" if server is VLLMServer else "without top_k, top_p and min_p"
    with pytest.raises(NotTrainable, match=flag):
        RolloutGenerator(agent, None, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["raw", "tempered", "processed"])
def test_greedy_and_plain_turns_can_be_trained_on_in_any_mode(connect, mode):
    for temperature in (0.0, 1.0):
        agent, _ = connect(VLLMServer(mode=mode), sampling=SamplingParams(temperature=temperature))
        assert agent.untrainable is None
        assert turn(agent).weight_version == 0


# --------------------------------------------------------------------------------------------------- what is refused
def without(*path: Any) -> Change:
    def change(reply: Any) -> None:
        for step in path[:-1]:
            reply = reply[step]
        reply.pop(path[-1], None)

    return change


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (VLLMServer(change=without("choices", 0, "token_ids")), "vLLM >= 0.10.2 .* --return-tokens-as-token-ids"),
        (VLLMServer(change=without("choices", 0, "logprobs")), r"tells no log-probabilities.*\?logprobs=off"),
        (SGLangServer(change=without("meta_info", "output_token_logprobs")), "return_logprob was asked for"),
    ],
)
def test_a_server_that_tells_no_ids_or_logprobs_is_refused_with_what_to_set(connect, server, message):
    with pytest.raises((ValueError, ServerError), match=message):
        connect(server)


def test_without_logprobs_a_server_is_good_for_evaluation_alone(connect):
    agent, server = connect(VLLMServer(change=without("choices", 0, "logprobs")), "&logprobs=off")
    done = turn(agent)
    assert done.token_ids.tolist() == [11, 12, STOP]
    assert done.weight_version == -1
    assert "logprobs" not in server.of(COMPLETIONS)[-1].body
    with pytest.raises(NotTrainable, match="for evaluation only: its log-probabilities were not asked for"):
        RolloutGenerator(agent, None, 2)  # type: ignore[arg-type]


def test_sglang_is_asked_for_no_logprobs_where_they_are_off(connect):
    agent, server = connect(SGLangServer(change=without("meta_info", "output_token_logprobs")), "&logprobs=off")
    assert turn(agent).token_ids.tolist() == [11, 12, STOP]
    assert server.of(GENERATE)[-1].body["return_logprob"] is False


def test_sglang_names_its_tokenizer_in_one_of_three_places():
    def get(**info: str) -> Any:
        def answer(path: str) -> Any:
            if path != "/get_model_info":  # an older one
                raise ServerError("404", "no such path")
            return info

        return answer

    card = {"id": "served-name", "root": "org/root"}
    assert SGLang.look(get(model_path="org/model", tokenizer_path="org/tokenizer"), card).tokenizer == "org/tokenizer"
    assert SGLang.look(get(model_path="org/model"), card).tokenizer == "org/model"
    assert SGLang.look(get(), card).tokenizer == "org/root"

    def broken(path: str) -> Any:
        raise ServerError("500", "broken")

    with pytest.raises(ServerError, match="broken"):
        SGLang.look(broken, card)


def both(*changes: Change) -> Change:
    def change(reply: Any) -> None:
        for one in changes:
            one(reply)

    return change


def set_to(value: Any, *path: Any) -> Change:
    def change(reply: Any) -> None:
        for step in path[:-1]:
            reply = reply[step]
        reply[path[-1]] = copy.deepcopy(value)

    return change


@pytest.mark.parametrize(
    ("server", "change", "message"),
    [
        (VLLMServer(), set_to([11, 12, -1], "choices", 0, "token_ids"), "expected a list of token ids"),
        (VLLMServer(), set_to([11, "12", STOP], "choices", 0, "token_ids"), "expected a list of token ids"),
        (VLLMServer(), set_to([11, 2**40, STOP], "choices", 0, "token_ids"), "is no token id"),
        (
            VLLMServer(),
            set_to([-1.0, None, -1.0], "choices", 0, "logprobs", "token_logprobs"),
            r"\[1\]: expected a log",
        ),
        (VLLMServer(), set_to([-1.0, float("nan"), -1], "choices", 0, "logprobs", "token_logprobs"), "expected a log"),
        (VLLMServer(), set_to([-1.0, 0.7, -1.0], "choices", 0, "logprobs", "token_logprobs"), "expected a log"),
        (VLLMServer(), set_to([-1.0, -1.0], "choices", 0, "logprobs", "token_logprobs"), "3 ids came with 2 log"),
        (VLLMServer(), set_to("abort", "choices", 0, "finish_reason"), "gave the turn up: finish_reason is 'abort'"),
        (VLLMServer(), set_to([2, 3], "choices", 0, "prompt_token_ids"), "are not the ids that were sent"),
        (VLLMServer(), set_to([], "choices"), r"no choices\[0\]"),
        (VLLMServer(), set_to([11] * 9, "choices", 0, "token_ids"), "9 ids came with 3"),
        (
            VLLMServer(),
            both(
                set_to([11] * 9, "choices", 0, "token_ids"),
                set_to([-1.0] * 9, "choices", 0, "logprobs", "token_logprobs"),
            ),
            "9 ids came, where 8 were asked for",
        ),
        (
            VLLMServer(),
            both(set_to([11, 12, 13], "choices", 0, "token_ids"), set_to("length", "choices", 0, "finish_reason")),
            "the turn was cut after 3 ids, where 8 were asked for",
        ),
        (SGLangServer(), set_to([11, 13, STOP], "output_ids"), "hold different ids"),
        (SGLangServer(), set_to({"type": "abort", "message": "boom"}, "meta_info", "finish_reason"), "'abort'.*boom"),
    ],
)
def test_a_reply_that_contradicts_itself_costs_its_row_alone(connect, server, change, message):
    agent, _ = connect(server, sampling=SamplingParams(max_new_tokens=8))
    for row in (0, 1):
        agent.start(row, row)
    server.change = None
    good = agent.act([0], [np.array([1, 2, 3])])[0]
    server.change = change
    bad = agent.act([1], [np.array([1, 2, 3])])[0]
    server.change = None
    again = agent.act([0], [np.array([4])])[0]
    assert (good.finish_reason, bad.finish_reason, again.finish_reason) == ("stop", "abort", "stop")
    import re

    assert re.search(message, bad.error), bad.error
    assert bad.token_ids.size == 0
    assert agent.engine.context(1).size == 0  # as before the turn
    assert agent.counts()["failed"] == {"bad_reply": 1}
    assert agent.counts()["retried"] == {}


@pytest.mark.parametrize(
    ("change", "query", "message"),
    [
        ({"data": []}, "", "lists no model"),
        ({"data": [{"id": "x", "owned_by": "somebody"}]}, "", r"does not say what it is \(owned_by is 'somebody'\)"),
        (None, "&model=nobody", "has no model 'nobody'; it has served-name"),
        (None, "&dialect=tgi", "unknown dialect 'tgi'; known: vllm, sglang, llamacpp, toolstep"),
    ],
)
def test_a_server_that_is_not_what_was_asked_for_is_refused(connect, change, query, message):
    usual = VLLMServer()

    def rule(got: Got) -> Answer:
        return Answer(change) if change is not None and got.path == "/v1/models" else usual(got)

    with pytest.raises(ValueError, match=message):
        connect(rule, query)


def test_another_tokenizer_than_the_servers_is_refused(connect):
    usual = VLLMServer()

    def rule(got: Got) -> Answer:
        answer = usual(got)
        if got.body is not None and isinstance(got.body["prompt"], str):
            answer.body["choices"][0]["prompt_token_ids"][3] += 1
        return answer

    with pytest.raises(ValueError, match=r"other ids than the tokenizer of the env.*\?tokenizer="):
        connect(rule)


def test_parameters_that_servers_understand_differently_are_refused(connect):
    for sampling, message in (
        (SamplingParams(frequency_penalty=0.5), "counts penalties over one turn"),
        (SamplingParams(top_logprobs=2), "top_logprobs is not there"),
        (SamplingParams(logit_bias={1: 2.0}), "logit_bias is not there"),
    ):
        with pytest.raises(ValueError, match=message):
            connect(VLLMServer(), sampling=sampling)


def test_recorded_replies_are_what_the_protocols_document():
    """What the fixtures must hold for the tests above to mean anything."""
    choice = recorded("vllm_completion")["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
    generated = recorded("sglang_generate")
    assert generated["output_ids"] == [pair[1] for pair in generated["meta_info"]["output_token_logprobs"]]
    assert json.loads(json.dumps(generated)) == generated
