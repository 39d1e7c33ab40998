"""Each tool-call format on turns of our own wording, where widely used parsers differ; formats of users' own."""

from __future__ import annotations

import sys

import pytest

from toolstep.envs.chat.errors import UnwritableTurn
from toolstep.envs.chat.formats import FORMATS, ToolCallFormat, get_format, register_format
from toolstep.envs.chat.formats.hermes import HermesJSON
from toolstep.envs.chat.formats.json_calls import call_object
from toolstep.envs.chat.formats.scan import is_open, read_value
from toolstep.envs.types import CallStatus, ToolCall, Turn

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "note",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "times": {"type": "integer"},
                    "loud": {"type": "boolean"},
                    "tags": {"type": "array"},
                    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "either": {"type": ["integer", "string"]},
                    "kind": {"$ref": "#/$defs/Kind"},
                    "free": {},
                },
                "$defs": {"Kind": {"enum": ["1", "2"]}},
            },
        },
    }
]
_DS, _DSE = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>"
_ARG = "<|tool_call_argument_begin|>"

# (format, text, [name: arguments or status], content)
CASES = [
    (
        "hermes_json",
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call> so',
        [("f", {"x": "</tool_call>"})],
        "so",
    ),
    ("hermes_json", '<tool_call>{"name": "f", "arguments": {"x": "}}}} and', [("", "truncated")], ""),
    ("minimind", '<tool_call>{"name": "f"}<tool_call>{"name": "g"}', [("f", {}), ("g", {})], ""),
    (
        "llama3_json",
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": []}',
        [("f", {}), ("g", "arguments_not_object")],
        "",
    ),
    ("llama3_python_tag", 'Now:<|python_tag|>{"name": "f"}', [("f", {})], "Now:"),
    (
        "mistral_v3",
        'Hm. [TOOL_CALLS] [{"name": "f", "arguments": {"x": "[TOOL_CALLS]"}}]',
        [("f", {"x": "[TOOL_CALLS]"})],
        "Hm.",
    ),
    (
        "mistral_v11",
        '[TOOL_CALLS]f[ARGS]{"x": NaN}[TOOL_CALLS]g[CALL_ID]a1[ARGS]{}',
        [("f", "invalid_json"), ("g", {})],
        "",
    ),
    ("mistral_v11", "[TOOL_CALLS]f", [("", "truncated")], ""),
    ("granite3", '<|tool_call|>[{"name": "f", "arguments": {}}, 3]', [("", "missing_name")], ""),
    (
        "granite20b",
        '<function_call> {"name": "f", "arguments": {}}\n<function_call> {"name": 1}',
        [("f", {}), ("", "missing_name")],
        "",
    ),
    ("deepseek_v3", f'{_DS}function<｜tool▁sep｜>f\n```json\n{{"x": "```"}}\n```{_DSE}', [("f", {"x": "```"})], ""),
    ("deepseek_v3", f"{_DS}f\n```json\n{{}}\n```{_DSE}", [("", "malformed_markup")], ""),
    ("deepseek_v31", f"{_DS}<｜tool▁sep｜>{{}}{_DSE}", [("", "missing_name")], ""),
    ("deepseek_v31", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", [("", "malformed_markup")], ""),
    (
        "kimi",
        f'{_KIMI}functions.a.b:3{_ARG}{{"x": "<|tool_call_end|>"}}<|tool_call_end|>',
        [("a.b", {"x": "<|tool_call_end|>"})],
        "",
    ),
    ("kimi", f"{_KIMI}functions.f:0{_ARG}{{}} {{}}<|tool_call_end|>", [("f", "invalid_json")], ""),
    ("kimi", "<|tool_calls_section_begin|>I shall call f<|tool_calls_section_end|>", [("", "malformed_markup")], ""),
    (
        "solar",
        "<|tool_calls|><|tool_call:begin|>q1<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>",
        [("f", {})],
        "",
    ),
    (
        "harmony",
        "<|channel|>analysis<|message|>Call f?<|end|><|start|>assistant<|channel|>final<|message|>No.",
        [],
        "No.",
    ),
    (
        "harmony",
        '<|channel|>commentary to=functions.f<|message|>{"x": "<|end|>"}<|call|>',
        [("f", {"x": "<|end|>"})],
        "",
    ),
    ("harmony", "<|channel|>commentary to=functions.f", [("", "truncated")], ""),
    ("harmony", "Set the flag to=5 and go on.", [], "Set the flag to=5 and go on."),
    ("command_r7b", '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>', [("f", {})], ""),
    ("command_r7b", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>So.<|END_RESPONSE|>", [], "So."),
    (
        "functionary_v31",
        '<function=f>{"x": "</function>"}</function><function=g>',
        [("f", {"x": "</function>"}), ("g", "truncated")],
        "",
    ),
    ("functionary_v32", 'all\n>>> is a prompt>>>f\n{"x": ">>>g\\n"}', [("f", {"x": ">>>g\n"})], ">>> is a prompt"),
    ("functionary_v32", "f\n{}\n>>>g\n{,}", [("f", {}), ("g", "invalid_json")], ""),
    (
        "qwen3_coder_xml",
        "<tool_call>\n<function=note>\n<parameter=text>\n\n 7 \n\n</parameter>\n</function>",
        [("note", {"text": "\n 7 \n"})],
        "",
    ),
    ("qwen3_coder_xml", "<tool_call>\nnote(text)\n</tool_call>", [("", "malformed_markup")], ""),
    (
        "glm_xml",
        "<tool_call>note<arg_key>tags</arg_key><arg_value>[1,]</arg_value></tool_call>",
        [("note", {"tags": "[1,]"})],
        "",
    ),
    (
        "minimax_m2",
        '<minimax:tool_call><invoke name="note">text=7</invoke></minimax:tool_call>',
        [("note", "malformed_markup")],
        "",
    ),
    (
        "pythonic",
        "[f(x='it\\'s', y=[1, {'a': None}], z=-.5), a.g()]",
        [("f", {"x": "it's", "y": [1, {"a": None}], "z": -0.5}), ("a.g", {})],
        "",
    ),
    ("pythonic", "[f(x=__import__('os').system('true'))]", [("", "not_a_literal")], ""),
    ("pythonic", "[f(x=(1, 2))]", [("", "not_a_literal")], ""),
    ("pythonic", "[f(x=007)]", [("", "not_a_literal")], ""),
    ("pythonic", '[f(x="\\ud83d\\ude00 \\x41\\101")]', [("f", {"x": "😀 AA"})], ""),
    ("pythonic", "[f(x=1)].pop()", [("f", {"x": 1})], ".pop()"),
    ("pythonic", "[a link](to a page)", [], "[a link](to a page)"),
    ("lfm2_pythonic", "<|tool_call_start|>[f(x=1)]<|tool_call_end|>Done.", [("f", {"x": 1})], "Done."),
    ("firefunction", ' functools[{"name": "f", "arguments": {}}]', [("f", {})], ""),
    ("firefunction", "Use functools for that.", [], "Use functools for that."),
    ("phi4_mini", 'functools[{"name": "f", "arguments": 1}]', [("", "arguments_not_object")], ""),
    ("hunyuan", '<tool_calls>[{"name": "f", "arguments": {}}]</tool_calls>', [("f", {})], ""),
    ("apriel", '<tool_calls>[{"name": "f", "arguments": {}}', [("", "truncated")], ""),
    ("apertus", '<|tools_prefix|>[{"f": {"x": 1}}, {"g": {}}]<|tools_suffix|>', [("f", {"x": 1}), ("g", {})], ""),
    ("apertus", '<|tools_prefix|>[{"f": {}, "g": {}}]<|tools_suffix|>', [("", "missing_name")], ""),
    ("internlm2", '<|action_start|><|plugin|>\n{"name": "f", "parameters": {}}<|action_end|>', [("f", {})], ""),
    ("json_list", '[{"name": "f", "arguments": {}}] there', [("f", {})], "there"),
    ("json_list", "[1, 2]", [], "[1, 2]"),
    (
        "gemma4",
        '<|tool_call>call:f{x:<|"|>a}<tool_call|><|"|>,y:[1,true,{z:null}]}<tool_call|>',
        [("f", {"x": "a}<tool_call|>", "y": [1, True, {"z": None}]})],
        "",
    ),
    ("gemma4", "<|tool_call>call:f{x:maybe}<tool_call|>", [("f", "malformed_markup")], ""),
]


@pytest.mark.parametrize(("name", "text", "calls", "content"), CASES)
def test_turn_is_read_as_its_format_says(name, text, calls, content):
    turn = get_format(name).parse(text, tools=TOOLS)
    got = [(c.name, c.parsed if c.status is CallStatus.OK else c.status.value) for c in turn.calls]
    assert (got, turn.content) == (calls, content)
    assert all(c.error for c in turn.calls if c.status is not CallStatus.OK)


def test_every_format_has_a_case():
    assert {c[0] for c in CASES} == set(FORMATS)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("text", "007", "007"),
        ("text", "true", "true"),
        ("text", '{"a": 1}', '{"a": 1}'),
        ("times", "007", "007"),  # no JSON: kept, and refused as a wrong type later
        ("times", " 7 ", 7),
        ("times", "7.5", 7.5),
        ("loud", "true", True),
        ("loud", "True", "True"),
        ("tags", '["a"]', ["a"]),
        ("maybe", "null", None),
        ("maybe", "5", "5"),
        ("either", "5", 5),
        ("either", "five", "five"),
        ("either", "5.5", "5.5"),
        ("kind", "1", "1"),
        ("free", "1", 1),
        ("free", "one", "one"),
        ("unknown", "1", 1),
        ("free", "9" * 5000, "9" * 5000),
    ],
)
@pytest.mark.parametrize("name", ["qwen3_coder_xml", "glm_xml", "minimax_m2"])
def test_arguments_in_markup_take_their_types_from_the_schema(name, key, text, value):
    form = get_format(name)
    written = form.write_head("note") + "\n" + form.write_argument(key, text) + form.close
    (call,) = form.parse(written, tools=TOOLS).calls
    assert (call.status, call.parsed, type(call.parsed[key])) == (CallStatus.OK, {key: value}, type(value))
    again = form.parse(form.write(Turn("", None, (call,)), tools=TOOLS), tools=TOOLS)
    assert again.calls == (call,)


