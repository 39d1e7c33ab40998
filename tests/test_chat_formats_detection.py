"""Which tool-call format a template's models write is found from how the template writes a call."""

from __future__ import annotations

import pytest
from chat_fixtures import TOOLS, shared_manifest, shared_template

from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.errors import UnknownToolCallFormat
from toolstep.envs.chat.formats import FORMATS, register_format
from toolstep.envs.chat.formats.hermes import HermesJSON
from toolstep.envs.types import CallStatus, Message, ToolCall, Turn

# What templates do not write themselves of schemas, calls and results; the others write all of it.
AS_TEXT = {
    "schemas": "deepseek-v3 deepseek-r1-llamacpp deepseek-v3.1 firefunction-v2 syn-glues-content-to-brackets "
    "syn-eos-at-the-end syn-role-builds-token syn-skips-empty",
    "calls": "kimi-k2-thinking granite-3.3 lfm2",
    "schemas calls": "smollm3 syn-plain-roles",
    "schemas calls results": "llama-3 gemma-3 phi-3.5-mini smollm2 syn-drops-tool-messages syn-truncates-results",
}
SAME = {"reka": "hermes_json"}  # Reka's model writes calls as Hermes does
FRAME = """\
{%- for t in tools or [] %}{{ '<s>system ' ~ (t | tojson) ~ '<e>' }}{% endfor %}
{%- for m in messages %}{{ '<s>' ~ m.role ~ ' ' ~ (m.content or '') }}
{%- for c in m.tool_calls or [] %}CALL{% endfor %}{{ '<e>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"""
_FN, _ARGS = "c.function.name", "c.function.arguments"
_KEYS = "{% for k, v in c.function.arguments.items() %}"
# Pythonic: texts without quotes, as Llama's template has it.
OWN = {
    "hermes_json": f"<tool_call>{{{{ {{'name': {_FN}, 'arguments': {_ARGS}}} | tojson }}}}</tool_call>",
    "llama3_json": f"{{{{ {{'name': {_FN}, 'parameters': {_ARGS}}} | tojson }}}}",
    "llama3_python_tag": f"<|python_tag|>{{{{ {{'name': {_FN}, 'parameters': {_ARGS}}} | tojson }}}}",
    "mistral_v3": f"[TOOL_CALLS] [{{{{ {{'name': {_FN}, 'arguments': {_ARGS}}} | tojson }}}}]",
    "mistral_v11": f"[TOOL_CALLS]{{{{ {_FN} }}}}[ARGS]{{{{ {_ARGS} | tojson }}}}",
    "granite3": f"<|tool_call|>[{{{{ {{'name': {_FN}, 'arguments': {_ARGS}}} | tojson }}}}]",
    "json_list": f"[{{{{ {{'name': {_FN}, 'arguments': {_ARGS}}} | tojson }}}}]",
    "functionary_v31": f"<function={{{{ {_FN} }}}}>{{{{ {_ARGS} | tojson }}}}</function>",
    "qwen3_coder_xml": f"<tool_call>\n<function={{{{ {_FN} }}}}>\n{_KEYS}"
    "<parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>",
    "glm_xml": f"<tool_call>{{{{ {_FN} }}}}\n{_KEYS}"
    "<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>",
    "pythonic": f"[{{{{ {_FN} }}}}({_KEYS}{{{{ k }}}}={{{{ v }}}}{{% endfor %}})]",
}


def _chat(call: str, **kwargs) -> ChatTemplate:
    return ChatTemplate(chat_template=FRAME.replace("CALL", call), stop_tokens=["<e>"], **kwargs)


@pytest.mark.parametrize("name", OWN)
def test_format_is_found_from_how_a_template_writes_a_call(name):
    chat = _chat(OWN[name])
    assert (chat.writes_tools, chat.tool_call_format.name) == (True, name)
    turn = Turn("", None, (ToolCall("call00000", "f", "", {"x": "a b", "y": 3}),))
    (call,) = chat.parse(chat.write(turn)).calls
    assert (call.status, call.name, call.parsed) == (CallStatus.OK, "f", {"x": "a b", "y": 3})


def test_format_can_be_named_against_what_a_template_writes():
    assert _chat(OWN["hermes_json"], tool_call_format="kimi").tool_call_format.name == "kimi"


