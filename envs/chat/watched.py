"""Watched text: foreign text that a template can move and can ask about, and that notes every question.

A rendering with watched text yields two things: which characters of it are foreign (a rope of literal text and
holes), and all that the template learned about the foreign text on the way (questions with their answers).  Another
text that answers the same questions alike is written by the same steps into the same places: the rope filled with it
is what a rendering of it would be.  That is what lets `memo.py` write a delta without rendering.

`Watched` is deliberately no `str`.  C code that reads the buffer of a string (`x in "literal"`, `re`, `json.dumps`,
`str.join`) can't read this; it raises.  So what is not written down here does not happen unseen: it fails, and the
rendering is done the ordinary way.  What Python itself would answer for any object (`isinstance`, `hasattr`) is the
business of `tracing.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NoReturn

from toolstep.envs.chat.holes import CUTS, LABELS, Hole, Question, answer


class Untraceable(Exception):
    """The template does something with foreign text that is not followed."""


class Trace:
    """What is asked during the renderings of one delta.  One thread's."""

    def __init__(self) -> None:
        self.questions: set[Question] = set()
        self.failed = ""
        self.blames_label = False
        self.once = False  # the rendering holds for this conversation and for no other

    def ask(self, hole: Hole, asked: str, argument: Any = None) -> Any:
        question = (hole.piece.side, hole.ops, asked, argument)
        if hole.piece.side:
            self.questions.add(question)
        return answer(question, hole.piece.text)

    def fail(self, reason: str, *about: Watched) -> NoReturn:
        """Give up.  Remembered, so that nothing that catches the exception hides it."""
        self.failed = self.failed or reason
        self.blames_label |= any(h.piece.side == LABELS for w in about for h in w.holes)
        raise Untraceable(reason)


class Watched:
    """Text made of literal parts and holes."""

    __slots__ = ("parts", "trace")

    def __init__(self, parts: tuple[str | Hole, ...], trace: Trace):
        self.parts = parts
        self.trace = trace

    @property
    def holes(self) -> list[Hole]:
        return [p for p in self.parts if isinstance(p, Hole)]

    @property
    def text(self) -> str:
        return "".join(p if isinstance(p, str) else p.text for p in self.parts)

    # ------------------------------------------------------------------ what only moves text
    def __add__(self, other: Any) -> Any:
        return concat((self, self._addable(other)))

    def __radd__(self, other: Any) -> Any:
        return concat((self._addable(other), self))

    def _addable(self, other: Any) -> Any:
        if type(other) is str or isinstance(other, Watched):
            return other
        if isinstance(other, str):  # Markup escapes what is added to it
            self.trace.fail("foreign text is added to marked-up text", self)
        raise TypeError(f"can only concatenate str (not {type(other).__name__!r}) to str")

    def strip(self, chars: str | None = None) -> Any:
        left = self.lstrip(chars)
        return left.rstrip(chars)

    def lstrip(self, chars: str | None = None) -> Any:
        return self._stripped("lstrip", chars, list(self.parts), 0)

    def rstrip(self, chars: str | None = None) -> Any:
        return self._stripped("rstrip", chars, list(self.parts), -1)

    def _stripped(self, op: str, chars: str | None, parts: list[str | Hole], end: int) -> Any:
        if chars is not None and type(chars) is not str:
            self.trace.fail("stripped of characters that are not literal", self)
        done: list[str | Hole] = []  # from the stripped end on
        while parts:
            part = parts.pop(end)
            if isinstance(part, str):
                part = CUTS[op](part, chars)
                blank = not part
            elif any(name == "json" for name, _ in part.ops):
                self.trace.fail("stripped after it was dumped as JSON", self)
            else:
                blank = bool(parts) and self.trace.ask(part, "blank", chars)
                part = part.then(op, chars)
            done.append(part)
            if not blank:
                break
        return rope([*done, *parts] if end == 0 else [*parts, *reversed(done)], self.trace)

    def json(self, ensure_ascii: bool) -> list[str | Hole]:
        """The parts of the text as the inside of a JSON string."""
        return [
            json.dumps(p, ensure_ascii=ensure_ascii)[1:-1] if isinstance(p, str) else p.then("json", ensure_ascii)
            for p in self.parts
        ]

    # ------------------------------------------------------------------ questions
    def __bool__(self) -> bool:
        if any(isinstance(p, str) for p in self.parts):
            return True  # a rope has no empty literal
        return any(self.trace.ask(p, "filled") for p in self.holes)

    def startswith(self, prefix: Any) -> bool:
        return self._edge(prefix, "starts", self.parts)

    def endswith(self, suffix: Any) -> bool:
        return self._edge(suffix, "ends", self.parts[::-1])

    def _edge(self, wanted: Any, asked: str, parts: tuple[str | Hole, ...]) -> bool:
        if type(wanted) is tuple and all(type(w) is str for w in wanted):
            return any(self._edge(w, asked, parts) for w in wanted)
        if type(wanted) is not str:
            self.trace.fail("compared with text that is not literal", self)
        first = parts[0]
        if isinstance(first, str):
            n = min(len(wanted), len(first))
            ends = asked == "ends"
            if (first[-n:] != wanted[-n:] if ends else first[:n] != wanted[:n]) and n:
                return False
            if n == len(wanted):
                return True
            return self._edge(wanted[: len(wanted) - n] if ends else wanted[n:], asked, parts[1:])
        if len(parts) > 1:
            self.trace.fail("a question runs over several pieces of text", self)
        return bool(self.trace.ask(first, asked, wanted))

    def __contains__(self, part: Any) -> bool:
        if type(part) is not str:
            self.trace.fail("searched for text that is not literal", self)
        if any(part in p if isinstance(p, str) else self.trace.ask(p, "holds", part) for p in self.parts):
            return True
        self._stays_apart(part)
        return False

    def replace(self, old: Any, new: Any, count: Any = -1) -> Any:
        """Followed only where it takes text out."""
        if type(old) is not str or not old or new != "" or count != -1:
            self.trace.fail("text in it is replaced", self)
        if any(name == "json" for h in self.holes for name, _ in h.ops):
            self.trace.fail("changed after it was dumped as JSON", self)
        self._stays_apart(old)
        parts = [p.replace(old, "") if isinstance(p, str) else p.then("without", old) for p in self.parts]
        return rope(parts, self.trace)

    def _stays_apart(self, part: str) -> None:
        """Make sure that no `part` can begin in one piece of the text and end in another, whatever is in the holes."""
        if len(self.parts) == 1 or len(part) <= 1:
            return
        literals = [p for p in self.parts if isinstance(p, str)]
        if any(
            lit in part or any(lit.endswith(part[:k]) or lit.startswith(part[k:]) for k in range(1, len(part)))
            for lit in literals
        ):
            self.trace.fail("a search runs over several pieces of text", self)
        if any(isinstance(a, Hole) and isinstance(b, Hole) for a, b in zip(self.parts, self.parts[1:])):
            self.trace.fail("a search runs over several pieces of text", self)

    def __eq__(self, other: Any) -> bool:
        if self is other:
            return True
        if not isinstance(other, (str, Watched)):
            return False
        if type(other) is not str or len(self.parts) > 1:
            both = [self, other] if isinstance(other, Watched) else [self]
            if any(h.piece.side == LABELS for w in both for h in w.holes):
                self.trace.fail("compared with other foreign text", *both)
            self.trace.once = True  # how two texts compare is no question to one of them
            return self.text == (other.text if isinstance(other, Watched) else other)
        first = self.parts[0]
        return bool(self.trace.ask(first, "equals", other)) if isinstance(first, Hole) else False

    def __ne__(self, other: Any) -> bool:
        return not self == other

    def __len__(self) -> int:
        first = self.parts[0]
        if len(self.parts) > 1 or isinstance(first, str) or first.piece.side not in ("", LABELS):
            self.trace.fail("its length is measured", self)
        return int(self.trace.ask(first, "length"))

    # ------------------------------------------------------------------ what is not followed
    def __hash__(self) -> int:
        self.trace.fail("used as a key", self)

    def _refuse(self, *_: Any) -> NoReturn:
        self.trace.fail("cut, ordered, formatted or taken apart", self)

    __str__ = __repr__ = __format__ = __bytes__ = _refuse
    __iter__ = __getitem__ = __reversed__ = __index__ = __int__ = __float__ = __complex__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __mul__ = __rmul__ = __mod__ = __rmod__ = __neg__ = __pos__ = __invert__ = _refuse
    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = __call__ = _refuse