@pytest.mark.parametrize("name", ["qwen3_coder_xml", "glm_xml", "minimax_m2"])
def test_texts_that_look_like_other_types_survive_where_no_schema_says_that_they_are_texts(name):
    form = get_format(name)
    arguments = {"a": "7", "b": "null", "c": '"q"', "d": 7, "e": {"x": "7"}}
    turn = Turn("", None, (ToolCall("call00000", "f", "", arguments),))
    assert form.parse(form.write(turn)).calls[0].parsed == arguments


@pytest.mark.parametrize(
    ("name", "turn", "what"),
    [
        ("kimi", Turn("", None, (ToolCall("call00000", "f<|tool_call_begin|>", "{}", {}),)), "call of"),
        ("qwen3_coder_xml", Turn("", None, (ToolCall("call00000", "a>b", "{}", {}),)), "call of"),
        ("glm_xml", Turn("", None, (ToolCall("call00000", "f", "", {"x": "</arg_value>"}),)), "call of"),
        ("pythonic", Turn("", None, (ToolCall("call00000", "f", "", {"not a name": 1}),)), "call of"),
        ("pythonic", Turn("Text.", None, (ToolCall("call00000", "f", "", {}),)), "content"),
        ("hermes_json", Turn("write <tool_call> first"), "content"),
        ("hermes_json", Turn("", "a </think> b"), "content"),
        ("hermes_json", Turn("", None, (ToolCall("call00000", "f", "", {"x": float("nan")}),)), "call of"),
    ],
)
def test_turn_that_a_format_cannot_express_is_refused_and_named(name, turn, what):
    with pytest.raises(UnwritableTurn, match=f"{name!r} cannot express this turn: .*({what})"):
        get_format(name).write(turn)


