"""From ids to text as they come: whole characters, no special tokens where they are not wanted, cut at stop strings."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

_UNFINISHED = "\ufffd"
_FALLBACK = re.compile("<0x[0-9A-F]{2}>")  # a byte, where the vocabulary has a token for each
_REMEMBERED = 1 << 16  # tokens


class Detokenizer:
    """Text of a growing sequence of ids; what the pieces add up to is the text of all of them.

    Ids are decoded behind the last few that came before, since some vocabularies write a word differently at the
    beginning of a text.  A character whose bytes are not all there yet is held back.

    skip: ids that are not shown.
    """

    def __init__(self, tokenizer: Any, skip: Collection[int] = ()):
        self._backend, self._skip = tokenizer.backend_tokenizer, frozenset(skip)
        self._before: list[int] = []  # ids whose text is out, as a context for those behind
        self._open: list[int] = []  # ids whose text is not

    def push(self, ids: Sequence[int], *, last: bool = False) -> str:
        """The text that is complete with these ids; last: nothing follows."""
        self._open += [i for i in ids if i not in self._skip]
        if not self._open:
            return ""
        head = self._decode(self._before)
        text = self._decode(self._before + self._open)
        if text.endswith(_UNFINISHED) and not last:
            return ""
        self._before, self._open = self._open, []
        return text[len(head) :]

    def _decode(self, ids: list[int]) -> str:
        decoded: str = self._backend.decode(ids, skip_special_tokens=False)
        return decoded


class StopStrings:
    """Cuts a growing text in front of the first stop string (behind it with `keep`)."""

    def __init__(self, stops: Sequence[str], *, keep: bool = False):
        self._stops, self._keep = tuple(stops), keep
        self._held = ""
        self.hit: str | None = None

    def push(self, text: str, *, last: bool = False) -> str:
        """The text that no stop string can reach any more; nothing once one was found."""
        if self.hit is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            # The one that is complete first, as it is found when the text comes id by id.
            at, self.hit = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
            self._held = ""
            return text[: at + len(self.hit)] if self._keep else text[:at]
        held = 0 if last else dangling(text, self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


class StopWatch:
    """`until` of the engine: whether the text of the sampled ids holds a stop string."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], skip: Collection[int]):
        self._text, self._stops = Detokenizer(tokenizer, skip), StopStrings(stops)
        self._seen = 0

    def __call__(self, ids: Sequence[int]) -> bool:
        new, self._seen = ids[self._seen :], len(ids)
        self._stops.push(self._text.push(new))
        return self._stops.hit is not None


def dangling(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `text` with which one of `marks` begins, but does not end."""
    longest = min(len(text), max((len(m) for m in marks), default=1) - 1)
    return next((n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) and len(m) > n for m in marks)), 0)


class SingleTokens:
    """Bytes and text of single tokens."""

    def __init__(self, tokenizer: Any):
        self._tokenizer, self._backend = tokenizer, tokenizer.backend_tokenizer
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self._byte_level = "ByteLevel" in str(self._backend.decoder)
        self.bytes = lru_cache(_REMEMBERED)(self._bytes)

    def text(self, token_id: int) -> str:
        """Bytes that make no whole character are shown as U+FFFD."""
        return self.bytes(token_id).decode("utf-8", "replace")

    def _bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; those of its text where the vocabulary does not tell them."""
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is not None and token_id not in self._added:
            if self._byte_level and all(c in _BYTES for c in token):
                return bytes(_BYTES[c] for c in token)
            if _FALLBACK.fullmatch(token):
                return bytes([int(token[3:5], 16)])
        # Twice, since some vocabularies write a token without its space at the beginning of a text.
        once, twice = (self._backend.decode([token_id] * n, skip_special_tokens=False) for n in (1, 2))
        text: str = twice[len(once) :]
        return text.encode()


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level vocabularies write bytes (GPT-2): printable ones stand for themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()
