"""Small tokenizers and templates of our own, and the shared ones, for the tests of `envs/chat`."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from shared import shared
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from toolstep.envs.types import Message

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"To {name} things.",
            "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
        },
    }
    for name in ("get_weather", "add")
]
OPENING = (Message("system", "You are a weather bot."), Message("user", "Weather in Paris?"))

# Roles as words, calls in the Hermes form, results in their own role.
PLAIN_TOOLS = """\
{%- if tools %}{{ '<|im_start|>system\\n' ~ (tools | tojson) ~ '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content or '') }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>\\n' ~ ({'name': c.function.name, 'arguments': c.function.arguments} | tojson) ~ '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' ~ ('<think>\\n' if open_thinking else '') }}{% endif %}"""

# No tools at all: they are text.
CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SOFT = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@cache
def tiny_tokenizer() -> Any:
    """Bytes and a few merges; control tokens both special and not, as Qwen's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("i", "m"), ("t", "o"), ("o", "l"), ("Ġ", "t"), ("e", "n"), ("n", "d"), ("<", "|")]
    vocab = {t: i for i, t in enumerate([*alphabet, *("".join(m) for m in merges)])}
    backend = Tokenizer(BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return _finish(backend, SPECIAL, SOFT)


@cache
def shared_manifest() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(shared("chat_templates/manifest.json").read_text(encoding="utf-8"))
    for entry in data["templates"]:
        entry["text"] = shared("chat_templates/" + entry["file"]).read_bytes().decode()
    return data


def shared_template(id_: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(e for e in shared_manifest()["templates"] if e["id"] == id_)
    return entry


@cache
def shared_tokenizer(name: str) -> Any:
    """A shared vocabulary with the control tokens of all shared templates: harder than any real pair."""
    entries = shared_manifest()["templates"]
    special = sorted({t for e in entries for t in e["special_tokens"]})
    soft = sorted({t for e in entries for t in e["plain_added_tokens"]} - set(special))
    return _finish(Tokenizer.from_file(str(shared(f"tokenizers/{name}.json"))), special, soft)


def _finish(backend: Tokenizer, special: Any, soft: Any) -> Any:
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in soft])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
