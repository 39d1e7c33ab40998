"""Remembered deltas and prompts are those that a rendering gives, for all templates and contents."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import hypothesis.strategies as st
import pytest
from chat_cells import CLOCK
from chat_fixtures import CHATML, PLAIN_TOOLS, TOOLS, shared_manifest, shared_tokenizer, tiny_tokenizer
from hypothesis import HealthCheck, given, settings

from toolstep.envs.chat import ChatTemplate
from toolstep.envs.chat.builtin import CHATML_HERMES
from toolstep.envs.chat.errors import ChatTemplateError, UnknownToolCallFormat
from toolstep.envs.chat.memo import Memo
from toolstep.envs.types import Message, ToolCall, Turn

# Each is written to change its mind about contents; `{c}` stands for the content of a message.
DEFEATING = {
    "length": "{% if c | length > 3 %}long{% endif %}{{ c }}",
    "exact length": "{{ c | length }}:{{ c }}",
    "slice": "{{ c[:2] }}/{{ c }}",
    "index": "{% if c and c[0] == '<' %}tag{% endif %}{{ c }}",
    "characters": "{% for x in c %}{{ loop.index }}{% endfor %}{{ c }}",
    "in": "{% if 'b' in c %}b{% endif %}{{ c }}",
    "in literal": "{% if c in 'hello' %}h{% endif %}{{ c }}",
    "macro": "{% macro f(t) %}{% if t %}[{{ t | trim }}]{% else %}-{{ t }}{% endif %}{% endmacro %}{{ f(c) }}",
    "namespace": "{% set ns = namespace(t=c) %}{% if ns.t == 'ab' %}same{% endif %}{{ ns.t }}",
    "sort": "{{ [c, 'b'] | sort | first }}~{{ c }}",
    "map": "{{ messages | map(attribute='content') | map('length') | sum }}~{{ c }}",
    "select": "{{ messages | selectattr('content', 'eq', 'ab') | list | length }}~{{ c }}",
    "other message": "{% if c == messages[0].content %}echo{% endif %}{{ c }}",
    "split": "{{ c.split('</think>') | length }}{{ c }}",
    "upper": "{{ c | upper }}|{{ c }}",
    "int": "{{ c | int(7) }}|{{ c }}",
    "lookup": "{{ {'ab': 1}.get(c, 0) }}{{ c }}",
    "default": "{{ c or 'nothing' }}",
    "json": "{{ {'r': c} | tojson }}",
    "number": "{{ loop.index }}{{ c }}{% if c.startswith('<tool_response>') %}!{% endif %}",
}
FRAME = """\
{%- if tools %}{{ '<|im_start|>system\\n' ~ (tools | tojson) ~ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{%- set c = m.content -%}
{{- '<|im_start|>' ~ m.role ~ '\\n' }}
{%- if m.role == 'assistant' %}{{ c or '' }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\\n' ~ (call.function | tojson) ~ '\\n</tool_call>' }}{% endfor %}
{%- else %}BODY{% endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
OWN = {"builtin": CHATML_HERMES, "plain tools": PLAIN_TOOLS, "chatml": CHATML}
FLIPS = [
    "",
    " ",
    "\n",
    "ab",
    "abc",
    "12",
    "  padded\n",
    "<tool_response>\nx\n</tool_response>",
    "<tool_response>",
    "a</think>b",
    '{"a": "b\\n", "c": [1]}',
    "é東京 \U0001f468\u200d\U0001f469",
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|eot_id|>",
    "/no_think",
    "hello",
    "x" * 200,
]
_TEXT = st.sampled_from(FLIPS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _chats(text, tokenizer, **options):
    """Two of one template: one remembers (and checks itself), one has no memory."""
    remembering = ChatTemplate(tokenizer, chat_template=text, clock=CLOCK, **options)
    forgetful = ChatTemplate(tokenizer, chat_template=text, clock=CLOCK, **options)
    forgetful._context.memo = Memo(contents=not forgetful.native.results, entries=0)
    return remembering, forgetful


@cache
def _own(name):
    text = OWN.get(name) or FRAME.replace("BODY", DEFEATING[name])
    return _chats(text, tiny_tokenizer(), stop_tokens=["<|im_end|>"])


@st.composite
def _conversations(draw, most_calls):
    """(history without contents filled in, calls of the turn): a shape that several conversations share."""
    shape = [draw(st.sampled_from([("user",), ("system", "user")]))]
    shape += draw(st.lists(st.sampled_from([("call", "tool"), ("answer", "user")]), max_size=2))
    return [kind for part in shape for kind in part], draw(st.integers(0, most_calls))


def _fill(kinds, texts, names):
    out, made = [], 0
    for kind in kinds:
        if kind == "call":
            call = ToolCall(f"call{made:05d}", names[made % 2], '{"x": "y"}', {"x": "y"})
            out.append(Message("assistant", "", (call,)))
            made += 1
        elif kind == "tool":
            out.append(Message("tool", next(texts), (), call.id, call.name))
        elif kind == "answer":
            out.append(Message("assistant", "It is so."))
        else:
            out.append(Message(kind, next(texts)))
    return out, made


def _outcome(work):
    try:
        s = work()
    except ChatTemplateError as e:
        return type(e).__name__
    return s.text, s.ids.tolist(), s.sources.tolist(), s.inserted, s.notes


def _both_agree(chats, kinds, calls, texts, names, stop):
    supply = iter(texts)
    history, made = _fill(kinds, supply, names)
    own = tuple(ToolCall(f"call{made + i:05d}", names[i % 2], '{"x": "y"}', {"x": "y"}) for i in range(calls))
    turn = Turn("" if own else "It is so.", None, own)
    new = [Message("tool", next(supply), (), c.id, c.name) for c in own] or [Message("user", next(supply))]
    options = {"stop": stop, "thought_open": False}
    got, want = (_outcome(lambda c=c: c.delta(history, turn, new, TOOLS, **options)) for c in chats)
    assert got == want
    got, want = (_outcome(lambda c=c: c.prompt(history, TOOLS)) for c in chats)
    assert got == want


def _property(chats, stop, *, examples, most_calls=2):
    names = st.permutations(["get_weather", "add"])
    contents = st.lists(st.lists(_TEXT, min_size=8, max_size=8), min_size=2, max_size=3)

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(_conversations(most_calls), contents, names, st.sampled_from([stop, None]))
    def check(shape, rows, names, ended):
        for texts in rows:  # the rows share a shape: what the first one taught, the others use
            _both_agree(chats, *shape, texts, names, ended)

    check()


@pytest.mark.parametrize("name", [*OWN, *DEFEATING])
def test_remembered_is_what_a_rendering_gives(name):
    chats = _own(name)
    _property(chats, "<|im_end|>", examples=20)
    # A template that compares two contents teaches nothing that could be used again.
    assert chats[0]._context.memo.hits > 10 or name == "other message"


@pytest.mark.parametrize("part", range(6))
def test_remembered_is_what_a_rendering_gives_on_all_shared_templates(part):
    tokenizer = shared_tokenizer("qwen-12k")
    for entry in shared_manifest()["templates"][part::6]:
        variables = {"bos_token": entry["bos_token"] or "", "eos_token": entry["eos_token"]}
        options = {
            "stop_tokens": entry["stop_tokens"],
            "template_kwargs": {**variables, **entry["template_kwargs"]},
        }
        try:
            chats = _chats(entry["text"], tokenizer, **options)
        except UnknownToolCallFormat:  # how it writes calls does not matter here
            chats = _chats(entry["text"], tokenizer, tool_call_format="hermes_json", **options)
        _property(chats, entry["stop_tokens"][0], examples=6)
        assert chats[0]._context.memo.hits > 0, entry["id"]


@pytest.mark.parametrize("name", DEFEATING)
def test_every_pair_of_contents_is_told_apart(name):
    """One content after another through one memory: none is answered with what another one taught."""
    chats = _own(name)
    for texts in FLIPS:
        _both_agree(chats, ["user"], 1, iter(["ab", texts]), ("add", "get_weather"), "<|im_end|>")


HI = (Message("user", "hi"),)


def _step(chat, content, *, tools=TOOLS, history=HI, **options):
    turn = Turn("", None, (ToolCall("call00000", "add", "{}", {}),))
    return chat.delta(history, turn, [Message("tool", content)], tools, stop="<|im_end|>", **options)


def test_rows_that_called_other_tools_share_what_was_learned():
    chat = ChatTemplate(tiny_tokenizer(), chat_template=CHATML_HERMES)
    memo = chat._context.memo
    for i, name in enumerate(("add", "get_weather", "unknown tool")):
        history = [
            Message("user", f"task {i}"),
            Message("assistant", f"words {i}", (ToolCall("call00000", name, "{}", {"row": i}),)),
            Message("tool", f"result {i}", (), "call00000", name),
        ]
        assert f"\n{i}{i}\n" in _step(chat, f"{i}{i}", history=history).text
    assert (memo.hits, memo.misses) == (2, 1)


def test_tools_and_variables_are_part_of_the_key():
    text = PLAIN_TOOLS.replace(
        "'<|im_end|>\\n' }}\n{%- endfor %}", "(tools | length) ~ mood ~ '<|im_end|>\\n' }}\n{%- endfor %}"
    )
    chat = ChatTemplate(tiny_tokenizer(), chat_template=text, template_kwargs={"mood": "calm"})
    tools = [TOOLS[0]]
    assert "x1calm<|im_end|>" in _step(chat, "x", tools=tools).text
    assert "x1wild<|im_end|>" in _step(chat, "x", tools=tools, kwargs={"mood": "wild"}).text
    tools.append(TOOLS[1])  # the same list, changed
    assert "x2calm<|im_end|>" in _step(chat, "x", tools=tools).text
    assert "x1True<|im_end|>" in _step(chat, "x", tools=tools[:1], kwargs={"mood": True}).text
    assert "x11<|im_end|>" in _step(chat, "x", tools=tools[:1], kwargs={"mood": 1}).text


def test_what_cannot_be_compared_by_value_is_rendered_each_time():
    class Mood:
        said = 0

        def __str__(self):
            self.said += 1
            return "calm" if self.said < 3 else "wild"

    text = PLAIN_TOOLS.replace("'<|im_start|>assistant\\n'", "'<|im_start|>assistant\\n' ~ mood")
    chat = ChatTemplate(tiny_tokenizer(), chat_template=text, template_kwargs={"mood": "calm"})
    mood = Mood()
    assert _step(chat, "x", kwargs={"mood": mood})
    assert not chat._context.memo.known.entries


def test_memory_is_bounded():
    chat = ChatTemplate(tiny_tokenizer(), chat_template=PLAIN_TOOLS)
    chat._context.memo = memo = Memo(contents=False, entries=5, size=20_000)
    for i in range(30):
        history = [Message("user", "hi")] * (i + 1)
        assert f"\nr{i}<" in _step(chat, f"r{i}", history=history).text
        assert len(memo.known.entries) <= 5
        assert memo.known.size <= 20_000
        assert memo.known.shapes <= 60_000
    assert memo.misses >= 30


def test_copy_in_another_process_begins_with_an_empty_memory():
    chat = ChatTemplate(tiny_tokenizer(), chat_template=PLAIN_TOOLS)
    want = _step(chat, "x").ids.tolist()
    again = pickle.loads(pickle.dumps(chat))
    assert not again._context.memo.known.entries
    assert _step(again, "x").ids.tolist() == want


def test_threads_share_one_memory():
    chat = ChatTemplate(tiny_tokenizer(), chat_template=FRAME.replace("BODY", DEFEATING["namespace"]))

    def work(k):
        content = FLIPS[k % len(FLIPS)]
        history = [Message("user", FLIPS[k % 5])] * (1 + k % 7)
        return content, len(history), _step(chat, content, history=history).text

    with ThreadPoolExecutor(6) as pool:
        for content, _, text in pool.map(work, range(300)):
            body = ("same" if content == "ab" else "") + content
            assert text == f"\n<|im_start|>tool\n{body}<|im_end|>\n<|im_start|>assistant\n"


def test_histories_that_end_in_the_same_message_are_told_apart():
    chat, _ = _own("select")
    last = Message("user", "zz")
    texts = [_step(chat, "x", history=[Message("user", first), last]).text for first in ("ab", "cd", "ab")]
    assert ["2~x" in t or "1~x" in t for t in texts] == [True, False, True]