class Measured:
    """The length of a watched text, of which only comparisons with numbers are followed."""

    __slots__ = ("_text",)

    def __init__(self, text: Watched):
        self._text = text

    def _over(self, n: Any) -> bool:
        hole = self._text.parts[0]
        if len(self._text.parts) > 1 or isinstance(hole, str) or type(n) is not int:
            self._text.trace.fail("its length is measured", self._text)
        return bool(self._text.trace.ask(hole, "longer", n))

    def __gt__(self, n: Any) -> bool:
        return self._over(n)

    def __ge__(self, n: Any) -> bool:
        return self._over(n - 1 if type(n) is int else n)

    def __lt__(self, n: Any) -> bool:
        return not self >= n

    def __le__(self, n: Any) -> bool:
        return not self > n

    def __eq__(self, n: Any) -> bool:
        return self >= n and not self > n

    def __ne__(self, n: Any) -> bool:
        return not self == n

    def __bool__(self) -> bool:
        return self > 0

    def _refuse(self, *_: Any) -> NoReturn:
        self._text.trace.fail("its length is measured", self._text)

    __hash__ = __str__ = __repr__ = __format__ = __int__ = __index__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __neg__ = __pos__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __pow__ = __rpow__ = __abs__ = __round__ = _refuse
    __copy__ = __deepcopy__ = __reduce__ = __reduce_ex__ = _refuse


def rope(parts: Iterable[str | Hole], trace: Trace) -> Any:
    """The parts as one text: adjacent literals are joined; without a hole, an ordinary string."""
    out: list[str | Hole] = []
    for p in parts:
        if isinstance(p, str) and out and isinstance(out[-1], str):
            out[-1] += p
        elif p != "":
            out.append(p)
    if all(isinstance(p, str) for p in out):
        return out[0] if out else ""
    return Watched(tuple(out), trace)


def concat(values: Iterable[Any]) -> Any:
    """`"".join` for strings and watched text."""
    parts: list[str | Hole] = []
    trace: Trace | None = None
    for v in values:
        if isinstance(v, Watched):
            trace = v.trace
            parts += v.parts
        else:
            parts.append(v)
    return "".join(parts) if trace is None else rope(parts, trace)  # type: ignore[arg-type]
