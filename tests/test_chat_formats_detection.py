"""Which tool-call format a template's models write is found from how the template writes a call."""

from __future__ import annotations

import pytest
from chat_fixtures import shared_manifest, shared_template

from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.errors import UnknownToolCallFormat
from toolstep.envs.chat.formats import FORMATS, register_format
from toolstep.envs.chat.formats.hermes import HermesJSON
from toolstep.envs.types import CallStatus, ToolCall, Turn

# Templates that do not write tools, or calls, are served by the fallback whatever their models were trained on.
FALLBACK = {
    "deepseek-v3", "deepseek-r1-llamacpp", "deepseek-v3.1", "kimi-k2-thinking", "granite-3.3", "smollm3",
    "firefunction-v2", "lfm2", "syn-drops-tool-messages", "syn-truncates-results", "syn-plain-roles",
    "syn-glues-content-to-brackets", "syn-eos-at-the-end", "syn-role-builds-token", "syn-skips-empty",
}  # fmt: skip
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


def test_real_templates_give_their_format_or_the_fallback_or_a_reason():
    got, want = {}, {}
    for entry in map(shared_template, [t["id"] for t in shared_manifest()["templates"]]):
        id_, expected = entry["id"], entry["tool_call_format"]
        variables = {**entry["template_kwargs"], "bos_token": entry["bos_token"], "eos_token": entry["eos_token"]}
        options = {"chat_template": entry["text"], "stop_tokens": entry["stop_tokens"], "template_kwargs": variables}
        if id_ == "phi-4-mini":  # writes earlier calls as Python dicts, which no model samples
            with pytest.raises(UnknownToolCallFormat, match=r"Zq7sentinelQz.*tool_call_format= with one of.*phi4_mini"):
                ChatTemplate(**options)
            options["tool_call_format"] = expected
        chat = ChatTemplate(**options)
        got[id_] = chat.tool_call_format.name, chat.writes_tools
        native = expected != "none" and id_ not in FALLBACK
        want[id_] = (SAME.get(expected, expected) if native else "hermes_json"), native
    assert got == want
