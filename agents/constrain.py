"""Constrained decoding of tool calls: once a turn opens a call, its JSON follows the schema of one of the tools.

Text outside of calls is free.  The grammar engine is llguidance (`pip install 'toolstep[constrain]'`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.engine.rows import Allow
from toolstep.envs.chat.formats.block import JSONBlock

if TYPE_CHECKING:
    from toolstep.envs.chat import ChatTemplate

Mask = NDArray[np.bool_]
_SPACE = r"[ \t\r\n]{1,16}"  # not without end: a model that is unsure of what follows can stay in white space
Constrain = Callable[[int], Allow | None]  # what a row may sample in the turn that begins now


@dataclass(frozen=True)
class ToolCalls:
    """The tools that a turn may call: `LLMAgent(..., constrain=ToolCalls(tools))`.

    tools: `toolstep.envs.tools.Tool` objects, or the dicts that chat templates read.
    required: a turn is calls and nothing else, at least one (tool_choice="required"); thoughts are not possible then.

    Log-probabilities are those of the constrained distribution; a turn that is cut by its limit may end inside a call.
    A tag within a thought opens a call as well.
    """

    tools: Sequence[Any]
    required: bool = False

    def bind(self, template: ChatTemplate, vocabulary: int) -> Constrain:
        """For a chat template with its tokenizer, and a model with logits for `vocabulary` ids.

        Raises ValueError for a template whose calls are no JSON between tags, and for a schema that cannot be a
        grammar; ImportError without llguidance.
        """
        rules = _Rules(self, template, vocabulary)
        return lambda row: _Turn(rules)


class _Rules:
    """What all turns share: the grammar of what stands behind an opening tag, and the masks of text before one."""

    def __init__(self, calls: ToolCalls, template: ChatTemplate, vocabulary: int) -> None:
        try:
            from llguidance import LLMatcher
        except ImportError as error:
            raise ImportError("constrained decoding needs llguidance: pip install 'toolstep[constrain]'") from error
        form, tokenizer = template.tool_call_format, template.tokenizer
        plain = isinstance(form, JSONBlock) and not form.opening and type(form).element is JSONBlock.element
        if tokenizer is None or not plain:
            raise ValueError(
                f"constrain: calls of the format {form.name!r} are no JSON between tags, or there is no tokenizer; "
                "pass a function from the row to an `allow` of your own"
            )
        self.vocabulary, self.required = vocabulary, calls.required
        tokens, self.texts = _tokens(tokenizer, max(vocabulary, len(tokenizer)), min(template.stop_ids))
        self._tokens = tokens
        controls = {text: i for text, i in tokenizer.get_vocab().items() if not self.texts[i]}
        assert isinstance(form, JSONBlock)
        self.tag, self.tag_id = form.markers[0].encode(), controls.get(form.markers[0])
        self.stops = np.isin(np.arange(vocabulary), list(template.stop_ids))
        grammar = LLMatcher.grammar_from_lark(_lark(calls, form, controls))
        if problem := LLMatcher.validate_grammar(grammar, tokens):
            raise ValueError(f"constrain: the tools' schemas cannot be made a grammar: {problem.strip()}")
        self._start = LLMatcher(tokens, grammar, log_level=0)
        self._free: dict[int, Mask | None] = {}

    def matcher(self, text: bytes = b"") -> Any:
        """At the start of the grammar, `text` read."""
        made = self._start.deep_copy()
        if text:
            made.consume_tokens(self._tokens.tokenize_bytes(text))
        return made

    def mask(self, matcher: Any) -> Mask:
        """bool[V] of what may follow in a call."""
        words = np.zeros((len(self.texts) + 31) // 32, np.int32)
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        mask = np.unpackbits(words.view(np.uint8), bitorder="little")[: self.vocabulary].astype(np.bool_)
        if matcher.is_accepting():
            mask |= self.stops
        return mask if mask.any() else self.stops  # a dead end: the turn can only be ended

    def free(self, tail: bytes) -> Mask | None:
        """bool[V] of what may follow the end of a text: all but what opens a call and goes on wrongly; None: all."""
        begun = next((n for n in range(len(self.tag) - 1, 0, -1) if tail.endswith(self.tag[:n])), 0)
        if begun not in self._free:
            mask = np.ones(self.vocabulary, np.bool_)
            for token, piece in enumerate(self.texts[: self.vocabulary]):
                _, opened, rest = (self.tag[:begun] + piece).partition(self.tag)
                if opened and rest:
                    ids = self._tokens.tokenize_bytes(rest)
                    mask[token] = self._start.deep_copy().validate_tokens(ids) == len(ids)
            self._free[begun] = None if mask.all() else mask
        return self._free[begun]


@lru_cache(4)
def _tokens(tokenizer: Any, size: int, eos: int) -> tuple[Any, list[bytes]]:
    """llguidance's view of a tokenizer, which takes a second to make, and the bytes of each id; b"": it is no text."""
    from llguidance.hf import from_tokenizer

    made = from_tokenizer(tokenizer, n_vocab=size, eos_token=eos)
    # Control tokens, and ids that the tokenizer does not have, are no text.
    return made, [b"" if made.is_special_token(i) else made.decode_bytes([i]) for i in range(size)]