def test_deep_nesting_and_long_numbers_are_errors_at_any_recursion_limit():
    deep = "[" * 200_000
    for form in FORMATS.values():
        for text in (f'<tool_call>{{"name": "f", "arguments": {deep}', f"[f(x={deep}", f"<|tool_call>call:f{{x:{deep}"):
            assert all(c.status is not CallStatus.OK for c in form.parse(text).calls)
    nested = "[" * 150 + "]" * 150
    for name, text in (
        ("hermes_json", f'<tool_call>{{"name": "f", "arguments": {{"x": {nested}}}}}</tool_call>'),
        ("pythonic", f"[f(x={nested})]"),
        ("gemma4", f"<|tool_call>call:f{{x:{nested}}}<tool_call|>"),
    ):
        assert [c.status.value != "ok" for c in get_format(name).parse(text).calls] == [True]
    limit = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(640)
        text = '<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 700 + "}}</tool_call>"
        assert get_format("hermes_json").parse(text).calls[0].status is CallStatus.INVALID_JSON
        assert get_format("pythonic").parse("[f(x=" + "9" * 700 + ")]").calls[0].status is CallStatus.NOT_A_LITERAL
    finally:
        sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize("length", [250, 256, 300, 2040, 2048, 20_000])
@pytest.mark.parametrize("body", ['"{}"', '["{}"]', '[1, "{}", true]', "[{}7]"])
def test_value_longer_than_the_window_of_the_decoder_is_read_whole(length, body):
    text = body.replace("{}", ("1, " * length if body == "[{}7]" else "x" * length))
    value = read_value("  " + text + "tail", 2)
    assert (value.source, value.end) == (text, 2 + len(text))


