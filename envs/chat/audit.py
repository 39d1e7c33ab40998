"""`audit_template`: is the context that an episode builds what the template itself would write?

Run it on every new model before training on it.  Each scenario is played through `ChatTemplate` and, by
`chat/audit_truth.py`, as a rendering of the real conversation; the two are compared as text and as ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np

from toolstep.envs.chat import builtin
from toolstep.envs.chat.audit_report import Audit, Check, Difference, Facts, first_difference
from toolstep.envs.chat.audit_scenarios import PLACE, SYSTEM, TOOLS, Scenario, described, said, scenarios, worded
from toolstep.envs.chat.audit_truth import Boundary, Truth
from toolstep.envs.chat.encoder import ControlTokens, Encoder, encoder_for
from toolstep.envs.chat.errors import ChatTemplateError, TurnNotWritten
from toolstep.envs.chat.render import Renderer
from toolstep.envs.chat.segment import Segment
from toolstep.envs.chat.stop_tokens import stop_tokens_of_config
from toolstep.envs.chat.template import ChatTemplate
from toolstep.envs.chat.tokenizer import load_tokenizer
from toolstep.envs.types import Message, Turn

OPENS_OTHERWISE = "in history the template opens the turn otherwise than its generation prompt did"
_THOUGHT_END = "\n</think>\n\n"  # where a template writes no thoughts


def audit_template(
    tokenizer: Any = None,
    *,
    chat_template: str | Mapping[str, str] | None = None,
    stop_tokens: Collection[str | int] | None = None,
    tool_call_format: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> Audit:
    """Play all scenarios of `audit_scenarios` with a tokenizer's template; the arguments are `ChatTemplate`'s.

    Raises:
        ChatTemplateError: the template cannot be used at all; the message says what to do.
    """
    clock = datetime.now()
    name = tokenizer if isinstance(tokenizer, str) else str(getattr(tokenizer, "name_or_path", "") or "")
    loaded = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    chat = ChatTemplate(
        loaded,
        chat_template=chat_template,
        stop_tokens=stop_tokens,
        tool_call_format=tool_call_format,
        template_kwargs=template_kwargs,
        clock=clock,
    )
    text = chat_template or getattr(loaded, "chat_template", None) or builtin.CHATML_HERMES
    variables = dict(loaded.special_tokens_map) if loaded is not None else {}
    source = "given" if stop_tokens is not None else _stop_source(loaded)
    auditor = _Auditor(chat, Renderer(text, variables, clock=clock), text)
    checks = tuple(auditor.check(s) for s in scenarios(auditor.hostile))
    return Audit(name or type(tokenizer).__name__, auditor.facts(checks, source), checks)


class _Auditor:
    def __init__(self, chat: ChatTemplate, render: Renderer, text: str | Mapping[str, str]):
        self.chat = chat
        self.encoder: Encoder | None = None if chat.tokenizer is None else encoder_for(chat.tokenizer)
        added = builtin.SPECIAL_TOKENS if self.encoder is None else self.encoder.added.texts
        tokens = ControlTokens([*added, *chat.stop_tokens])
        self.truth = Truth(render, chat._support.wording, tokens, chat.stop_tokens, chat.template_kwargs)
        whole = text if isinstance(text, str) else "".join(text.values())
        used = sorted(t for t in tokens.texts if t in whole or t in chat.stop_tokens)
        given = self.truth.text(self.truth.opening, generation=True)
        frame = min(chat.stop_tokens) + "\n" + given[len(given.rstrip()) - 24 :]
        halves = [*(t[: len(t) // 2] for t in used[:5]), *(t[1:] for t in used[:5])]
        self.hostile = " ".join([*used, frame, *halves])
        self._rewrites: dict[str, set[str]] = {"tool": set(), "user": set()}

    def check(self, s: Scenario) -> Check:
        """Play one scenario."""
        history = [*self.truth.opening, *s.before]
        try:
            if s.kind == "prompt":
                return self._prompt(s, [*history[:-1], *(s.new or history[-1:])])
            if s.kind == "close":
                return self._close(s, history)
            if s.kind == "past":
                return self._past(s)
            return self._delta(s, history)
        except ChatTemplateError as e:
            return Check(s.name, s.title, "refused", type(e).__name__, " ".join(str(e).split()))

    def _prompt(self, s: Scenario, messages: Sequence[Message]) -> Check:
        segment = self.chat.prompt(messages, TOOLS)
        expected = self.truth.text(messages, generation=True)
        harmless = None
        if s.hostile:
            harmless = self.chat.prompt([*messages[:-1], *worded(s.new, lambda i: "x")], TOOLS)
        return self._verdict(s, segment, expected, expected, harmless)

    def _close(self, s: Scenario, history: Sequence[Message]) -> Check:
        turn = s.turn or Turn("")
        segment = self.chat.close(history, turn, TOOLS, thought_open=s.thought_open)
        expected = self.truth.close(history, _answer(turn))
        if s.thought_open:
            expected = (self.truth.thought_end() or _THOUGHT_END) + expected
        if segment.inserted != segment.text:
            return Check(s.name, s.title, "wrong", detail=f"only {segment.inserted!r} of {segment.text!r} is reported")
        return self._verdict(s, segment, expected, min(self.chat.stop_tokens) + expected, None)

    def _past(self, s: Scenario) -> Check:
        """What a template repeats of the task and the tools in a delta must be no control token there either."""
        if self.encoder is None:
            return Check(s.name, s.title, "n/a", detail="there is no tokenizer")

        def delta(text: str) -> Segment:
            history = worded(self.truth.opening, lambda i: text)
            return self.chat.delta(history, s.turn or Turn(""), s.new, described(text), stop=None)

        got = delta(self.hostile)
        return self._verdict(s, got, got.text, got.text, delta("x"))

    def _delta(self, s: Scenario, history: Sequence[Message]) -> Check:
        turn, stops = s.turn or Turn(""), self.chat.stop_tokens
        past, shown, real, end, policy, detail = self._real(history, turn, s.new)
        stop = None
        if s.ended == "stop":
            stop = end.close if end.close in stops else min(stops)
        elif s.ended == "other":
            stop = min((t for t in stops if t != end.close), default=None)
            if stop is None:
                return Check(s.name, s.title, "n/a", detail="there is only one stop token")
        segment = self.chat.delta(history, turn, s.new, TOOLS, stop=stop)
        expected = _after(real, end, stop)
        if expected is None:
            return Check(s.name, s.title, "wrong", detail="the template writes the turn differently for this content")
        inserted = end.close if stop is None else ""
        if segment.inserted != inserted:
            detail = f"the close {inserted!r} is due, {segment.inserted!r} is reported"
            return Check(s.name, s.title, "wrong", detail=detail)
        harmless = None
        if s.hostile:
            harmless = self.chat.delta(history, turn, worded(s.new, lambda i: "x"), TOOLS, stop=stop)
        words = worded(s.new, lambda i: f"Qz7word{i}")
        neutral = _after(self.truth.text([*past, said(shown), *words], generation=True), end, stop) or ""
        for word, message in zip(words, s.new, strict=True):
            neutral = neutral.replace(word.content, message.content)
        lost = self._lost(past, turn, shown, real)
        if lost:
            self._rewrites["user" if s.new[-1].role == "user" else "tool"].update(lost)
            policy = "keep"
            detail = f"{' and '.join(lost)} by the template here; an append-only context keeps what was there"
        check = self._verdict(s, segment, expected, real, harmless, neutral)
        if not lost and not real.startswith(self.truth.text(past, generation=True)):
            check = replace(check, notes=(*check.notes, OPENS_OTHERWISE))
        if policy and check.status == "exact":
            return replace(check, status="policy", policy=policy, detail=detail)
        return check

    def _real(
        self, history: Sequence[Message], turn: Turn, new: Sequence[Message]
    ) -> tuple[Sequence[Message], Turn, str, Boundary, str, str]:
        """(history and turn as the template can write them, real conversation, the turn's end in it, policy, why)."""
        ways = [(history, turn, "", "")]
        if turn.calls and (turn.content or turn.reasoning):
            reason = "the template does not write text before calls in this place; the context keeps what was sampled"
            ways.append((history, replace(turn, content="", reasoning=None), "keep", reason))
        if len(turn.calls) > 1:
            first = replace(turn.calls[0], parsed={"city": PLACE})
            reason = "the template takes one call a turn; this is what it writes after a turn that makes the first"
            ways.append((history, replace(turn, calls=(first,)), "one call", reason))
        if any(len(m.tool_calls) > 1 for m in history):
            reason = "the template takes one call a turn; this is what it writes where earlier turns made their first"
            ways.append(([replace(m, tool_calls=m.tool_calls[:1]) for m in history], turn, "one call", reason))
        error: ChatTemplateError | None = None
        for past, shown, policy, reason in ways:
            try:
                real = self.truth.text([*past, said(shown), *new], generation=True)
                end = self.truth.boundary(past, shown, new)
            except ChatTemplateError as e:
                error = error or e
                continue
            moved = [t for t in (shown.content, shown.reasoning) if t and t in real[len(end.front) :]]
            if not shown.calls or not moved:
                return past, shown, real, end, policy, reason
        self.chat.delta(history, turn, new, TOOLS, stop=None)  # its refusal says more
        raise error or TurnNotWritten("the template does not write this turn")

    def _lost(self, history: Sequence[Message], turn: Turn, shown: Turn, real: str) -> list[str]:
        """What the template no longer writes of the context in the real conversation."""
        given = self.truth.text(history, generation=True)
        word = history[-1].content.strip()
        end = given.rfind(word) + len(word)
        out = []
        if turn.reasoning:
            alone = self.truth.text([*history, said(shown)])
            if turn.reasoning in alone and turn.reasoning not in real:
                out.append("thoughts dropped")
        if real[:end] != given[:end]:
            gone = history[0].role == "system" and history[0].content not in real
            out.append("system prompt dropped" if gone else "earlier text rewritten")
        return out

    def _verdict(
        self,
        s: Scenario,
        segment: Segment,
        expected: str,
        whole: str,
        harmless: Segment | None,
        neutral: str = "",
    ) -> Check:
        """Compare a segment with what the template writes there, and with the ids of the whole rendering.

        neutral: what the template writes there around other content, for one whose logic looks into content.
        """
        check = Check(s.name, s.title, "exact", notes=segment.notes)
        if segment.text != expected:
            if segment.text != neutral or not segment.notes:
                found = first_difference(expected, segment.text)
                return replace(check, status="wrong", detail="the text differs", difference=found)
            check = replace(check, status="policy", policy="neutral form", notes=(), detail=segment.notes[-1])
            whole = min(self.chat.stop_tokens) + neutral
        if self.encoder is None:
            return check
        if harmless is not None:
            got, want = self._control(segment), self._control(harmless)
            if got != want:
                return replace(
                    check,
                    status="wrong",
                    detail="content became control tokens",
                    difference=first_difference(want, got),
                )
            return check
        encode = self.chat.tokenizer.encode
        ids = np.asarray(encode(whole, add_special_tokens=False), np.int64)
        front = encode(whole.removesuffix(segment.text), add_special_tokens=False)
        if not np.array_equal(ids, [*front, *segment.ids]):
            due = ids[len(front) :]
            pairs = zip(due, segment.ids, strict=False)
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(due), len(segment.ids)))
            near = [self.chat.decode(x[max(at - 4, 0) : at + 4]) for x in (due, segment.ids)]
            return replace(check, status="wrong", detail="the ids differ", difference=Difference(at, *near))
        return check

    def _control(self, segment: Segment) -> str:
        """The control tokens of a segment, one behind the other."""
        assert self.encoder is not None
        return " ".join(self.chat.decode([i]) for i in segment.ids.tolist() if i in self.encoder.control_ids)

    def facts(self, checks: Sequence[Check], source: str) -> Facts:
        safe = all(c.status != "wrong" for c in checks if c.scenario.startswith("hostile"))
        chat = self.chat
        return Facts(
            native_tools=chat.writes_tools,
            parts={k: "native" if getattr(chat.native, k) else "text" for k in ("schemas", "calls", "results")},
            tool_call_format=chat.tool_call_format.name,
            stop_tokens=tuple(sorted(chat.stop_tokens)),
            stop_source=source,
            system_role=self.truth.opening[0] == SYSTEM,
            writes_thoughts=self.truth.thought_end() is not None,
            rewrites={k: tuple(sorted(v)) for k, v in self._rewrites.items()},
            injection_safe=safe if self.encoder is not None else None,
            vocabulary=chat.vocabulary,
        )


def _stop_source(tokenizer: Any) -> str:
    """Which of the places that `default_stop_tokens` looks at has named the stop tokens."""
    if tokenizer is None:
        return "built-in template"
    if getattr(tokenizer, "init_kwargs", {}).get("stop_tokens"):
        return "model file"
    if stop_tokens_of_config(str(getattr(tokenizer, "name_or_path", "") or ""), tokenizer):
        return "generation_config.json"
    return "the tokenizer's eos_token"


def _answer(turn: Turn) -> Turn:
    """A plain turn whose end can be looked up; what closes it closes a turn cut inside a thought as well."""
    return turn if PLACE in turn.content else Turn(f"It is sunny in {PLACE}")


def _after(real: str, end: Boundary, stop: str | None) -> str | None:
    """What follows a sample that ended with `stop` (None: with no stop token)."""
    if not real.startswith(end.front):
        return None
    rest = real[len(end.front) :]
    if stop is None or not rest.startswith(end.close):
        return rest
    # A stop token that the template writes only where something follows opens that: it stays in the delta.
    return rest[len(end.close) :] if stop == end.close or end.also_last else rest
