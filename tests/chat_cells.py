"""Templates x tokenizers for the matrix and the fuzz: the shared ones, and small ones of our own wording."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from chat_fixtures import CHATML, PLAIN_TOOLS, shared_manifest, shared_tokenizer, tiny_tokenizer

from toolstep.envs.chat import ChatTemplate, UnknownToolCallFormat
from toolstep.envs.chat.builtin import CHATML_HERMES
from toolstep.envs.chat.context import ContextWriter
from toolstep.envs.chat.encoder import encoder_for
from toolstep.envs.chat.formats import FORMATS

CLOCK = datetime(2026, 11, 29, 12, 0, 0)
VOCABULARIES = ("minimind", "qwen-12k", "smollm2-12k", "mistral-spm-v3")


@dataclass(frozen=True)
class Cell:
    """A template on a tokenizer.  options: keywords of ChatTemplate; entry: the manifest's, {} for our own."""

    name: str
    tokenizer: Any
    options: dict[str, Any]
    entry: dict[str, Any]

    def chat(self) -> ChatTemplate:
        return ChatTemplate(self.tokenizer, clock=CLOCK, **self.options)


def shared_cells(vocabulary: str) -> Iterator[Cell]:
    """All shared templates on one shared vocabulary.  A cell must be used before the next one is drawn: they
    share one tokenizer, whose bos and eos token are those of the current template.
    """
    tokenizer = shared_tokenizer(vocabulary)
    before = tokenizer.eos_token, tokenizer.bos_token
    try:
        for entry in shared_manifest()["templates"]:
            tokenizer.eos_token, tokenizer.bos_token = entry["eos_token"], entry["bos_token"] or None
            options = {
                "chat_template": entry["text"],
                "stop_tokens": entry["stop_tokens"],
                "template_kwargs": entry["template_kwargs"],
            }
            yield Cell(entry["id"], tokenizer, readable(tokenizer, options, entry), entry)
    finally:
        tokenizer.eos_token, tokenizer.bos_token = before


