"""Encoding by provenance: added tokens are recognised only in the template's own characters (invariant I4).

`tokenizer.encode(split_special_tokens=True)` is not enough: tokens added with `special=False` (Qwen's
`<tool_response>`, MiniMind's `</think>`) stay control tokens under it.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.envs.chat.errors import UnsafeContent, UnsupportedTokenizer
from toolstep.envs.chat.marks import Span

_KEPT = 16 << 20  # characters, at most, of texts whose ids are kept
_SURROGATE = re.compile("[\ud800-\udfff]")


class ControlTokens:
    """The texts of added tokens, and a search for them, the longest first."""

    def __init__(self, texts: Iterable[str]):
        self.texts = frozenset(t for t in texts if t)
        self._by_head: dict[str, list[str]] = {}
        for t in sorted(self.texts, key=lambda t: (-len(t), t)):
            self._by_head.setdefault(t[0], []).append(t)
        heads = "".join(re.escape(c) for c in sorted(self._by_head))
        self._head = re.compile(f"[{heads}]" if heads else r"(?!)")

    def candidates(self, text: str, pos: int) -> Iterator[str]:
        """Added tokens that stand at `pos`, the longest first."""
        return (t for t in self._by_head.get(text[pos : pos + 1], ()) if text.startswith(t, pos))

    def at(self, text: str, pos: int) -> str | None:
        return next(self.candidates(text, pos), None)

    def heads(self, text: str, pos: int) -> Iterator[int]:
        """Positions from `pos` on at which a token could begin."""
        return (m.start() for m in self._head.finditer(text, pos))

    def spans(self, text: str) -> Iterator[Span]:
        """Where tokens stand in `text`, from left to right, none overlapping another."""
        end = 0
        for pos in self.heads(text, 0):
            if pos >= end and (token := self.at(text, pos)) is not None:
                end = pos + len(token)
                yield pos, end

    def find_all(self, text: str) -> list[str]:
        """The tokens at `spans`."""
        return [text[a:b] for a, b in self.spans(text)]


class Encoder:
    """Encodes text in which some spans are not the template's: there, no added token is recognised.

    Elsewhere the ids are those that the tokenizer gives for the whole text.  Thread-safe; see `encoder_for`.
    """

    def __init__(self, tokenizer: Any):
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedTokenizer(
                f"{type(tokenizer).__name__} has no fast backend (`backend_tokenizer`), which is needed to "
                "encode text without its added tokens; load a tokenizer.json with transformers.AutoTokenizer"
            )
        from tokenizers import AddedToken, Tokenizer

        # The copy shares the vocabulary with the original and lacks its added tokens.
        plain = Tokenizer(backend.model)
        if backend.normalizer is not None:
            plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            plain.pre_tokenizer = backend.pre_tokenizer
        # Text in the middle of a context is encoded behind an anchor: SentencePiece would put a space before it else.
        # The anchor is a token of the copy, so it is drawn: no foreign text can hold it.
        self._anchor = f"\U000ffffd{secrets.token_hex(16)}\U000ffffd"
        plain.add_special_tokens([AddedToken(self._anchor, special=True, normalized=False)])
        self._plain = plain
        self._scaffold: dict[str, list[int]] = {}  # what stood between added tokens -> its ids
        self._kept = 0
        self._lock = threading.Lock()
        self._added = {t.content: (int(i), t) for i, t in tokenizer.added_tokens_decoder.items() if t.content}
        self.added = ControlTokens(self._added)
        self.control_ids = frozenset(
            i for i, t in self._added.values() if t.special or not t.content.isspace()
        ) - _unknown_ids(backend)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scaffold": {}, "_kept": 0, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def control_in(self, text: str) -> list[str]:
        """Added tokens in `text` that are more than white space."""
        return [t for t in self.added.find_all(text) if self._added[t][0] in self.control_ids]

    def encode(
        self, text: str, foreign: Sequence[Span] = (), body: Sequence[Span] = (), *, opening: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Ids, int64 [T], and for each id whether it holds a character of a `body` span, bool [T].

        opening: nothing stands before the text; some vocabularies put a space in front of one that begins with words.
        Lone surrogates, which no tokenizer takes, are read as U+FFFD.
        """
        text = clean(text)
        not_ours, contents = Spans(foreign), Spans(body)
        ids: list[int] = []
        holds: list[bool] = []
        done = 0
        for start, end, token_id in self._tokens(text, not_ours):
            self._between(text, done, start, ids, holds, contents, opening and done == 0)
            ids.append(token_id)
            holds.append(contents.meet(start, end))
            done = end
        self._between(text, done, len(text), ids, holds, contents, opening and done == 0)
        return np.asarray(ids, np.int64), np.asarray(holds, np.bool_)

    def plain_ids(self, text: str) -> list[int]:
        """Ids of text in which nothing is a control token."""
        return [i for i, _, _ in self._pieces(clean(text))]

    def prefix(self, text: str, n: int) -> str:
        """The longest prefix of `text` that holds at most `n` tokens, cut between characters."""
        if n <= 0:
            return ""
        text = clean(text)
        window = 16 * n + 64  # an average token is far shorter: encode no more of a huge text than needed
        while True:
            pieces = self._pieces(text[:window])
            if len(pieces) > n or window >= len(text):
                break
            window *= 4
        if len(pieces) <= n:
            return text
        while n > 0:
            cut = pieces[n - 1][2]
            if pieces[n][1] < cut:  # one character made of several tokens
                cut = pieces[n][1]
            if len(self._pieces(text[:cut])) <= n:
                return text[:cut]
            n -= 1
        return ""

    def _tokens(self, text: str, foreign: Spans) -> Iterator[tuple[int, int, int]]:
        """(start, end, id) of the added tokens in the template's characters."""
        free = 0
        for pos in self.added.heads(text, 0):
            if pos < free:
                continue
            hit = next((t for t in self.added.candidates(text, pos) if self._allowed(pos, t, foreign)), None)
            if hit is None:
                continue
            token_id, token = self._added[hit]
            start, end = pos, pos + len(hit)
            if token.single_word and (_word(text, start - 1) or _word(text, end)):
                continue
            if token.lstrip:
                while start > free and text[start - 1].isspace():
                    start -= 1
            if token.rstrip:
                while end < len(text) and text[end].isspace():
                    end += 1
            free = end
            yield start, end, token_id

    def _allowed(self, start: int, token: str, foreign: Spans) -> bool:
        end = start + len(token)
        if not foreign.meet(start, end):
            return True
        return foreign.hold(start, end) and token.isspace() and not self._added[token][1].special

    def _between(
        self, text: str, start: int, end: int, ids: list[int], holds: list[bool], body: Spans, first: bool
    ) -> None:
        """Append what stands between two added tokens; first: nothing stands before it."""
        if start >= end:
            return
        piece = text[start:end]
        if first or body.meet(start, end):
            for i, a, b in self._pieces(piece, first):
                ids.append(i)
                holds.append(body.meet(start + a, start + b))
            return
        found = self._scaffold.get(piece)
        if found is None:
            found = [i for i, _, _ in self._pieces(piece)]
            self._keep(piece, found)
        ids += found
        holds += [False] * len(found)

    def _keep(self, piece: str, ids: list[int]) -> None:
        with self._lock:
            self._kept += len(piece) + 64
            if self._kept > _KEPT:
                self._scaffold, self._kept = {}, len(piece) + 64
            self._scaffold[piece] = ids

    def _pieces(self, text: str, first: bool = False) -> list[tuple[int, int, int]]:
        """(id, start, end) of text between two added tokens, none of which is an added token's."""
        if not text:
            return []
        anchor = "" if first else self._anchor  # what stands there makes the text the middle of a longer one
        encoding = self._plain.encode(anchor + text, add_special_tokens=False)
        skip, shift = bool(anchor), len(anchor)
        ids, offsets = encoding.ids[skip:], encoding.offsets[skip:]
        if self.control_ids.isdisjoint(ids):
            return [(i, max(a - shift, 0), max(b - shift, 0)) for i, (a, b) in zip(ids, offsets, strict=True)]
        # The vocabulary makes a control token of plain text (a Unigram model may): cut inside it.
        for token in self.control_in(text):
            at = text.find(token)
            if len(token) > 1 and at >= 0:
                cut = at + 1
                right = [(i, a + cut, b + cut) for i, a, b in self._pieces(text[cut:])]
                return self._pieces(text[:cut], first) + right
        raise UnsafeContent(f"the tokenizer makes a control token of plain text: {text[:80]!r}")


