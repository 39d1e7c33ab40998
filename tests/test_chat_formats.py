"""Tool calls in sampled text: read strictly, and never an exception."""

from __future__ import annotations

import json
import time

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from shared import shared

from toolstep.envs.chat.errors import UnknownToolCallFormat
from toolstep.envs.chat.formats import FORMATS, get_format
from toolstep.envs.types import CallStatus, ToolCall, Turn

HERMES = get_format("hermes_json")
LLAMA = get_format("llama3_json")


def _call(arguments: str, name: str = '"f"') -> str:
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _corpus(name: str):
    return [json.loads(line) for line in shared(f"tool_calls/{name}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("name", FORMATS)
def test_every_case_of_the_corpus_is_read_as_expected(name):
    form = FORMATS[name]
    for case in _corpus(name):
        turn = form.parse(case["text"], finish=case["finish"], prompt_tail=case["prompt_tail"])
        want = case["expect"]
        good = [c for c in turn.calls if c.status is CallStatus.OK]
        bad = [c for c in turn.calls if c.status is not CallStatus.OK]
        assert [{"name": c.name, "arguments": c.parsed} for c in good] == want["calls"], case["title"]
        assert [c.status.value for c in bad] == want["errors"], case["title"]
        assert turn.content == want["content"], case["title"]
        assert turn.reasoning == want["reasoning"], case["title"]
        assert all(c.error and c.parsed is None for c in bad), case["title"]


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_read_is_written_so_that_it_reads_the_same(name):
    form = FORMATS[name]
    for case in _corpus(name):
        tail = case["prompt_tail"]
        turn = form.parse(case["text"], finish=case["finish"], prompt_tail=tail)
        again = form.parse(form.write(turn, prompt_tail=tail), finish=case["finish"], prompt_tail=tail)
        assert again == turn, case["title"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["</tool_call>", "<tool_call>", "<think>", "}; {", '"}}', "\\", "<|python_tag|>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='<{}[]"|'), max_size=30).map(str.strip)


@st.composite
def _turns(draw):
    calls = draw(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5), _JSON, max_size=3)), max_size=3))  # fmt: skip
    return Turn(
        draw(_PLAIN),
        draw(st.none() | _PLAIN),
        tuple(
            ToolCall(f"call{i:05d}", name, json.dumps(args, ensure_ascii=draw(st.booleans())), args)
            for i, (name, args) in enumerate(calls)
        ),
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("tail", ["", "<|im_start|>assistant\n<think>\n"], ids=["closed", "open thought"])
def test_reading_is_the_inverse_of_writing(name, tail):
    form = FORMATS[name]

    @settings(max_examples=60, deadline=None)
    @given(_turns())
    def check(turn):
        if name.startswith("llama3") and turn.calls:
            turn = Turn("", turn.reasoning, turn.calls)  # bare JSON in prose is prose
        if tail and turn.reasoning is None:
            turn = Turn(turn.content, "", turn.calls)  # the thought is open: it will be closed, empty
        assert form.parse(form.write(turn, prompt_tail=tail), prompt_tail=tail) == turn

    check()


_PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", '{"name": "f", "arguments": ', "{", "}",
    '"', "\\", ",", ":", ";", "null", "NaN", "-Infinity", "1e999", "9" * 5000, "\ud800", '"\\ud800"', "[" * 3000,
    "[", "]", "\x00",
    '{"a":' * 1500, '{"name": ["x"]}', '{"name": {}}', '"\\u', "\n", " ", "\u2028", "```json", "'", "//", "<|im_end|>",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_makes_the_parser_raise(name):
    form = FORMATS[name]

    @settings(max_examples=300, deadline=None)
    @given(
        st.lists(st.sampled_from(_PIECES) | st.text(max_size=8), max_size=9).map("".join),
        st.sampled_from(["stop", "length"]),
        st.sampled_from(["", "<think>\n", "x"]),
    )
    def check(text, finish, tail):
        turn = form.parse(text, finish=finish, prompt_tail=tail)
        for c in turn.calls:
            assert (c.status is CallStatus.OK) == (c.parsed is not None) == (not c.error)
            if c.parsed is not None:
                assert c.name
                json.dumps(c.parsed, allow_nan=False).encode()
                json.dumps(c.parsed, ensure_ascii=False).encode()  # no lone surrogate
        form.write(turn, prompt_tail=tail)

    check()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("[" * 500 + "]" * 500, CallStatus.INVALID_JSON),
        ('{"a": ' * 101 + "1" + "}" * 101, CallStatus.INVALID_JSON),
        ('{"a": ' + "9" * 5000 + "}", CallStatus.INVALID_JSON),
        ('{"a": 1e999}', CallStatus.INVALID_JSON),
        ('{"a": "\\ud83d"}', CallStatus.INVALID_JSON),
        ('{"a": "\ud83d"}', CallStatus.INVALID_JSON),
        ('"[1]"', CallStatus.ARGUMENTS_NOT_OBJECT),
        ('"{"', CallStatus.ARGUMENTS_NOT_OBJECT),
        ("true", CallStatus.ARGUMENTS_NOT_OBJECT),
        ("3", CallStatus.ARGUMENTS_NOT_OBJECT),
    ],
)
def test_arguments_that_no_tool_could_take_are_errors(arguments, status):
    (call,) = HERMES.parse(_call(arguments)).calls
    assert call.status is status