class _Turn:
    """The constraint of one turn, which follows the ids that it is asked about."""

    def __init__(self, rules: _Rules) -> None:
        self._rules = rules
        self._begin()

    def _begin(self) -> None:
        self._seen: list[int] = []
        self._tail = b""  # the end of the text, shorter than the tag
        self._call: Any = self._rules.matcher() if self._rules.required else None  # None: no call is open

    def __call__(self, ids: Sequence[int]) -> Mask | None:
        if list(ids[: len(self._seen)]) != self._seen:  # the turn was begun anew
            self._begin()
        for token in ids[len(self._seen) :]:
            self._take(token)
            self._seen.append(token)
        return self._rules.free(self._tail) if self._call is None else self._rules.mask(self._call)

    def _take(self, token: int) -> None:
        rules = self._rules
        piece, keep = rules.texts[token], len(rules.tag) - 1
        if self._call is not None:
            self._call.consume_token(token)
            if not rules.required and self._call.is_accepting():
                self._call, self._tail = None, piece[-keep:]
        elif token == rules.tag_id:
            self._call = rules.matcher()
        elif not piece:
            self._tail = b""
        else:
            before, opened, rest = (self._tail + piece).partition(rules.tag)
            self._tail = before[-keep:]
            if opened:
                self._call = rules.matcher(rest)


def _lark(calls: ToolCalls, form: JSONBlock, controls: Mapping[str, int]) -> str:
    """What may stand behind a tag, and any text behind that; with `required` the whole turn.  Members come in order."""

    def tag(text: str) -> str:
        return f"<[{controls[text]}]>" if text in controls else json.dumps(text)

    def member(name: str) -> str:
        return f'{json.dumps(json.dumps(name))} SPACE? ":" SPACE?'

    rules, names = [], []
    for i, tool in enumerate(calls.tools):
        function = tool["function"] if isinstance(tool, Mapping) else tool.schema["function"]
        schema = {"type": "object", "additionalProperties": False, **function.get("parameters", {})}
        schema["x-guidance"] = {"whitespace_pattern": _SPACE}
        name = json.dumps(json.dumps(function["name"]))
        arguments = f"{member(form.argument_keys[0])} %json {json.dumps(schema)}"
        head = f'call_{i}: "{{" SPACE? {member(form.name_key)} {name}'
        rules.append(f'{head} SPACE? "," SPACE? {arguments} SPACE? "}}"')
        names.append(f"call_{i}")
    if not names:
        raise ValueError("constrain: there are no tools to call")
    block = '"[" SPACE? call (SPACE? "," SPACE? call)* SPACE? "]"' if form.as_list else "call"
    opening, closing = tag(form.markers[0]), f"SPACE? {tag(form.close)}" if form.close else ""
    return "\n".join(
        (
            "%llguidance {}",
            f"start: {opening} body (SPACE? {opening} body)* SPACE?" if calls.required else "start: body TEXT",
            f"body: SPACE? {block} {closing}",
            f"call: {' | '.join(names)}",
            *rules,
            f"SPACE: /{_SPACE}/",
            r"TEXT: /(.|\n)*/",
        )
    )
