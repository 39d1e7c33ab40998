"""Encoding by provenance: added tokens are recognised only in the template's own characters (invariant I4).

`tokenizer.encode(split_special_tokens=True)` is not enough: tokens added with `special=False` (Qwen's
`<tool_response>`, MiniMind's `</think>`) stay control tokens under it.
"""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.envs.chat.errors import UnsafeContent, UnsupportedTokenizer
from toolstep.envs.chat.marks import Span

_ANCHOR = "\U000ffffdanchor\U000ffffd"
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

    def find_all(self, text: str) -> list[str]:
        """Tokens in `text` from left to right, none overlapping another."""
        out, end = [], 0
        for pos in self.heads(text, 0):
            if pos >= end and (token := self.at(text, pos)) is not None:
                out.append(token)
                end = pos + len(token)
        return out


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
        # Text in the middle of a context is encoded behind an anchor: SentencePiece would put a space before
        # it else.
        plain.add_special_tokens([AddedToken(_ANCHOR, special=True, normalized=False)])
        self._plain = plain
        self._added = {t.content: (int(i), t) for i, t in tokenizer.added_tokens_decoder.items() if t.content}
        self.added = ControlTokens(self._added)
        self.control_ids = frozenset(
            i for i, t in self._added.values() if t.special or not t.content.isspace()
        ) - _unknown_ids(backend)

    def control_in(self, text: str) -> list[str]:
        """Added tokens in `text` that are more than white space."""
        return [t for t in self.added.find_all(text) if self._added[t][0] in self.control_ids]

    def encode(
        self, text: str, foreign: Sequence[Span] = (), body: Sequence[Span] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Ids, int64 [T], and for each id whether it holds a character of a `body` span, bool [T].

        Lone surrogates, which no tokenizer takes, are read as U+FFFD.
        """
        text = clean(text)
        ids: list[int] = []
        ends: list[Span] = []
        done = 0
        for start, end, token_id in self._tokens(text, foreign):
            self._between(text, done, start, ids, ends)
            ids.append(token_id)
            ends.append((start, end))
            done = end
        self._between(text, done, len(text), ids, ends)
        return np.asarray(ids, np.int64), _overlaps(ends, body)

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

    def _tokens(self, text: str, foreign: Sequence[Span]) -> Iterator[tuple[int, int, int]]:
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

    def _allowed(self, start: int, token: str, foreign: Sequence[Span]) -> bool:
        end = start + len(token)
        if not any(start < b and a < end for a, b in foreign):
            return True
        inside = any(a <= start and end <= b for a, b in foreign)
        return inside and token.isspace() and not self._added[token][1].special

    def _between(self, text: str, start: int, end: int, ids: list[int], ends: list[Span]) -> None:
        for i, a, b in self._pieces(text[start:end]):
            ids.append(i)
            ends.append((start + a, start + b))

    def _pieces(self, text: str) -> list[tuple[int, int, int]]:
        """(id, start, end) of text between two added tokens, none of which is an added token's."""
        if not text:
            return []
        encoding = self._plain.encode(_ANCHOR + text, add_special_tokens=False)
        ids, offsets, shift = encoding.ids[1:], encoding.offsets[1:], len(_ANCHOR)
        if self.control_ids.isdisjoint(ids):
            return [(i, max(a - shift, 0), max(b - shift, 0)) for i, (a, b) in zip(ids, offsets, strict=True)]
        # The vocabulary makes a control token of plain text (a Unigram model may): cut inside it.
        for token in self.control_in(text):
            at = text.find(token)
            if len(token) > 1 and at >= 0:
                cut = at + 1
                right = [(i, a + cut, b + cut) for i, a, b in self._pieces(text[cut:])]
                return self._pieces(text[:cut]) + right
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


def _overlaps(ends: Sequence[Span], body: Sequence[Span]) -> NDArray[np.bool_]:
    out = np.zeros(len(ends), np.bool_)
    if not body or not ends:
        return out
    starts, stops = np.asarray(ends, np.int64).T
    for a, b in body:
        out |= (starts < b) & (stops > a)
    return out


def _unknown_ids(backend: Any) -> frozenset[int]:
    """What the vocabulary writes for a character that it lacks: never taken for a control token."""
    model = backend.model
    token = getattr(model, "unk_token", None)
    unk_id = backend.token_to_id(token) if token else None
    if type(model).__name__ == "Unigram":  # it does not tell but in its file
        unk_id = json.loads(backend.to_str())["model"].get("unk_id")
    return frozenset() if unk_id is None else frozenset((int(unk_id),))
