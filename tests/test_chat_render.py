"""Rendering without transformers gives what transformers gives.

The renderer follows the newest rules.  Two of them are younger than the oldest transformers that pyproject.toml admits;
there, the tests hand transformers what the newer ones make of the same conversation, or say what it lets through.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import transformers
from chat_fixtures import shared_manifest, tiny_tokenizer

from toolstep.envs.chat.errors import TemplateRejects, TemplateSyntax
from toolstep.envs.chat.render import Renderer

VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
DROPS_NONE = VERSION >= (5, 24)  # keys of messages whose value is None
GUARDS_NAMES = VERSION >= (5, 23)  # names with an underscore on a namespace
USER = {"role": "user", "content": "hi"}
SMALL = {
    "tojson": "{{ messages[0] | tojson }}|{{ messages | tojson(indent=1) }}"
    "{{ {'a':1} | tojson(separators=(',',':')) }}",
    "blocks": "  {% for m in messages %}\n  {{ m.role }}\n  {% if loop.first %}{% continue %}{% endif %}\n!"
    "{% endfor %}\n",
    "keys": "{% for m in messages %}{{ m.keys() | list }}{{ m.content is defined }}{% endfor %}",
    "generation": "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}[{{ m.content }}]"
    "{% endgeneration %}{{ x }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "dict": "{{ dict(a=1) }}{{ dict.fromkeys(['b'], 2) }}",
    "special": "{{ bos_token }}{{ eos_token }}{{ tools }}{{ documents }}{{ extra }}",
    "reasoning": "{% for m in messages %}{{ m.reasoning_content }}/{{ m.thinking }}/{{ m.reasoning }};{% endfor %}",
    "private name": "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "mutation": "{{ messages.append(1) }}",
    "escape": "{{ ''.__class__ }}",
    "raise": "{{ raise_exception('no') }}",
}
CONVERSATIONS = [
    [USER],
    [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"k": "<é>"}}}]},
    ],
    [
        USER,
        {"role": "assistant", "content": "x", "thinking": "t"},
        {"role": "assistant", "content": "", "reasoning": "r"},
    ],
]


def _both(text, messages, tools, generation, kwargs, tokenizer):
    renderer = Renderer(text, tokenizer.special_tokens_map)
    conversation = copy.deepcopy(messages)
    if not DROPS_NONE:
        conversation = [{k: v for k, v in m.items() if v is not None} for m in conversation]
    try:
        want = tokenizer.apply_chat_template(
            conversation,
            tools=tools or None,
            chat_template=text,
            tokenize=False,
            add_generation_prompt=generation,
            **kwargs,
        )
    except Exception:  # a template may raise anything
        want = None
    try:
        got = renderer(messages, tools, generation=generation, kwargs=kwargs)
    except TemplateRejects:
        got = None
    return got, want


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["one", "none content", "reasoning"])
def test_rendering_equals_transformers(name, messages):
    got, want = _both(SMALL[name], messages, None, True, {"extra": "e"}, tiny_tokenizer())
    if name == "private name" and not GUARDS_NAMES:
        assert (got, want) == (None, "")  # an older sandbox stores it; ours refuses, as the newer ones do
    else:
        assert got == want


def test_rendering_of_all_shared_templates_equals_transformers():
    data = shared_manifest()
    given = data["scenarios_input"]
    calls = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in given["calls"]
    ]
    dumped = [{**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"])}} for c in calls]
    results = given["two_tool_results"]["new_messages"]
    system, user = given["system"], given["user"]
    conversations = [
        [user],
        [system, user, {"role": "assistant", "content": "Hi <b>", "reasoning_content": "t"}, user],
        [system, user, {"role": "assistant", "content": None, "tool_calls": calls[:1]}, results[0]],
        [user, {"role": "assistant", "content": "", "tool_calls": dumped}, *results],
    ]
    tokenizer = copy.deepcopy(tiny_tokenizer())
    same = raised = 0
    for entry in data["templates"]:
        tokenizer.eos_token, tokenizer.bos_token = entry["eos_token"], entry["bos_token"] or None
        for messages in conversations:
            for tools in ([], given["tools"]):
                got, want = _both(entry["text"], messages, tools, True, entry["template_kwargs"], tokenizer)
                assert got == want, entry["id"]
                same += 1
                raised += want is None
    assert same > 400
    assert raised < same / 4  # both raising is no parity to speak of


def test_no_tools_and_an_empty_list_of_tools_are_the_same():
    renderer = Renderer("{{ tools is none }}")
    assert renderer([USER], []) == renderer([USER], None) == "True"


def test_clock_stands_still():
    renderer = Renderer("{{ strftime_now('%d %B %Y %S') }}", clock=datetime(2024, 7, 26, 1, 2, 3))
    assert renderer([USER]) == "26 July 2024 03"
    free = Renderer("{{ strftime_now('%f') }}")
    assert free([USER]) == free([USER])


def test_tool_use_template_is_taken_where_there_are_tools():
    renderer = Renderer({"default": "plain", "tool_use": "tools"})
    assert renderer([USER]) == "plain"
    assert renderer([USER], [{"type": "function"}]) == "tools"
    with pytest.raises(TemplateSyntax, match="default"):
        Renderer({"tool_use": "x"})


def test_errors_name_the_line_and_the_roles():
    with pytest.raises(TemplateSyntax, match="line 2"):
        Renderer("ok\n{% if %}")
    with pytest.raises(TemplateRejects, match=r"\['user'\].*no system here"):
        Renderer("{{ raise_exception('no system here') }}")([USER])


def test_rendering_imports_neither_transformers_nor_torch():
    root = Path(__file__).resolve().parent.parent
    code = (
        "import sys, types\n"
        f"m = types.ModuleType('toolstep'); m.__path__ = [{str(root)!r}]; sys.modules['toolstep'] = m\n"
        "from toolstep.envs.chat import ChatTemplate\n"
        "from toolstep.envs.types import Message\n"
        "ChatTemplate().prompt([Message('user', 'hi')], [])\n"
        "print(sorted({'transformers', 'torch', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