@pytest.mark.parametrize(
    ("text", "opened"),
    [
        ('{"a": "}', True),
        ('{"a": "}"}', False),
        ('{"a": "\\"}', True),
        ('{"a": "\\\\"}', False),
        ('["[", "]", "\\"["]', False),
        ('"\\\\\\"', True),
        ('[{"a": 1}', True),
        ('{"a": 1}}', False),
        ('\\" [', True),
        ('\\" ', False),
        (" \n", True),
    ],
)
def test_text_is_open_inside_a_string_and_where_a_bracket_is_missing(text, opened):
    assert is_open(text) is opened


def test_closing_tag_inside_a_string_ends_no_broken_call_unless_there_is_no_other():
    broken, good = '<tool_call>{"a" "</tool_call>"', '<tool_call>{"name": "f"}</tool_call>'
    for text, arguments in (
        (f"{broken}</tool_call>{good}", '{"a" "</tool_call>"'),
        (f'<tool_call>{{"a" "</tool_call>{good}', '{"a" "'),  # the string closes in the next call, which must not go
        (f'<tool_call>{{"a" "\\"</tool_call>" <</tool_call>{good}', '{"a" "\\"</tool_call>" <'),
    ):
        first, second = get_format("hermes_json").parse(text).calls
        assert (first.status, first.arguments) == (CallStatus.INVALID_JSON, arguments)
        assert (second.status, second.name) == (CallStatus.OK, "f")


# ---------------------------------------------------------------------- formats of users' own
@pytest.fixture
def formats():
    """The table of formats, put back afterwards."""
    before = dict(FORMATS)
    yield FORMATS
    FORMATS.clear()
    FORMATS.update(before)


def test_format_of_ones_own_is_registered_by_a_decorator(formats):
    @register_format
    class Arrow(HermesJSON):
        name = "arrow"
        markers = ("=>",)
        close = "<="
        lead = tail = ""

    assert get_format("arrow").parse('=>{"name": "f"}<=').calls[0].name == "f"
    assert isinstance(formats["arrow"], Arrow)


def test_format_from_scratch_needs_a_name_and_two_methods(formats):
    class Shout(ToolCallFormat):
        def scan(self, text, pos, finish, found):
            found.content.append(text[pos:])

        def write_calls(self, calls, tools=()):
            return "!".join(map(call_object, calls))

    with pytest.raises(ValueError, match="class variable `name`"):
        register_format(Shout)
    with pytest.raises(TypeError, match="subclass of ToolCallFormat"):
        register_format(dict)
    Shout.name = "shout"
    register_format(Shout())
    assert get_format("shout").parse("hi").content == "hi"
