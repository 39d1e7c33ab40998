"""The observation delta of any chat template, as text (invariant I2).  No per-model code.

Question: the model has written a turn, the environment has answered; what does the template put between the
end of the turn and the next point at which the model writes?

1. Render the conversation with a stand-in for the turn that carries a sentinel, followed by the new messages.
   All text up to the sentinel is thrown away, so nothing that the template does to earlier text (strips
   thoughts, re-dumps JSON, adds or moves a system prompt) can matter.
2. Cut behind the turn's own tail: at the first stop token that stands before the first new content.
3. Tell the template's characters from the environment's: by a rendering with watched text, or, where the template
   does with it what is not followed, by a rendering with the new contents between marks.

What is decided after the rendering is decided by the template's characters alone.  So it holds for every content that
is written by the same steps, and `memo.py` may use it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.errors import (
    ChatTemplateError,
    MessageDropped,
    StopTokenMismatch,
    TemplateRejects,
    TurnNotWritten,
    UnsafeContent,
)
from toolstep.envs.chat.holes import NEW
from toolstep.envs.chat.marks import Span
from toolstep.envs.chat.provenance import Conversation, Dicts, Placed, Writer, Written, marked, traced
from toolstep.envs.chat.render import Renderer
from toolstep.envs.chat.turn_ends import TurnEnds
from toolstep.envs.chat.turns import PROBE_TOOLS, SENTINEL, Shape, Turns, safe_name, stand_in, user
from toolstep.envs.chat.watched import Trace

_THOUGHT, _ANSWER = "Zq7thoughtQz", "Zq7answerQz"


class DeltaWriter:
    """Computes deltas of one template.  Immutable after construction, so threads may share it.

    tokens: the added tokens of the vocabulary (without a tokenizer: the stop tokens).
    stops: the texts at which generation stops.
    """

    def __init__(self, render: Renderer, tokens: ControlTokens, stops: frozenset[str], kwargs: Mapping[str, Any]):
        self.render = render
        self._tokens = tokens
        self.stops = stops
        self.header = self._find_header(kwargs)
        self._thought_marks = self._find_thought_marks(kwargs)
        self._turns = Turns(render, kwargs)
        self._ends = TurnEnds(tokens, stops, self.header)

    # ------------------------------------------------------------------ the delta
    def delta(
        self,
        base: Dicts,
        calls: Sequence[tuple[str, str]],
        new: Writer,
        tools: Sequence[dict[str, Any]],
        *,
        stop: str | None,
        text: bool = False,
        thought_open: bool = False,
        kwargs: Mapping[str, Any],
        trace: Trace | None = None,
    ) -> Written:
        """What follows a turn that made `calls` (name, id) after `base`, given the messages that `new` writes.

        text: the turn has text beside its calls.

        trace: render with watched text and note in it what is asked; `base` may hold watched text then.

        stop: the stop token that the sample ended with, None if it had none; then the close is part of the
            delta.
        """
        names = [(safe_name(name), safe_name(id_, f"call{i:05d}")) for i, (name, id_) in enumerate(calls)]
        base = self._turns.skeleton(base)
        errors: list[ChatTemplateError] = []
        for shape in self._turns.shapes(len(names), text):
            if names and not shape.calls and not any(isinstance(e, TurnNotWritten) for e in errors):
                break  # plain content may stand in only where the template ignores calls, not where it raises
            try:
                return self._delta(shape, base, names, new, tools, stop, thought_open, kwargs, trace)
            except (UnsafeContent, StopTokenMismatch):
                raise
            except ChatTemplateError as e:
                errors.append(e)
        raise min(errors, key=lambda e: (not isinstance(e, MessageDropped), not isinstance(e, TemplateRejects)))

    def _delta(
        self,
        shape: Shape,
        base: Dicts,
        calls: Sequence[tuple[str, str]],
        new: Writer,
        tools: Sequence[dict[str, Any]],
        stop: str | None,
        thought_open: bool,
        kwargs: Mapping[str, Any],
        trace: Trace | None,
    ) -> Written:
        turn = stand_in(shape, calls)
        head = [*base, turn]

        def write(mark: Any) -> tuple[Dicts, Dicts]:
            return [*head, *new(mark)], list(tools)

        if trace is None:
            full = marked(
                self.render, self._tokens, write, generation=True, kwargs=kwargs, after=SENTINEL, in_order=True
            )
        else:
            full = traced(self.render, write, trace, side=NEW, generation=True, kwargs=kwargs, in_order=True)
        notes = list(full.notes)
        at = _outside(full.text, SENTINEL, full.holes or ())
        if at < 0:
            raise TurnNotWritten(f"the template does not write {'tool calls' if shape.calls else 'assistant content'}")
        cut = at + len(SENTINEL)
        if any(a < cut for a, _ in full.body):
            raise MessageDropped("the template writes a new message in front of the assistant turn that it answers")
        lead = full.text[cut : full.body[0][0] if full.body else None]  # the template's, before the first content
        if trace is not None:
            behind = [(a, hole) for a, _, hole in full.holes or () if a >= cut]
            lead = full.text[cut : behind[0][0] if behind else None]
            if behind and not behind[0][1].piece.required and self._ends.first_stop(lead)[1] is None:
                trace.fail("text of the history stands behind the turn, before its end is seen")

        def alone() -> str:
            return self._alone(head, tools, kwargs, trace)

        tail, close = self._ends.first_stop(lead)
        also_last = None  # whether the close is also written when the turn is last: else it may be a header
        if close is None:
            tail, close, also_last, note = self._ends.unstopped(lead, alone(), calls=shape.calls)
            notes.append(note)
        rest = lead[len(tail) :]
        if not shape.calls and tail.strip():
            notes.append(f"the template writes {tail!r} after the content of an assistant turn")
        inserted, skip = "", 0
        if stop:
            if rest.startswith(stop):
                skip = len(stop)
            elif close:
                if also_last is None:
                    also_last = alone().startswith(tail + close)
                if also_last:
                    skip = len(close)
                    notes.append(f"the sample stopped at {stop!r}; the template closes this turn with {close!r}")
                else:
                    notes.append(f"the sample stopped at {stop!r}, which the template does not write here")
        elif close:
            inserted = close
        shift = cut + len(tail) + skip
        if any(a < shift for a, _ in full.body):
            raise MessageDropped("the template writes new content before the end of the assistant turn")
        text = full.text[shift:]
        if not stop and text and self._tokens.at(rest, skip) is None:
            notes.append("the delta opens with plain text after a sample without a stop token")
        if thought_open and not stop:
            end = self.thought_end
            inserted, text, shift = end + inserted, end + text, shift - len(end)
        if shape.one_call and len(calls) > 1:
            notes.append(f"the template writes one call a turn; this turn made {len(calls)}")
        if calls and not shape.calls:
            notes.append("the template does not write tool calls; the turn stood in as plain content")
        holes = None if full.holes is None else tuple((a - shift, b - shift, h) for a, b, h in full.holes if a >= shift)
        return Written(text, _shifted(full.foreign, shift), _shifted(full.body, shift), inserted, tuple(notes), holes)

    def close(
        self,
        base: Dicts,
        calls: Sequence[tuple[str, str]],
        tools: Sequence[dict[str, Any]],
        *,
        thought_open: bool = False,
        kwargs: Mapping[str, Any],
    ) -> Written:
        """What closes a turn that was cut and that nothing follows."""
        names = [(safe_name(name), safe_name(id_, f"call{i:05d}")) for i, (name, id_) in enumerate(calls)]
        error: ChatTemplateError | None = None
        for shape in self._turns.shapes(len(names)):
            try:
                after = self._alone([*self._turns.skeleton(base), stand_in(shape, names)], tools, kwargs)
            except ChatTemplateError as e:
                error = error or e
                continue
            close = self._ends.first_stop(after)[1] or ""
            text = (self.thought_end if thought_open else "") + close
            return Written(text, inserted=text)
        raise error or TurnNotWritten("the template writes no assistant turn")

    def opening(self, write: Conversation, kwargs: Mapping[str, Any], trace: Trace | None = None) -> Written:
        """The conversation that `write` gives, up to the point at which the model begins to write."""
        if trace is not None:
            return traced(self.render, write, trace, side=NEW, generation=True, kwargs=kwargs)
        return marked(self.render, self._tokens, write, generation=True, kwargs=kwargs)

    # ------------------------------------------------------------------ parts of a turn
    @property
    def writes_thoughts(self) -> bool:
        """Whether the template writes a thought that it is given apart from the content (`reasoning_content`)."""
        return self._thought_marks is not None

    @property
    def json_arguments(self) -> bool:
        """Whether the template must be given a call's arguments as JSON text, not as a dict."""
        return self._turns.json_arguments

    @property
    def thought_end(self) -> str:
        """What closes a thought: as the template writes it, else in the commonest form."""
        return self._thought_marks[1] if self._thought_marks else "\n</think>\n\n"

    def natural_stop(self, calls: bool, tools: Sequence[dict[str, Any]], kwargs: Mapping[str, Any]) -> str | None:
        """What closes a turn, with or without calls, as the template writes it when it is last."""
        names = [("probe", "call00000")] if calls else []
        try:
            return self.close([user()], names, tools, kwargs=kwargs).text or None
        except ChatTemplateError:
            return None

    def _alone(
        self, messages: Dicts, tools: Sequence[dict[str, Any]], kwargs: Mapping[str, Any], trace: Trace | None = None
    ) -> str:
        """What follows the stand-in when no message does."""
        holes: tuple[Placed, ...] = ()
        if trace is None:
            text = self.render(messages, tools, kwargs=kwargs)
        else:
            found = traced(
                self.render, lambda _: (messages, list(tools)), trace, side=NEW, generation=False, kwargs=kwargs
            )
            text, holes = found.text, found.holes or ()
        at = _outside(text, SENTINEL, holes)
        if at < 0:
            raise TurnNotWritten("the template does not write the assistant turn")
        if trace is not None and any(b > at for _, b, _ in holes):
            trace.fail("text of the history stands behind a turn that is last")
        return text[at + len(SENTINEL) :]

    # ------------------------------------------------------------------ probes, at construction
    def _find_header(self, kwargs: Mapping[str, Any]) -> str | None:
        """The added token that opens a generation prompt."""
        try:
            given = self._probe([user()], kwargs, generation=True)
            without = self._probe([user()], kwargs)
        except TemplateRejects:
            return None
        return self._tokens.at(given, len(without)) if given.startswith(without) else None

    def _probe(self, messages: Dicts, kwargs: Mapping[str, Any], *, generation: bool = False) -> str:
        """A rendering without tools, or with them where the template demands some."""
        try:
            return self.render(messages, generation=generation, kwargs=kwargs)
        except TemplateRejects:
            return self.render(messages, PROBE_TOOLS, generation=generation, kwargs=kwargs)

    def _find_thought_marks(self, kwargs: Mapping[str, Any]) -> tuple[str, str] | None:
        """Text from the header of a turn to its thought, and from the thought to the answer."""
        turn = {"role": "assistant", "content": _ANSWER, "reasoning_content": _THOUGHT}
        try:
            text = self._probe([user(), turn], kwargs)
        except TemplateRejects:
            return None
        before, found, rest = text.partition(_THOUGHT)
        if not found or _ANSWER not in rest:
            return None
        start = before.rfind(self.header) if self.header else -1
        return before[max(start, 0) :], rest.split(_ANSWER, 1)[0]


def _outside(text: str, wanted: str, holes: Sequence[Placed]) -> int:
    """Where `wanted` stands first in the template's own characters; -1 if nowhere."""
    at = text.find(wanted)
    while at >= 0 and any(a < at + len(wanted) and at < b for a, b, _ in holes):
        at = text.find(wanted, at + 1)
    return at


def _shifted(spans: Sequence[Span], by: int) -> tuple[Span, ...]:
    return tuple((a - by, b - by) for a, b in spans if a >= by)
