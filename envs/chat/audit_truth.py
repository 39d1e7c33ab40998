"""What a template writes for real conversations: the truth that an audit holds deltas against.

Nothing here uses the delta algorithm.  A real conversation (no sentinel, no marks, no shortened history) is
rendered, and the end of the audited turn is looked up in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolstep.envs.chat.audit_scenarios import PLACE, SYSTEM, TOOLS, USER, calls, result, said, worded
from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.errors import ChatTemplateError, TurnNotWritten
from toolstep.envs.chat.marks import Marker
from toolstep.envs.chat.render import Renderer
from toolstep.envs.chat.wording import Wording
from toolstep.envs.types import Message, Turn


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where a turn ends in a real conversation.

    front: the text up to there, its close not included.  close: what closes it ("": nothing does).
    also_last: whether the close is written as well when the turn is the last message.
    """

    front: str
    close: str
    also_last: bool


class Truth:
    """Renders real conversations with one template.

    tokens: the added tokens of the vocabulary.  stops: where generation stops.
    """

    def __init__(
        self,
        render: Renderer,
        wording: Wording,
        tokens: ControlTokens,
        stops: frozenset[str],
        kwargs: Mapping[str, Any],
    ):
        self._render, self._wording, self._tokens, self._kwargs = render, wording, tokens, kwargs
        self.stops = stops
        self._form: tuple[str | None, bool] = (None, False)  # content, and whether arguments are JSON text
        self.opening = self._find_opening()
        self._find_form()
        given, without = self.text(self.opening, generation=True), self.text(self.opening)
        self._header = tokens.at(given, len(without)) if given.startswith(without) else None

    def text(self, messages: Sequence[Message], *, generation: bool = False) -> str:
        """The conversation as the template writes it.  Raises TemplateRejects."""
        shown, _ = self._wording.written_results(messages)
        dicts = [self._dict(d) for d in self._wording.messages(shown, TOOLS, Marker(plain=True))]
        return self._render(dicts, self._wording.tools(TOOLS, None), generation=generation, kwargs=self._kwargs)

    def boundary(self, history: Sequence[Message], turn: Turn, new: Sequence[Message]) -> Boundary:
        """The end of `turn`, which mentions PLACE, where messages like `new` follow it."""
        words = worded(new, lambda i: f"Qz7word{i}")
        real, alone = self.text([*history, said(turn), *words], generation=True), self._alone(history, turn)
        limit = real.find("Qz7word0")
        start = real.rfind(PLACE, 0, max(limit, 0)) + len(PLACE)
        if limit < 0 or start < len(PLACE):
            raise TurnNotWritten("the template does not write this turn in front of what follows it")
        region = real[start:limit]
        if found := self._first_stop(region):
            at, close = found
            return Boundary(real[: start + at], close, alone.startswith(region[: at + len(close)]))
        n = self._shared(alone, region)
        if self._header and self._header in region[:n]:
            n = region.index(self._header)
        here, last = self._tokens.at(region, n), self._tokens.at(alone, n)
        rewritten = here and last in self.stops and self._tokens.at(region, n + len(here)) == self._header
        return Boundary(real[: start + n], here if here and rewritten else "", bool(rewritten))

    def close(self, history: Sequence[Message], turn: Turn) -> str:
        """What closes a turn that nothing follows."""
        found = self._first_stop(self._alone(history, turn))
        return found[1] if found else ""

    def thought_end(self) -> str | None:
        """The text between a thought and the answer; None where the template writes no thoughts."""
        if not self._wording.native.thoughts:
            return None
        turn = Message("assistant", "Qz7answer", reasoning="Qz7thought")
        try:
            text = self.text([*self.opening, turn])
        except ChatTemplateError:
            return None
        _, found, rest = text.partition("Qz7thought")
        return rest.split("Qz7answer")[0] if found and "Qz7answer" in rest else None

    # ------------------------------------------------------------------ parts
    def _alone(self, history: Sequence[Message], turn: Turn) -> str:
        text = self.text([*history, said(turn)])
        at = text.rfind(PLACE)
        if at < 0:
            raise TurnNotWritten("the template does not write this turn")
        return text[at + len(PLACE) :]

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        found = [(at, -len(s), s) for s in self.stops if (at := text.find(s)) >= 0]
        return (min(found)[0], min(found)[2]) if found else None

    def _shared(self, a: str, b: str) -> int:
        """Length of what both begin with, in whole tokens."""
        n = 0
        while n < min(len(a), len(b)):
            ta, tb = self._tokens.at(a, n), self._tokens.at(b, n)
            if ta != tb or (ta is None and a[n] != b[n]):
                break
            n += len(ta) if ta else 1
        return n

    def _find_opening(self) -> tuple[Message, ...]:
        try:
            if SYSTEM.content in self.text([SYSTEM, USER], generation=True):
                return (SYSTEM, USER)
        except ChatTemplateError:
            pass
        return (USER,)

    def _find_form(self) -> None:
        """See how the template writes calls, if it does."""
        for form in ((None, False), ("", False), (None, True), ("", True), ("ok", False), ("ok", True)):
            self._form = form
            try:
                text = self.text([*self.opening, said(Turn("", None, calls(1))), result(0, "ok")], generation=True)
            except ChatTemplateError:
                continue
            if PLACE in text:
                return

    def _dict(self, message: dict[str, Any]) -> dict[str, Any]:
        if not message.get("tool_calls"):
            return message
        content, as_json = self._form
        message["content"] = message["content"] or content
        for call in message["tool_calls"]:
            given = call["function"]["arguments"]
            arguments = json.loads(given) if isinstance(given, str) else given
            call["function"]["arguments"] = json.dumps(arguments) if as_json else arguments
        return message
