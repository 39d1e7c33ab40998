"""`ChatTemplate`: what stands between the messages of an episode and the tokens of its context."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.envs.chat import builtin
from toolstep.envs.chat.context import ContextWriter
from toolstep.envs.chat.delta import DeltaWriter
from toolstep.envs.chat.encoder import ControlTokens, Encoder, encoder_for
from toolstep.envs.chat.errors import ChatTemplateError, NoChatTemplate, UnsupportedTokenizer
from toolstep.envs.chat.formats import ToolCallFormat
from toolstep.envs.chat.formats.base import Finish
from toolstep.envs.chat.history import Render, keeps_history, real_conversation, rewriting_roles
from toolstep.envs.chat.native import Native
from toolstep.envs.chat.probe import Support, probe
from toolstep.envs.chat.provenance import Written
from toolstep.envs.chat.render import Renderer
from toolstep.envs.chat.segment import Segment
from toolstep.envs.chat.stop_tokens import default_stop_tokens, stop_texts
from toolstep.envs.chat.strict import check_written
from toolstep.envs.chat.tokenizer import load_tokenizer
from toolstep.envs.chat.turns import PROBE_TOOLS
from toolstep.envs.types import Message, Source, Turn

Schemas = Sequence[Mapping[str, Any]]
_NO_KWARGS: Mapping[str, Any] = {}
CHARACTERS_PER_TOKEN = 4  # where there is no tokenizer


class ChatTemplate:
    """A chat template bound to a tokenizer.  It has no state of an episode, so all rows and threads share
    one.

    tokenizer: a transformers fast tokenizer; a name for `load_tokenizer`; or None for text only.
    chat_template: the template's text; by default the tokenizer's own, without a tokenizer a built-in ChatML
        one.
    stop_tokens: the tokens, as text or id, at which generation stops; by default what `default_stop_tokens`
        finds.
    tool_call_format: a name of `formats.FORMATS`; by default what the template's own rendering of a call
        shows, else what its list of tools asks for, else "hermes_json".
    template_kwargs: variables for every rendering (`enable_thinking=False`).
    clock: the time that a template's `strftime_now` tells; the moment of construction by default.
    strict: hold each delta against a rendering of the whole real conversation, and raise `strict.DeltaMismatch` where
        they differ.  It costs a rendering of the history each time.

    What can be known to go wrong is found here, by rendering a small conversation with a call, its result and
    a user's follow-up: the constructor raises `StopTokenMismatch`, `TemplateRejects`,
    `UnknownToolCallFormat`, ...  What a template does not write of schemas, calls and results is put into words for it
    (see `native` and `chat/wording.py`).
    """

    def __init__(
        self,
        tokenizer: Any = None,
        *,
        chat_template: str | Mapping[str, str] | None = None,
        stop_tokens: Collection[str | int] | None = None,
        tool_call_format: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        clock: datetime | None = None,
        strict: bool = False,
    ):
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        self.template_kwargs = dict(template_kwargs or {})
        self.strict = strict
        self._encoder: Encoder | None = None
        if self.tokenizer is None:
            if chat_template is not None and stop_tokens is None:
                raise ChatTemplateError("a chat_template without a tokenizer needs stop_tokens=[...] as well")
            text: str | Mapping[str, str] = chat_template or builtin.CHATML_HERMES
            stops = stop_texts(builtin.STOP_TOKENS if stop_tokens is None else stop_tokens, None)
            tokens = ControlTokens([*stops, *builtin.SPECIAL_TOKENS])
            variables: dict[str, Any] = {}
            self.stop_ids: frozenset[int] = frozenset()
        else:
            text = chat_template or self._own_template()
            self._encoder = encoder_for(self.tokenizer)
            given = default_stop_tokens(self.tokenizer) if stop_tokens is None else stop_tokens
            stops = stop_texts(given, self.tokenizer)
            tokens = self._encoder.added
            variables = dict(self.tokenizer.special_tokens_map)
            self.stop_ids = frozenset(int(self.tokenizer.convert_tokens_to_ids(t)) for t in stops)
        self.source = text  # of the template; a mapping where there are several
        if not stops:
            raise ChatTemplateError("stop_tokens is empty: no turn could ever end")
        self.stop_tokens: frozenset[str] = stops
        self.vocabulary: int = 0 if self.tokenizer is None else len(self.tokenizer)
        self._writer = DeltaWriter(Renderer(text, variables, clock=clock), tokens, stops, self.template_kwargs)
        self._support: Support = probe(self._writer, tokens, tool_call_format, self.template_kwargs)
        self._context = ContextWriter(self._writer, self._support.wording, tokens)
        self._stops = {k: v or self._any_stop() for k, v in self._support.stops.items()}

    def _own_template(self) -> str | Mapping[str, str]:
        own = getattr(self.tokenizer, "chat_template", None)
        if not own:
            name = getattr(self.tokenizer, "name_or_path", "") or type(self.tokenizer).__name__
            raise NoChatTemplate(
                f"the tokenizer {name!r} has no chat template (a base model's has none); pass chat_template= "
                "with the text of one (--chat-template FILE on the command line), for instance "
                "toolstep.envs.chat.builtin.CHATML_HERMES"
            )
        template: str | Mapping[str, str] = own
        return template

    def _any_stop(self) -> str:
        eos = getattr(self.tokenizer, "eos_token", None)
        return str(eos) if eos in self.stop_tokens else min(self.stop_tokens)

    @property
    def writes_tools(self) -> bool:
        """Whether the template itself writes schemas, calls and results; see `native` for each of them."""
        native = self.native
        return native.schemas and native.calls and native.results

    @property
    def native(self) -> Native:
        """What the template writes itself; the rest is put into words for it (`wording.py`)."""
        return self._support.wording.native

    @property
    def tool_call_format(self) -> ToolCallFormat:
        return self._support.wording.form

    # ------------------------------------------------------------------ context
    def prompt(self, messages: Sequence[Message], tools: Schemas, *, kwargs: Mapping[str, Any] = _NO_KWARGS) -> Segment:
        """The context in front of the first turn; every source is PROMPT."""
        if not messages:
            raise ValueError("a prompt needs at least one message")
        written = self._context.prompt(messages, tools, {**self.template_kwargs, **kwargs})
        ids, _ = self._encode(replace(written, body=()), opening=True)  # all of it is prompt
        return Segment(written.text, ids, np.full(len(ids), Source.PROMPT, np.uint8), notes=written.notes)

    def delta(
        self,
        history: Sequence[Message],
        turn: Turn,
        new: Sequence[Message],
        tools: Schemas,
        *,
        stop: str | None,
        thought_open: bool = False,
        kwargs: Mapping[str, Any] = _NO_KWARGS,
    ) -> Segment:
        """What follows a sampled turn, up to the point at which the model writes again.

        history: the messages before the turn.  turn: what was sampled, parsed; all of its calls count,
        malformed ones too.  new: everything that the environment adds, at once: one tool message for each
        call, in their order, and user messages.  stop: the stop token that the sample ended with; None if it
        had none, then its close is part of the delta and is reported as `inserted`.  thought_open: such a
        sample ended inside a thought.
        """
        if not new:
            raise ValueError("no new message: use close() for a turn that nothing follows")
        if stop is not None and stop not in self.stop_tokens:
            raise ValueError(f"stop must be one of {sorted(self.stop_tokens)} or None, got {stop!r}")
        if any(m.role == "assistant" for m in new):
            raise ValueError("a new message cannot be the assistant's")
        merged = {**self.template_kwargs, **kwargs}
        written = self._context.delta(history, turn, new, tools, stop=stop, thought_open=thought_open, kwargs=merged)
        if self.strict:
            end = self._writer.thought_end if thought_open and stop is None else ""
            check_written(written, self._real(tools, merged), history, turn, new, stop=stop, thought_end=end)
        return self._segment(written)

    def close(
        self,
        history: Sequence[Message],
        turn: Turn,
        tools: Schemas,
        *,
        thought_open: bool = False,
        kwargs: Mapping[str, Any] = _NO_KWARGS,
    ) -> Segment:
        """What closes a turn that was cut and that no message follows; all of it is `inserted`."""
        return self._segment(
            self._context.close(
                history, turn, tools, thought_open=thought_open, kwargs={**self.template_kwargs, **kwargs}
            )
        )

    def keeps_history(
        self,
        history: Sequence[Message],
        turn: Message,
        new: Sequence[Message],
        tools: Schemas,
        *,
        kwargs: Mapping[str, Any] = _NO_KWARGS,
    ) -> bool:
        """Whether the template, given `new` behind `turn`, still writes the past as the model saw it (`history.py`)."""
        real = self._real(tools, {**self.template_kwargs, **kwargs})
        return keeps_history(real, self._writer.header, history, turn, new)

    @cached_property
    def rewriting_roles(self) -> frozenset[str]:
        """Roles of new messages ("user", "tool") at which this template may rewrite the past."""
        return rewriting_roles(self._real(PROBE_TOOLS, self.template_kwargs), self._writer.header)

    def _real(self, tools: Schemas, kwargs: Mapping[str, Any]) -> Render:
        return real_conversation(self._writer.render, self._support.wording, tools, kwargs)

    def _segment(self, written: Written) -> Segment:
        ids, body = self._encode(written)
        sources = np.where(body, np.uint8(Source.BODY), np.uint8(Source.SCAFFOLD)).astype(np.uint8)
        return Segment(written.text, ids, sources, written.inserted, written.notes)

    def _encode(self, written: Written, *, opening: bool = False) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if self._encoder is None:
            return np.zeros(0, np.int64), np.zeros(0, np.bool_)
        return self._encoder.encode(written.text, written.foreign, written.body, opening=opening)

    # ------------------------------------------------------------------ turns
    def parse(
        self,
        text: str,
        *,
        finish: Finish = "stop",
        prompt_tail: str = "",
        first_id: int = 0,
        tools: Schemas = (),
    ) -> Turn:
        """The turn in `text`, decoded with special tokens kept, without its stop token.  Never raises on any
        text.

        finish: "length" where the sample was cut.  prompt_tail: the end of the prompt, which may open a
            thought.
        first_id: the number of the first call's id (`call00000`).
        tools: the schemas on offer; formats that write arguments as plain text take their types from them.
        """
        return self.tool_call_format.parse(text, finish=finish, prompt_tail=prompt_tail, first_id=first_id, tools=tools)

    def write(self, turn: Turn, *, prompt_tail: str = "", tools: Schemas = ()) -> str:
        """The text that a model would sample for `turn`, without the stop token: the inverse of `parse`.

        Raises UnwritableTurn for a turn that the tool-call format cannot express.
        """
        return self.tool_call_format.write(turn, prompt_tail=prompt_tail, tools=tools)

    def encode_turn(self, text: str) -> NDArray[np.int64]:
        """Ids, int64 [T], of a turn as a model would sample it, with the stop token with which such a turn
        ends.

        The text of a stop token inside the turn stays text: a sampled one would have ended the turn.
        """
        if self._encoder is None:
            return np.zeros(0, np.int64)
        inside = [(at, at + len(s)) for s in self.stop_tokens for at in _occurrences(text, s)]
        ids, _ = self._encoder.encode(text, inside)
        stop = self._stops[bool(self.parse(text).calls)]
        return np.append(ids, np.int64(self.tokenizer.convert_tokens_to_ids(stop)))

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Text of ids, special tokens kept."""
        if self.tokenizer is None:
            raise UnsupportedTokenizer("there is no tokenizer to decode ids with")
        decoded: str = self.tokenizer.backend_tokenizer.decode(
            np.asarray(ids, np.int64).tolist(), skip_special_tokens=False
        )
        return decoded

    def count(self, text: str) -> int:
        """Number of tokens of `text` as plain text; without a tokenizer, a quarter of its characters."""
        if self._encoder is None:
            return -(-len(text) // CHARACTERS_PER_TOKEN)
        return len(self._encoder.plain_ids(text))

    def keep(self, text: str, n: int) -> str:
        """The longest prefix of `text` that holds at most `n` tokens."""
        if self._encoder is None:
            return text[: max(n, 0) * CHARACTERS_PER_TOKEN]
        return self._encoder.prefix(text, n)


def _occurrences(text: str, token: str) -> list[int]:
    out, at = [], text.find(token)
    while at >= 0:
        out.append(at)
        at = text.find(token, at + 1)
    return out
