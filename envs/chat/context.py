"""Prompts, deltas and closes of a conversation, as text with provenance: remembered, traced, or marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolstep.envs.chat.delta import DeltaWriter
from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.errors import ChatTemplateError, UnsafeContent
from toolstep.envs.chat.fallback import Fallback
from toolstep.envs.chat.holes import HISTORY, NEW
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.memo import Known, Memo, NoKey, Skeleton
from toolstep.envs.chat.native import answers, loose_text, marked_schemas, message_dicts
from toolstep.envs.chat.provenance import Dicts, Written
from toolstep.envs.chat.watched import Trace, Untraceable
from toolstep.envs.chat.watcher import Watcher
from toolstep.envs.types import Message, Turn

Schemas = Sequence[Mapping[str, Any]]
_PLAIN = Marker(plain=True)


class ContextWriter:
    """Writes with one template.  Shared by all rows and threads.

    fallback: None where the template itself knows tools.  tokens: the added tokens of the vocabulary.
    """

    def __init__(self, writer: DeltaWriter, fallback: Fallback | None, tokens: ControlTokens):
        self._writer, self._fallback, self._tokens = writer, fallback, tokens
        self.memo = Memo(contents=fallback is not None)

    def prompt(self, messages: Sequence[Message], tools: Schemas, kwargs: Mapping[str, Any]) -> Written:
        """The context in front of the first turn."""
        constants: list[Any] = [[dict(t) for t in tools], dict(kwargs)]

        def key(known: Known) -> Any:
            return known.prompt_key(messages, constants)

        def write(trace: Trace | None) -> Written:
            return (
                self._marked_prompt(messages, tools, kwargs)
                if trace is None
                else self._traced_prompt(messages, tools, kwargs, trace)
            )

        return self._recalled(key, write, {NEW: messages})

    def delta(
        self,
        history: Sequence[Message],
        turn: Turn,
        new: Sequence[Message],
        tools: Schemas,
        *,
        stop: str | None,
        thought_open: bool,
        kwargs: Mapping[str, Any],
    ) -> Written:
        """What follows `turn`; see `ChatTemplate.delta`."""
        fallback, writer = self._fallback, self._writer
        calls = [(c.name, c.id) for c in turn.calls]
        schemas = [dict(t) for t in tools]
        constants: list[Any] = [schemas, dict(kwargs)]
        # A thought that the template can't write apart from the content stands in the content.
        text = bool(turn.content or (turn.reasoning and not writer.writes_thoughts))
        if fallback is None:
            new = answers(new, calls)
        else:
            calls = []

        def key(known: Known) -> Any:
            return known.delta_key(history, calls, new, constants, stop, thought_open, text)

        def attempt(trace: Trace | None, shown: Dicts) -> Written:
            mark = _PLAIN if trace is None else Watcher(trace, HISTORY, labels=self.memo.known.labels)
            if fallback is None:
                base = message_dicts(history, mark, deep=False)
            else:
                base, shown = fallback.messages(_silent(history), tools, mark), []

            def follow(m: Any) -> Dicts:
                if fallback is None:
                    return message_dicts(new, m, deep=False)
                return fallback.messages(new, (), m, opening=False)

            return writer.delta(
                base, calls, follow, shown, stop=stop, text=text, thought_open=thought_open, kwargs=kwargs, trace=trace
            )

        def write(trace: Trace | None) -> Written:
            if trace is None:
                return attempt(None, schemas)
            try:  # some templates write the tools again, in front of the last user message
                return attempt(trace, marked_schemas(tools, Watcher(trace, HISTORY)))
            except Untraceable:
                if trace.blames_label:
                    raise
                trace.failed = ""  # what was asked until here stays asked
                return attempt(trace, schemas)

        return self._recalled(key, write, {HISTORY: history, NEW: new})

    def close(
        self, history: Sequence[Message], turn: Turn, tools: Schemas, *, thought_open: bool, kwargs: Mapping[str, Any]
    ) -> Written:
        """What closes a cut turn that no message follows."""
        if self._fallback is not None:
            base = self._fallback.messages(history, tools, _PLAIN)
            return self._writer.close(base, [], [], thought_open=thought_open, kwargs=kwargs)
        base = message_dicts(history, _PLAIN, deep=False)
        calls = [(c.name, c.id) for c in turn.calls]
        return self._writer.close(base, calls, [dict(t) for t in tools], thought_open=thought_open, kwargs=kwargs)

    # ------------------------------------------------------------------ remembered, traced, marked
    def _recalled(
        self,
        key: Callable[[Known], Any],
        write: Callable[[Trace | None], Written],
        sides: Mapping[str, Sequence[Message]],
    ) -> Written:
        memo, known = self.memo, self.memo.known
        try:
            found, skeleton = memo.find(known, key(known))
        except NoKey:
            return write(None)
        if found:
            return write(None) if skeleton is None else skeleton.fill(sides)
        trace = Trace()
        try:
            written = write(trace)
            skeleton = Skeleton.of(written)
        except ChatTemplateError:
            return write(None)  # it says what is wrong; rare, so it is not remembered
        except NoKey:  # a name of the history stands behind the turn
            trace.blames_label = True
        except Untraceable:
            pass
        if skeleton is None and trace.blames_label and known.labels:
            memo.watch_no_labels()
            return self._recalled(key, write, sides)
        if not trace.once:
            memo.add(trace.questions, key, skeleton)
        return write(None) if skeleton is None else written

    def _traced_prompt(
        self, messages: Sequence[Message], tools: Schemas, kwargs: Mapping[str, Any], trace: Trace
    ) -> Written:
        fallback = self._fallback
        if fallback is not None:
            return self._writer.opening(lambda mark: (fallback.messages(messages, tools, mark), []), kwargs, trace)
        self._refuse_control_tokens(loose_text(messages, tools, deep=True))
        return self._writer.opening(
            lambda mark: (message_dicts(messages, mark, deep=True), marked_schemas(tools, mark)), kwargs, trace
        )

    def _marked_prompt(self, messages: Sequence[Message], tools: Schemas, kwargs: Mapping[str, Any]) -> Written:
        fallback = self._fallback
        if fallback is not None:
            return self._writer.opening(lambda mark: (fallback.messages(messages, tools, mark), []), kwargs)
        self._refuse_control_tokens(loose_text(messages, tools, deep=True))
        try:
            deep = self._writer.opening(
                lambda mark: (message_dicts(messages, mark, deep=True), marked_schemas(tools, mark)), kwargs
            )
            if not deep.notes:
                return deep
        except UnsafeContent:
            pass
        # The template looks into a call's arguments or a tool's schema: leave those alone, if that is safe.
        self._refuse_control_tokens(loose_text(messages, tools, deep=False))
        return self._writer.opening(
            lambda mark: (message_dicts(messages, mark, deep=False), [dict(t) for t in tools]), kwargs
        )

    def _refuse_control_tokens(self, texts: Sequence[str]) -> None:
        for text in texts:
            if token := next(iter(self._tokens.find_all(text)), None):
                raise UnsafeContent(
                    f"a tool's schema or an earlier call holds the control token {token!r} where it cannot be told "
                    f"from the template's own, in {text[:80]!r}; take it out"
                )


def _silent(history: Sequence[Message]) -> list[Message]:
    """The history without the assistant's words, which no delta depends on."""
    return [replace(m, content="ok", tool_calls=(), reasoning=None) if m.role == "assistant" else m for m in history]