def test_registered_format_is_found_too():
    class Arrow(HermesJSON):
        name = "arrow"
        markers = ("=>",)
        close = "<="
        lead = tail = ""

    call = OWN["hermes_json"].replace("<tool_call>", "=>").replace("</tool_call>", "<=")
    with pytest.raises(UnknownToolCallFormat, match=r"=>.*tool_call_format=.*register_format"):
        _chat(call)
    try:
        register_format(Arrow)
        assert _chat(call).tool_call_format.name == "arrow"
    finally:
        del FORMATS["arrow"]


def _native(chat: ChatTemplate) -> set[str]:
    return {part for part in ("schemas", "calls", "results") if getattr(chat.native, part)}


def test_real_templates_give_their_format_and_what_they_write():
    got, want = {}, {}
    for entry in map(shared_template, [t["id"] for t in shared_manifest()["templates"]]):
        id_, expected = entry["id"], entry["tool_call_format"]
        variables = {**entry["template_kwargs"], "bos_token": entry["bos_token"], "eos_token": entry["eos_token"]}
        options = {"chat_template": entry["text"], "stop_tokens": entry["stop_tokens"], "template_kwargs": variables}
        chat = ChatTemplate(**options)
        got[id_] = chat.tool_call_format.name, _native(chat)
        form = "hermes_json" if expected == "none" else SAME.get(expected, expected)
        text = next((parts.split() for parts, names in AS_TEXT.items() if id_ in names.split()), ())
        want[id_] = form, {"schemas", "calls", "results"}.difference(text)
    assert got == want


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2-thinking", "granite-3.3", "smollm3", "lfm2", "llama-3"])
def test_format_can_be_named_whatever_a_template_writes(name):
    entry = shared_template(name)
    variables = {"bos_token": entry["bos_token"], "eos_token": entry["eos_token"]}
    options = {"chat_template": entry["text"], "stop_tokens": entry["stop_tokens"], "template_kwargs": variables}
    found, named = ChatTemplate(**options), ChatTemplate(**options, tool_call_format="llama3_json")
    assert named.tool_call_format.name == "llama3_json"
    assert _native(named) == _native(found)


LISTS = """\
{%- if tools %}{{ '<s>system HOW ' ~ (tools | tojson) ~ '<e>' }}{% endif %}
{%- for m in messages %}{{ '<s>' ~ m.role ~ ' ' ~ (m.content or '') ~ '<e>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<s>assistant ' }}{% endif %}"""


@pytest.mark.parametrize(
    ("how", "form"),
    [
        ("Answer with <|tool_call|> and a list.", "granite3"),
        ("Write <tool_call> around a call.", "hermes_json"),
        ("Prefix calls: functools[...]", "phi4_mini"),
        ("<|tool_list_start|>", "lfm2_pythonic"),
        ("<|im_system|>tool_declare<|im_middle|>", "kimi"),
    ],
)
def test_list_of_tools_announces_the_format(how, form):
    chat = ChatTemplate(chat_template=LISTS.replace("HOW", how), stop_tokens=["<e>"])
    assert (chat.tool_call_format.name, _native(chat)) == (form, {"schemas", "results"})
    assert how in chat.prompt([Message("user", "hi")], TOOLS).text
    assert "To call a function" not in chat.prompt([Message("user", "hi")], TOOLS).text


def test_without_an_announcement_the_prompt_says_how_calls_are_written():
    chat = ChatTemplate(chat_template=LISTS.replace("HOW", "These are tools."), stop_tokens=["<e>"])
    prompt = chat.prompt([Message("system", "Be brief."), Message("user", "hi")], TOOLS).text
    assert chat.tool_call_format.name == "hermes_json"
    assert prompt.count('"name": "get_weather"') == 1  # the list is the template's
    assert "Be brief.\n\nFor each function call" in prompt
    # A name says that the model knows.
    named = ChatTemplate(chat_template=LISTS.replace("HOW", "x"), stop_tokens=["<e>"], tool_call_format="kimi")
    assert named.prompt([Message("user", "hi")], TOOLS).text == (
        named._writer.render([{"role": "user", "content": "hi"}], TOOLS, generation=True)
    )
