"""Prompts, deltas and closes of a conversation, as text with provenance: remembered, traced, or marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from toolstep.envs.chat.delta import DeltaWriter
from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.errors import ChatTemplateError, UnsafeContent
from toolstep.envs.chat.holes import HISTORY, NEW
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.memo import Known, Memo, NoKey, Skeleton
from toolstep.envs.chat.native import answers
from toolstep.envs.chat.provenance import Dicts, Written
from toolstep.envs.chat.watched import Trace, Untraceable
from toolstep.envs.chat.watcher import Watcher
from toolstep.envs.chat.wording import Wording
from toolstep.envs.types import Message, Turn

Schemas = Sequence[Mapping[str, Any]]
_PLAIN = Marker(plain=True)


class ContextWriter:
    """Writes with one template.  Shared by all rows and threads.  tokens: the added tokens of the vocabulary."""

    def __init__(self, writer: DeltaWriter, wording: Wording, tokens: ControlTokens):
        self._writer, self._wording, self._tokens = writer, wording, tokens
        self.memo = Memo(contents=not wording.native.results)

    def prompt(self, messages: Sequence[Message], tools: Schemas, kwargs: Mapping[str, Any]) -> Written:
        """The context in front of the first turn."""
        messages, notes = self._wording.written_results(messages)
        constants: list[Any] = [[dict(t) for t in tools], dict(kwargs)]

        def key(known: Known) -> Any:
            return known.prompt_key(messages, constants)

        def write(trace: Trace | None) -> Written:
            if trace is None:
                return self._marked_prompt(messages, tools, kwargs)
            return self._opening(messages, tools, kwargs, deep=True, trace=trace)

        return _noted(self._recalled(key, write, {NEW: messages}), notes)

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
        wording, writer = self._wording, self._writer
        native = wording.native
        calls = [(c.name, c.id) for c in turn.calls]
        constants: list[Any] = [[dict(t) for t in tools], dict(kwargs)]
        # A thought that the template can't write apart from the content stands in the content.
        text = bool(turn.content or (turn.reasoning and not native.thoughts))
        new, notes = wording.written_results(answers(new, calls) if native.results else new)
        calls = calls if native.calls else []

        def key(known: Known) -> Any:
            return known.delta_key(history, calls, new, constants, stop, thought_open, text)

        def attempt(trace: Trace | None, shown: Dicts) -> Written:
            mark = _PLAIN if trace is None else Watcher(trace, HISTORY, labels=self.memo.known.labels)
            base = wording.messages(history if native.calls else _silent(history), tools, mark)

            def follow(m: Any) -> Dicts:
                return wording.messages(new, (), m, opening=False)

            return writer.delta(
                base, calls, follow, shown, stop=stop, text=text, thought_open=thought_open, kwargs=kwargs, trace=trace
            )

        def write(trace: Trace | None) -> Written:
            if trace is None:
                return attempt(None, wording.tools(tools, None))
            try:  # some templates write the tools again, in front of the last user message
                return attempt(trace, wording.tools(tools, Watcher(trace, HISTORY)))
            except Untraceable:
                if trace.blames_label:
                    raise
                trace.failed = ""  # what was asked until here stays asked
                return attempt(trace, wording.tools(tools, None))

        return _noted(self._recalled(key, write, {HISTORY: history, NEW: new}), notes)

    def close(
        self, history: Sequence[Message], turn: Turn, tools: Schemas, *, thought_open: bool, kwargs: Mapping[str, Any]
    ) -> Written:
        """What closes a cut turn that no message follows."""
        wording = self._wording
        base = wording.messages(history, tools, _PLAIN)
        calls = [(c.name, c.id) for c in turn.calls] if wording.native.calls else []
        shown = wording.tools(tools, None)
        return self._writer.close(base, calls, shown, thought_open=thought_open, kwargs=kwargs)

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

    def _marked_prompt(self, messages: Sequence[Message], tools: Schemas, kwargs: Mapping[str, Any]) -> Written:
        try:
            deep = self._opening(messages, tools, kwargs, deep=True)
            if not deep.notes:
                return deep
        except UnsafeContent:
            pass
        # The template looks into a call's arguments or a tool's schema: leave those alone, if that is safe.
        return self._opening(messages, tools, kwargs, deep=False)

    def _opening(
        self,
        messages: Sequence[Message],
        tools: Schemas,
        kwargs: Mapping[str, Any],
        *,
        deep: bool,
        trace: Trace | None = None,
    ) -> Written:
        wording = self._wording
        self._refuse_control_tokens(wording.loose_text(messages, tools, deep=deep))

        def write(mark: Any) -> tuple[Dicts, Dicts]:
            return wording.messages(messages, tools, mark, deep=deep), wording.tools(tools, mark if deep else None)

        return self._writer.opening(write, kwargs, trace)

    def _refuse_control_tokens(self, texts: Sequence[str]) -> None:
        for text in texts:
            if token := next(iter(self._tokens.find_all(text)), None):
                raise UnsafeContent(
                    f"a tool's schema or an earlier call holds the control token {token!r} where it cannot be told "
                    f"from the template's own, in {text[:80]!r}; take it out"
                )


def _noted(written: Written, notes: tuple[str, ...]) -> Written:
    return replace(written, notes=(*written.notes, *notes)) if notes else written


def _silent(history: Sequence[Message]) -> list[Message]:
    """The history without the assistant's words, which no delta depends on."""
    return [replace(m, content="ok", tool_calls=(), reasoning=None) if m.role == "assistant" else m for m in history]
