"""Texts that ask the most of a parser of tool calls: which pieces, repeated, and behind which beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_JUNK = ("{", "[", '{"', '{"a":', '[["', "}", "]", '"', "\\", '\\"', "'", ",", ":", " ", "\n", "x", "7", "é", "🙂",
         "\u2028", "\ud800", "<", "<|", "[f(a=", '{"name": "f"}', "```", "/", "f(", "(", '"""', "- ")  # fmt: skip
_BODIES = ('"', '\\"', "[", "{", "x", " ", "7", "{}", "[]", '{"', '["\\"', '{"a":', '{"a":1', '{"name":', '[{"name":',
           '{"name": "f"', '{"name": "f"}', '[{"name": "f"}]', '{"a": "', '{"a": [', "[1, ", "{,", '{"a" 1}', "tru",
           "NaN", "[{}", '"{}"', "'{", "- 1", "1e999", '{"a": 1}x')  # fmt: skip
_OWN = {
    "harmony": ("<|start|>assistant to=f<|channel|>x<|message|>", "to=f<|message|>", "<|channel|>x to=f ", " to=f "),
    "functionary_v32": (">>>f\n", "f\n", "all\n", ">>>all\n"),
    "pythonic": ("[f(a=", "[f(", "[f(a=[", "f(a=1), ", "[f(a='", '[f(a="', '[f(a="""', "[f(a={'a': "),
    "lfm2_pythonic": ("[f(a=", "[f(", "[f(a=[", "f(a=1), ", "[f(a='", '[f(a="""', "[f(a={'a': ", "[f(a=1)]"),
    "gemma4": ("call:f{a:", "call:f{a:[", 'call:f{a:<|"|>', '<|"|>', "call:f{a:{b:", "call:f{}"),
    "json_list": ('[{"name": "f", "arguments": {"a": ', '[{"name":'),
    "llama3_json": ('{"name": "f", "parameters": {"a": ', '{"name": "f", "parameters": {}};'),
    "llama3_python_tag": ('{"name": "f", "parameters": {"a": ', '{"name": "f", "parameters": {}};'),
}  # fmt: skip


def marks(form: Any) -> list[str]:
    """Texts that mean something to a format."""
    own = [getattr(form, k, "") for k in ("begin", "end", "call_open", "separator", "parameter_close", "close")]
    own += [*getattr(form, "markers", ()), *getattr(form, "frames", ()), form.think_open, form.think_close]
    if hasattr(form, "write_argument"):
        own += [form.write_argument("k", "v"), form.write_argument("k", "v")[:8], form.write_head("f")]
    return [m for m in dict.fromkeys([*own, *_OWN.get(form.name, ())]) if m]


def hostile(form: Any) -> Iterator[tuple[str, str]]:
    """(beginning, piece): the text is the beginning and then the piece again and again."""
    heads = [marks(form)[0], *getattr(form, "markers", ())]
    if hasattr(form, "separator"):
        heads.append(form.call_open + form.head_of("f", 0) + form.separator)
    heads = [*dict.fromkeys([*heads, *_OWN.get(form.name, ())])]
    close = getattr(form, "close", "")
    pieces = [*marks(form), *(m[:-1] for m in marks(form)), *(m[1:] for m in marks(form)), *_JUNK]
    pieces += [h + b for h in heads for b in _BODIES]
    pieces += [h + b + close for h in heads for b in _BODIES if close]
    pieces += [h + f'{{"name": "f", "a": "{m}"' for h in heads for m in marks(form)]
    pieces += [m + m2 for m in marks(form) for m2 in marks(form)]
    yield from (("", p) for p in dict.fromkeys(pieces) if p)
    inside = [*_JUNK, *(m for m in marks(form)), *(m[:-1] for m in marks(form)), *(f'"{m}",' for m in marks(form))]
    for h in heads:
        for start in (h, h + '{"name": "f", "arguments": {"a": "', h + "[", form.think_open + h):
            yield from ((start, p) for p in dict.fromkeys(inside) if p)


def repeated(beginning: str, piece: str, length: int) -> str:
    """The text, cut to `length` characters."""
    return (beginning + piece * (length // len(piece) + 1))[:length]