def readable(tokenizer: Any, options: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """The options, with a format named where there is none that reads this template's calls: a delta needs none."""
    try:
        ChatTemplate(tokenizer, clock=CLOCK, **options)
    except UnknownToolCallFormat:
        named = entry["tool_call_format"]
        return {**options, "tool_call_format": named if named in FORMATS else "hermes_json"}
    return options


def native(chat: ChatTemplate) -> ChatTemplate:
    """The same template as if it wrote all of tools itself."""
    bare, wording = copy.copy(chat), chat._support.wording
    all_native = replace(wording.native, schemas=True, calls=True, results=True)
    bare._support = replace(chat._support, wording=replace(wording, native=all_native, explains=False))
    bare._context = ContextWriter(chat._writer, bare._support.wording, encoder_for(chat.tokenizer).added)
    return bare


# ------------------------------------------------------------------------------------------------- our own
_CALL = (
    """{{ '<tool_call>\\n{"name": "' ~ c.function.name ~ '", "arguments": ' """
    """~ (c.function.arguments | tojson) ~ '}\\n</tool_call>' }}"""
)


def _roles(body: str, head: str = "", prompt: str = "<|im_start|>assistant\\n") -> str:
    """A template with `body` for each message `m`, whose calls are in `calls`."""
    return (
        "{%- if tools %}{{ '<|im_start|>system\\nTools: ' ~ (tools | tojson) ~ '<|im_end|>\\n' }}{% endif %}"
        + head
        + "{%- for m in messages %}{%- set calls %}{% for c in m.tool_calls or [] %}"
        + _CALL
        + "{% endfor %}{% endset %}"
        + body
        + "{%- endfor %}{%- if add_generation_prompt %}{{ '"
        + prompt
        + "' }}{% endif %}"
    )


_TURN = "'<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') ~ calls ~ '<|im_end|>\\n'"

OWN: dict[str, str] = {
    "built-in": CHATML_HERMES,
    "roles": PLAIN_TOOLS,
    "no-tools": CHATML,
    # Qwen3's habit: thoughts are written, but not in front of the last user message.
    "drops-thoughts": _roles(
        "{%- set thought = '' %}{%- if m.reasoning_content and loop.index0 > ns.last %}"
        "{%- set thought = '<think>\\n' ~ m.reasoning_content ~ '\\n</think>\\n\\n' %}{%- endif %}"
        "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ thought ~ (m.content or '') ~ calls ~ '<|im_end|>\\n' }}",
        head="{%- set ns = namespace(last=-1) %}{%- for m in messages %}{%- if m.role == 'user' %}"
        "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}",
    ),
    # Old Mistral's habit: the system prompt stands in the last user message, and only if that is the last of all.
    "moves-system": _roles(
        "{%- if m.role == 'user' and loop.last and messages[0].role == 'system' %}"
        "{{ '<|im_start|>user\\n' ~ messages[0].content ~ '\\n\\n' ~ m.content ~ '<|im_end|>\\n' }}"
        "{%- elif m.role != 'system' %}{{ " + _TURN + " }}{%- endif %}"
    ),
    # gpt-oss's habit: an answer ends with one token as last message, with another one in history.
    "rewrites-close": _roles(
        "{%- set close = '<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>' %}"
        "{{ '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') ~ calls ~ close }}"
    ),
    # GLM's habit: a turn has no close; the header of what follows is the stop token.
    "header-stops": _roles("{{ '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') ~ calls ~ '\\n' }}"),
    # Command-R7B's habit: results as JSON, here as ASCII.
    "json-results": _roles(
        "{%- if m.role == 'tool' %}{{ '<|im_start|>tool\\n' ~ ({'id': m.tool_call_id, 'output': m.content} | "
        "tojson(ensure_ascii=true)) ~ '<|im_end|>\\n' }}{%- else %}{{ " + _TURN + " }}{%- endif %}"
    ),
    "trims": _roles("{{ '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') | trim ~ calls ~ '<|im_end|>\\n' }}"),
    "skips-empty": _roles("{%- if m.content or calls %}{{ " + _TURN + " }}{%- endif %}"),
    "one-call": _roles(
        "{%- if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call a turn') }}{%- endif %}{{ "
        + _TURN
        + " }}"
    ),
    "no-user-after-tool": _roles(
        "{%- if m.role == 'user' and not loop.first and loop.previtem.role == 'tool' %}"
        "{{ raise_exception('a user message cannot follow a result') }}{%- endif %}{{ " + _TURN + " }}"
    ),
    "tells-the-date": _roles(
        "{{ " + _TURN + " }}", head="{{- 'Today: ' ~ strftime_now('%d %b %Y %H:%M:%S') ~ '\\n' }}"
    ),
    # DeepSeek's habit: calls and results are written, the tools are not.
    "no-schemas": _roles("{{ " + _TURN + " }}").replace("{%- if tools %}", "{%- if false %}"),
    # LFM2's habit: tools and results are written, calls are not.
    "no-calls": PLAIN_TOOLS.replace("{%- for c in m.tool_calls or [] %}", "{%- for c in [] %}").replace(
        "'<|im_start|>system\\n'", "'<|im_start|>system\\nCall: <tool_call>{...}</tool_call>\\n'"
    ),
    # SmolLM3's habit: a result is a user message, and that is all of it.
    "results-only": CHATML.replace("m.role ~", "('user' if m.role == 'tool' else m.role) ~"),
}
STOPS = {
    "header-stops": ["<|im_start|>"],
    "rewrites-close": ["<|endoftext|>"],
    "roles": ["<|im_end|>", "<|endoftext|>"],
}


def own_cells() -> Iterator[Cell]:
    """Our own templates on the tiny tokenizer of the tests, which has every byte."""
    for name, text in OWN.items():
        options = {"chat_template": text, "stop_tokens": STOPS.get(name, ["<|im_end|>"])}
        yield Cell(name, tiny_tokenizer(), options, {})
