"""Where a turn ends in what follows its words: at a stop token, or where a template writes none."""

from __future__ import annotations

from toolstep.envs.chat.encoder import ControlTokens
from toolstep.envs.chat.errors import StopTokenMismatch


class TurnEnds:
    """Finds the ends of one template's turns.  Immutable.

    tokens: the added tokens of the vocabulary.  stops: the texts at which generation stops.  header: the token that
    opens a generation prompt.
    """

    def __init__(self, tokens: ControlTokens, stops: frozenset[str], header: str | None):
        self._tokens, self._stops, self._header = tokens, stops, header

    def first_stop(self, after: str) -> tuple[str, str | None]:
        """Text up to the first stop token, and that token."""
        found = [(at, -len(s), s) for s in self._stops if (at := after.find(s)) >= 0]
        if not found:
            return "", None
        at, _, token = min(found)
        return after[:at], token

    def unstopped(self, after: str, alone: str, *, calls: bool) -> tuple[str, str | None, bool, str]:
        """(tail, close, close is also written last, note) of a turn with no stop token in front of the first content.

        after, alone: what follows the turn's words, with messages behind it and without.  calls: it makes calls.
        """
        tail = self._shared(alone, after)
        if self._header and self._header in tail:  # a turn's own text does not open the next one
            tail = tail[: tail.index(self._header)]
        last, here = self._tokens.at(alone, len(tail)), self._tokens.at(after, len(tail))
        if (
            last in self._stops
            and here
            and here != last
            and self._tokens.at(after, len(tail) + len(here)) == self._header
        ):
            return tail, here, True, f"the template writes {here!r} in place of the stop token once the turn is history"
        if not calls and (token := next(iter(self._tokens.find_all(tail)), None)):
            raise StopTokenMismatch(
                f"the template closes assistant turns with {token!r}, but generation stops at "
                f"{sorted(self._stops)}: it would run on.  Pass stop_tokens={sorted({*self._stops, token})!r}"
            )
        return tail, None, False, "the template writes no close after this turn"

    def _shared(self, a: str, b: str) -> str:
        """What both texts begin with, in whole tokens."""
        n = 0
        while n < len(a) and n < len(b):
            ta, tb = self._tokens.at(a, n), self._tokens.at(b, n)
            if ta != tb or (ta is None and a[n] != b[n]):
                break
            n += len(ta) if ta else 1
        return a[:n]
