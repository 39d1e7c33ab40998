"""Tool calls in sampled text: read strictly, and never an exception."""

from __future__ import annotations

import contextlib
import gc
import json
import time

import hypothesis.strategies as st
import pytest
from chat_hostile import hostile, marks, repeated
from hypothesis import given, settings
from shared import shared

from toolstep.envs.chat.errors import UnknownToolCallFormat, UnwritableTurn
from toolstep.envs.chat.formats import FORMATS, get_format
from toolstep.envs.chat.formats.scan import BadJSON, read_value
from toolstep.envs.tools import Tool, resolve
from toolstep.envs.types import CallStatus, ToolCall, Turn

HERMES = get_format("hermes_json")
LLAMA = get_format("llama3_json")


def _call(arguments: str, name: str = '"f"') -> str:
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


CORPUS = ["command_r7b", "deepseek_v3", "deepseek_v31", "functionary_v31", "functionary_v32", "glm_xml", "granite3",
          "harmony", "hermes_json", "kimi", "llama3_json", "llama3_python_tag", "minimax_m2", "minimind", "mistral_v11",
          "mistral_v3", "pythonic", "qwen3_coder_xml"]  # fmt: skip


def _corpus(name: str):
    lines = shared(f"tool_calls/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    tools = json.loads(shared("tool_calls/tools.json").read_text(encoding="utf-8"))["tools"]
    return [json.loads(line) for line in lines], tools


@pytest.mark.parametrize("name", CORPUS)
def test_every_case_of_the_corpus_is_read_as_expected(name):
    form = FORMATS[name]
    cases, schemas = _corpus(name)
    tools = {s["function"]["name"]: _tool(s["function"]) for s in schemas}
    for case in cases:
        turn = form.parse(case["text"], finish=case["finish"], prompt_tail=case["prompt_tail"], tools=schemas)
        want = case["expect"]
        good = [c for c in turn.calls if c.status is CallStatus.OK]
        bad = [c for c in turn.calls if c.status is not CallStatus.OK]
        got = [{"name": c.name, "arguments": c.parsed} for c in good]
        assert json.dumps(got) == json.dumps(want["calls"]), case["title"]  # 1 is not True, nor 1.0
        assert [c.status.value for c in bad] == want["errors"], case["title"]
        assert turn.content == want["content"], case["title"]
        assert turn.reasoning == want["reasoning"], case["title"]
        assert all(c.error and c.parsed is None for c in bad), case["title"]
        settled = [resolve(c, tools)[0].status.value for c in good]
        assert settled == [v or "ok" for v in want["validation"]], case["title"]


def _tool(f):
    return Tool.from_schema(lambda **kwargs: "", name=f["name"], parameters=f["parameters"])


def test_corpus_holds_no_format_that_is_left_out():
    files = {p.stem for p in shared("tool_calls").glob("*.jsonl")}
    assert files == set(CORPUS) <= set(FORMATS)


@pytest.mark.parametrize("name", CORPUS)
def test_what_was_read_is_written_so_that_it_reads_the_same(name):
    form = FORMATS[name]
    cases, tools = _corpus(name)
    for case in cases:
        where = {"prompt_tail": case["prompt_tail"], "tools": tools}
        turn = form.parse(case["text"], finish=case["finish"], **where)
        assert form.parse(form.write(turn, **where), finish=case["finish"], **where) == turn, case["title"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.sampled_from(["</tool_call>", "<tool_call>", "<think>", "}; {", '"}}', "\\", "<|python_tag|>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
_REFUSED = ("a lone surrogate is not text", "is not JSON", "is out of range", "has too many digits")


@settings(max_examples=200, deadline=None)
@given(_JSON, st.sampled_from([None, 1]), st.integers(0, 8), st.text(max_size=1))
def test_reader_takes_what_pythons_decoder_takes(value, indent, at, char):
    whole = json.dumps(value, ensure_ascii=False, indent=indent)
    for text in (whole, whole[: len(whole) // 2], whole[:at] + char + whole[at:], whole[:at] + whole[at + 1 :]):
        try:
            want = json.JSONDecoder().raw_decode(text.lstrip(" \t\n\r"))[0]
        except ValueError:
            with pytest.raises(BadJSON):
                read_value(text, 0)
            continue
        got, why = want, ""
        try:
            got = read_value(text, 0).value
        except BadJSON as e:
            why = str(e)
        assert json.dumps(got) == json.dumps(want)
        assert not why or why.endswith(_REFUSED), text


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


def _said(turn: Turn) -> tuple:
    """A turn without what a writer may choose: the exact text of arguments."""
    return turn.content, turn.reasoning, [(c.id, c.name, json.dumps(c.parsed), c.status) for c in turn.calls]


@pytest.mark.parametrize("tail", ["", "OPEN"], ids=["closed", "open thought"])
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_reads_the_same_or_is_refused(name, tail):
    form = FORMATS[name]
    tail = tail and "<|im_start|>assistant\n" + form.think_open

    @settings(max_examples=25, deadline=None)
    @given(_turns())
    def check(turn):
        try:
            text = form.write(turn, prompt_tail=tail)
        except UnwritableTurn:
            return
        again = form.parse(text, prompt_tail=tail)
        if tail and turn.reasoning is None:
            turn = Turn(turn.content, "", turn.calls)  # the thought is open: it will be closed, empty
        assert _said(again) == _said(turn)
        assert form.parse(form.write(again, prompt_tail=tail), prompt_tail=tail) == again

    check()


# Tags that end a value where values are plain text are left out; what a format's own strings can hold is in.
_EVERYDAY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<|"), max_size=12)
    | st.sampled_from(["007", "true", "null", "a\nb", "it's \"so\"", "[1, 2", "}}", "\\", "naïve 🙂", "", " padded "]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), inner,
                                                                max_size=3),
    max_leaves=5,
)  # fmt: skip
_NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,12}", fullmatch=True).filter(lambda n: n != "all")
_ONLY_CALLS = {"llama3_json", "json_list", "pythonic"}  # calls behind text are text there
_NO_THOUGHT_BEFORE_TEXT = {"apriel"}


@pytest.mark.parametrize("name", FORMATS)
def test_everyday_turns_can_be_written_in_every_format(name):
    form = FORMATS[name]

    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.tuples(_NAMES, st.dictionaries(_NAMES, _EVERYDAY, max_size=3)), max_size=3),
        st.sampled_from(["", "Let me look that up.", "Two\nlines, 5 > 3."]),
        st.sampled_from([None, "I need the number.", ""]),
    )
    def check(made, content, reasoning):
        calls = tuple(ToolCall(f"call{i:05d}", n, json.dumps(a), a) for i, (n, a) in enumerate(made))
        turn = Turn("" if calls and name in _ONLY_CALLS else content, reasoning, calls)
        assert _said(form.parse(form.write(turn))) == _said(turn)

    check()


_PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", '{"name": "f", "arguments": ', "{", "}",
    '"', "\\", ",", ":", ";", "null", "NaN", "-Infinity", "1e999", "9" * 5000, "\ud800", '"\\ud800"', "[" * 3000,
    "[", "]", "\x00",
    "[f(a=", 'f(a="x")', "f\n", "to=functions.f", "<|message|>", "call:f{",
    '{"a":' * 1500, '{"name": ["x"]}', '{"name": {}}', '"\\u', "\n", " ", "\u2028", "```json", "'", "//", "<|im_end|>",
]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_makes_the_parser_raise(name):
    form = FORMATS[name]

    @settings(max_examples=80, deadline=None)
    @given(
        st.lists(st.sampled_from([*_PIECES, *marks(form)]) | st.text(max_size=8), max_size=9).map("".join),
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
        with contextlib.suppress(UnwritableTurn):
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


@pytest.mark.parametrize("name", [n for n in FORMATS if n not in ("minimind", "phi4_mini", "apriel")])  # subclasses
def test_time_to_read_grows_no_faster_than_the_text(name):
    form = FORMATS[name]
    for text in [*_costly(form), *list(hostile(form))[::31]]:
        growth = _growth(form, text, 1)
        if growth > 6:
            growth = _growth(form, text, 5)
        assert growth < 7, f"{growth:.1f} times as long for four times the text: {text!r}"


def _growth(form, text: tuple[str, str], repeats: int) -> float:
    """How much longer four times the text takes, of the process's own time."""
    short, long = repeated(*text, 20_000), repeated(*text, 80_000)
    gc.collect(0)
    gc.disable()
    try:
        return min(_ms(form, long) for _ in range(repeats)) / (min(_ms(form, short) for _ in range(repeats)) + 0.1)
    finally:
        gc.enable()


def _ms(form, text: str) -> float:
    started = time.process_time()
    form.parse(text)
    return 1000 * (time.process_time() - started)


def _costly(form) -> list[tuple[str, str]]:
    """Texts which, repeated, have led parsers to read the same thing again and again."""
    head = getattr(form, "call_open", marks(form)[0])
    head += "f" + form.separator if hasattr(form, "separator") else ""
    alone = {
        "harmony": ['<|start|>assistant to=f<|channel|>x<|message|>{"a":"', "<|channel|>", "<|message|>"],
        "functionary_v32": [">>>f\n{", ">>>", "all\n"],
        "pythonic": ["[f(a=[", '[f(a="', "[f("],
        "lfm2_pythonic": [head + "[f(a=[", head + '[f(a="'],
        "gemma4": [head + "call:f{a:[", head + 'call:f{a:<|"|>'],
    }.get(form.name, ['{"name": "f"}', head + '["\\"', head + '{"a":'])
    pieces = [head, head + '"', head + '\\"', head + "[", head + "x", form.think_open, '"', "{", '\\"', "[[", *alone]
    return [("", p) for p in pieces]