def test_attempts_keep_their_order_and_their_ids():
    text = "\n".join([_call('{"a": 1}'), _call("{'a'}"), _call("null"), _call('{"b": 2}', '"g"')])
    turn = HERMES.parse(text, first_id=7)
    assert [c.status.value for c in turn.calls] == ["ok", "invalid_json", "arguments_not_object", "ok"]
    assert [c.id for c in turn.calls] == ["call00007", "call00008", "call00009", "call00010"]
    assert turn.calls[2].name == "f"  # as much as could be read


def test_call_with_a_brace_too_few_does_not_swallow_the_next_call():
    turn = HERMES.parse('<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call>\n' + _call('{"b": 2}', '"g"'))
    assert [(c.name, c.status.value) for c in turn.calls] == [("", "invalid_json"), ("g", "ok")]


def test_call_without_a_closing_tag_does_not_swallow_the_next_call():
    turn = HERMES.parse('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n' + _call('{"b": 2}', '"g"'))
    assert [(c.name, c.status.value) for c in turn.calls] == [("f", "ok"), ("g", "ok")]


def test_arguments_are_kept_as_sampled():
    (call,) = HERMES.parse(_call('{ "a" :1.50,"a": "é" }')).calls
    assert call.arguments == '{ "a" :1.50,"a": "é" }'
    assert call.parsed == {"a": "é"}


def test_one_bad_element_spoils_a_list_of_calls():
    turn = HERMES.parse('<tool_call>[{"name": "f", "arguments": {}}, {"arguments": {}}]</tool_call>')
    assert [c.status.value for c in turn.calls] == ["missing_name"]


def test_thought_that_the_prompt_opened_hides_its_calls():
    text = f"maybe {_call('{}')}</think>\nNo."
    assert len(HERMES.parse(text).calls) == 1
    turn = HERMES.parse(text, prompt_tail="<|im_start|>assistant\n<think>\n")
    assert (turn.content, turn.calls) == ("No.", ())
    assert turn.reasoning.startswith("maybe <tool_call>")


def test_llama_answers_that_look_like_json_are_answers():
    for text in ('{"a": 1}', "{x} is a set", "{", '["name"]'):
        assert LLAMA.parse(text) == Turn(text)
    assert [c.status.value for c in LLAMA.parse('{"name": "f", "para', finish="length").calls] == ["truncated"]


def test_unknown_format_names_the_nearest():
    with pytest.raises(UnknownToolCallFormat, match="did you mean 'hermes_json'"):
        get_format("hermes-json")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "piece",
    [
        '<tool_call>{"a":',
        '<tool_call>"',
        '<tool_call>{"name": "f"}',
        "<think>",
        '{"name": "f"}',
        "<tool_call>[",
        '"',
        "{",
        '\\"',
    ],
)
def test_time_to_read_grows_with_the_length_of_the_text(name, piece):
    text = piece * (100_000 // len(piece))
    started = time.process_time()
    FORMATS[name].parse(text)
    assert time.process_time() - started < 2.0