_encoders: weakref.WeakKeyDictionary[Any, tuple[int, Encoder]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def encoder_for(tokenizer: Any) -> Encoder:
    """The tokenizer's encoder; one is shared by all templates until tokens are added to the tokenizer."""
    added = len(getattr(tokenizer, "added_tokens_decoder", ()))
    with _lock:
        try:
            known = _encoders.get(tokenizer)
        except TypeError:  # unhashable, or without weak references
            return Encoder(tokenizer)
        if known is None or known[0] != added:
            known = (added, Encoder(tokenizer))
            _encoders[tokenizer] = known
        return known[1]


def clean(text: str) -> str:
    """`text` with lone surrogates replaced, character for character."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def _word(text: str, pos: int) -> bool:
    return 0 <= pos < len(text) and (text[pos].isalnum() or text[pos] == "_")


class Spans:
    """Spans of a text, and whether another one meets them."""

    def __init__(self, spans: Sequence[Span]):
        self._starts: list[int] = []
        self._ends: list[int] = []
        for a, b in sorted(spans):
            if self._ends and a < self._ends[-1]:
                self._ends[-1] = max(b, self._ends[-1])
            else:
                self._starts.append(a)
                self._ends.append(b)

    def meet(self, start: int, end: int) -> bool:
        """Whether a span begins before `end` and ends behind `start`."""
        last = bisect_left(self._starts, end) - 1
        return last >= 0 and self._ends[last] > start

    def hold(self, start: int, end: int) -> bool:
        """Whether all of it lies in one span."""
        last = bisect_left(self._starts, end) - 1
        return last >= 0 and self._starts[last] <= start and end <= self._ends[last]


def _unknown_ids(backend: Any) -> frozenset[int]:
    """What the vocabulary writes for a character that it lacks: never taken for a control token."""
    model = backend.model
    token = getattr(model, "unk_token", None)
    unk_id = backend.token_to_id(token) if token else None
    if type(model).__name__ == "Unigram":  # it does not tell but in its file
        unk_id = json.loads(backend.to_str())["model"].get("unk_id")
    return frozenset() if unk_id is None else frozenset((int(unk_id),))
