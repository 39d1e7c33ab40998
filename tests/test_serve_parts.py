"""The pieces of the server that need no server: text as it comes, turns as they come, messages, kept contexts."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import engine_models as em
import hypothesis.strategies as st
import pytest
from chat_fixtures import shared_tokenizer
from hypothesis import given, settings
from shared import shared
from tiny import tiny_tokenizer

from toolstep.agents import Engine
from toolstep.agents.text import Detokenizer, SingleTokens, StopStrings, StopWatch, dangling
from toolstep.envs.chat.formats import FORMATS
from toolstep.rollout.serve.errors import BadRequest
from toolstep.rollout.serve.kept import KeptContexts
from toolstep.rollout.serve.messages import read_messages
from toolstep.rollout.serve.protocol import MessageIn
from toolstep.rollout.serve.turns import TurnReader, message

WORDS = "Grüße 🙂 日本語 def f(x):\n  return x  <b> 👩‍👩‍👧 naïve  12345 "


def cut(items: Any, seed: int) -> Iterator[Any]:
    rng, at = random.Random(seed), 0
    while at < len(items):
        n = rng.randint(1, 4)
        yield items[at : at + n]
        at += n


@pytest.mark.parametrize("name", ["minimind", "mistral-spm-v3", "qwen-12k", "smollm2-12k"])
def test_pieces_of_text_add_up_and_characters_are_whole(name):
    shared(f"tokenizers/{name}.json")
    tokenizer = shared_tokenizer(name)
    rng = random.Random(0)
    samples = [tokenizer.encode(WORDS, add_special_tokens=False)]
    samples += [[rng.randrange(len(tokenizer)) for _ in range(30)] for _ in range(40)]
    for i, ids in enumerate(samples):
        text = Detokenizer(tokenizer)
        pieces = [text.push(part) for part in cut(ids, i)]
        pieces.append(text.push([], last=True))
        whole = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        assert "".join(pieces) == whole
        if not i:
            assert not any("\ufffd" in piece for piece in pieces)
            assert b"".join(map(SingleTokens(tokenizer).bytes, ids)).decode().strip() == whole.strip()


def test_hidden_ids_are_not_shown():
    tokenizer = tiny_tokenizer()
    ids = [*tokenizer.encode("ab"), tokenizer.eos_token_id, *tokenizer.encode("c")]
    assert Detokenizer(tokenizer, {tokenizer.eos_token_id}).push(ids) == "abc"
    assert Detokenizer(tokenizer).push(ids) == "ab<|im_end|>c"


@given(
    text=st.text("ab<>", max_size=30),
    stops=st.lists(st.text("ab<>", min_size=1, max_size=4), max_size=3),
    seed=st.integers(0, 99),
    keep=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_a_text_is_cut_at_the_first_stop_string_however_it_comes(text, stops, seed, keep):
    reader = StopStrings(stops, keep=keep)
    out = "".join(reader.push(part) for part in cut(text, seed)) + reader.push("", last=True)
    # The obvious way: character by character, until the text ends with one.
    expected, hit = text, None
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            hit = max(ending, key=len)
            expected = text[:end] if keep else text[: end - len(hit)]
            break
    assert (out, reader.hit) == (expected, hit)
    tokenizer = tiny_tokenizer()
    watch, ids = StopWatch(tokenizer, stops, ()), tokenizer.encode(text)
    assert any(watch(ids[: i + 1]) for i in range(len(ids))) == (hit is not None)


def test_the_end_that_could_become_a_mark_is_held():
    assert dangling("ab<to", ["<tool>", "x"]) == 3
    assert dangling("ab<tool>", ["<tool>"]) == 0
    assert dangling("", ["<tool>"]) == 0
    assert dangling("<", []) == 0


def test_every_turn_of_the_corpus_streams_as_it_is_read_whole():
    tools = json.loads(shared("tool_calls/tools.json").read_text(encoding="utf-8"))["tools"]
    early = whole_texts = 0
    for name in (
        "command_r7b",
        "deepseek_v3",
        "harmony",
        "hermes_json",
        "llama3_json",
        "llama3_python_tag",
        "pythonic",
    ):
        form = FORMATS[name]
        for number, line in enumerate(shared(f"tool_calls/{name}.jsonl").read_text(encoding="utf-8").splitlines()):
            case = json.loads(line)
            if len(case["text"]) > 2000:
                continue
            for offered in (tools, None):
                once = TurnReader(form, case["prompt_tail"], offered)
                whole = message(once.push(case["text"], case["finish"]))
                reader = TurnReader(form, case["prompt_tail"], offered)
                deltas = [d for part in cut(case["text"], number) for d in reader.push(part)]
                early += sum(len(d.get("content", "")) for d in deltas)
                deltas += reader.push("", case["finish"])
                streamed = message(deltas)
                for said in (whole, streamed):
                    for call in said.get("tool_calls", ()):
                        call.pop("id")
                assert streamed == whole, case["id"]
                if offered is None:
                    assert "tool_calls" not in whole
                    continue
                whole_texts += not case["expect"]["calls"]
                calls = [(c["function"]["name"], c["function"]["arguments"]) for c in whole.get("tool_calls", ())]
                for expected in case["expect"]["calls"]:
                    assert (expected["name"], json.dumps(expected["arguments"], ensure_ascii=False)) in calls
                assert (whole.get("reasoning_content") or None) == (case["expect"]["reasoning"] or None)
    assert early > 1000  # it does stream
    assert whole_texts > 10


def test_what_cannot_be_told_as_a_call_is_not_lost():
    form = FORMATS["hermes_json"]
    nameless = message(TurnReader(form, "", []).push('<tool_call>{"arguments": {}}</tool_call>', "stop"))
    assert '{"arguments": {}}' in nameless["content"]
    assert "tool_calls" not in nameless
    bad = message(TurnReader(form, "", []).push('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "stop"))
    assert [c["function"] for c in bad["tool_calls"]] == [{"name": "f", "arguments": "[1]"}]
    cut_off = message(TurnReader(form, "<think>\n", []).push("hm", "length"))
    assert (cut_off["reasoning_content"], cut_off["content"]) == ("hm", "")


def test_calls_get_ids_by_their_number_and_results_find_them():
    def call(id_: str, arguments: Any) -> dict[str, Any]:
        return {"id": id_, "type": "function", "function": {"name": f"f_{id_}", "arguments": arguments}}

    given_ = [
        {"role": "developer", "content": "Be good."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": [call("x", '{"a": 1}'), call("y", {"b": 2})], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "y", "content": "2"},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "so", "tool_calls": [call("z", "not JSON")]},
        {"role": "tool", "tool_call_id": "z", "content": "error"},
    ]
    read = read_messages([MessageIn.model_validate(m) for m in given_])
    assert [(m.role, m.content) for m in read[:2]] == [("system", "Be good."), ("user", "ab")]
    assert [(c.id, c.parsed) for c in read[2].tool_calls] == [("call00000", {"a": 1}), ("call00001", {"b": 2})]
    assert read[2].reasoning == "hm"
    assert [(m.tool_call_id, m.name) for m in (read[3], read[4])] == [("call00001", "f_y"), ("call00000", "f_x")]
    assert (read[5].tool_calls[0].parsed, read[5].tool_calls[0].arguments) == (None, "not JSON")
    assert read[6].tool_call_id == "call00002"
    with pytest.raises(BadRequest, match="cannot have tool_calls"):
        read_messages([MessageIn.model_validate({"role": "user", "tool_calls": [call("x", "{}")]})])


def test_kept_contexts_go_in_the_order_of_their_last_use():
    engine = Engine(em.model(), verify=False)
    kept = KeptContexts(engine, 30)

    def finish(row: int, ids: list[int]) -> None:
        engine.start(row, 0)
        engine.extend(row, ids)
        kept.add(row)

    a, b, c = [1] * 10, [2] * 10, [3] * 10
    for row, ids in enumerate((a, b, c)):
        finish(row, ids)
    kept.touch([*a, 5])
    kept.touch([9, 9])  # has nothing in common with any
    finish(3, [4] * 5)
    assert [engine.started(row) for row in range(4)] == [True, False, True, True]
    finish(4, [*a, 6])  # goes on from the first, which is in it
    assert not engine.started(0)
    assert (len(kept), kept.tokens) == (3, 26)
    finish(5, [7] * 31)  # longer than all that may be kept
    assert (len(kept), kept.tokens) == (0, 0)
    assert not engine.scheduler.rows
