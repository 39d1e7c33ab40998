"""Documents, and a full-text index over them (SQLite's FTS5)."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

MAX_WORDS = 32  # of a query
SNIPPET = 200  # characters
LOOKED_AT = 50_000  # characters of a document in which a snippet is looked for
MAX_PLACES = 1_000
TITLE_WEIGHT = 5.0  # of a word in the title, against one in the text

# Scripts without spaces between words: each character is a word of its own.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\u0e00-\u0e7f"
_WORD = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
_CHARACTER = re.compile(rf"([{_UNSPACED}])")


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a name."""

    id: str
    title: str
    text: str


class Index:
    """Ranks documents by BM25; words are compared by their stems, without accents and case.

    May be used by several threads.  The connection is closed with this object.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = {document.id: document for document in documents}
        self._list = list(documents)
        self._by_title = {document.title.casefold(): document for document in reversed(self._list)}
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            # content='': the texts are here already.
            self._connection.execute(
                "CREATE VIRTUAL TABLE texts USING fts5(title, body, content='', "
                'tokenize="porter unicode61 remove_diacritics 2")'
            )
        except sqlite3.OperationalError as error:
            self._connection.close()
            raise RuntimeError(f"searching needs an SQLite with FTS5, and this one has none: {error}") from None
        rows = ((i, _spaced(d.title), _spaced(d.text)) for i, d in enumerate(self._list))
        self._connection.executemany("INSERT INTO texts(rowid, title, body) VALUES (?, ?, ?)", rows)
        self._connection.commit()

    def __del__(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()

    def get(self, name: str) -> Document | None:
        """The document of that id, or of that title."""
        return self.documents.get(name) or self._by_title.get(name.casefold())

    def search(self, query: str, limit: int) -> list[dict[str, str]]:
        """Id, title and snippet of the best documents; any text is a query."""
        words = _WORD.findall(query.casefold())[:MAX_WORDS]
        # Quoted, so that no word is an operator; a run of characters without spaces is a phrase.
        match = " OR ".join('"' + _spaced(word).strip() + '"' for word in dict.fromkeys(words))
        if not match:
            return []
        with self._lock:
            rows = self._connection.execute(
                f"SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts, {TITLE_WEIGHT}, 1.0), rowid LIMIT ?",  # noqa: S608
                (match, limit),
            ).fetchall()
        found = [self._list[row] for (row,) in rows]
        return [{"id": d.id, "title": d.title, "snippet": snippet(d.text, words)} for d in found]


def snippet(text: str, words: Sequence[str]) -> str:
    """The passage of `text` with the most of the words, the first one of several."""
    text = text[:LOOKED_AT]
    places = _places(lowered(text), words)
    best, most, first = 0, 0, 0
    for last, (at, _) in enumerate(places):
        while at - places[first][0] > SNIPPET * 3 // 4:
            first += 1
        different = len({word for _, word in places[first : last + 1]})
        if different > most:
            best, most = places[first][0], different
    start = max(0, best - SNIPPET // 4) if len(text) > SNIPPET else 0
    if start:
        start = max(start, text.find(" ", start, best) + 1)
    passage = " ".join(text[start : start + SNIPPET].split())
    return f"{'...' if start else ''}{passage}{'...' if start + SNIPPET < len(text) else ''}"


def _places(text: str, words: Sequence[str]) -> list[tuple[int, str]]:
    """Where the words begin, and which; short ones count only where there are no others."""
    long = [word for word in words if len(word) > 3 or _CHARACTER.match(word)] or words
    # "harbour" is found by "harbours".
    stems = {word[: max(4, len(word) - 3)] for word in long}
    if not stems:
        return []
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(s)}" if s.isascii() else re.escape(s) for s in sorted(stems)))
    return [(found.start(), found[0]) for found in islice(pattern.finditer(text), MAX_PLACES)]


def positions(text: str, wanted: str) -> list[int]:
    """Where `wanted` stands in `text`, case aside; at most 1,000 places."""
    folded, key = lowered(text), lowered(wanted)
    found: list[int] = []
    at = folded.find(key)
    while at >= 0 and len(found) < 1_000:
        found.append(at)
        at = folded.find(key, at + len(key))
    return found


def pages_of(text: str, size: int) -> list[tuple[int, int]]:
    """Where the pages of a text begin and end: at most `size` characters each, cut at the end of a line or word."""
    pages: list[tuple[int, int]] = []
    start = 0
    while len(text) - start > size:
        least = start + size // 2
        end = text.rfind("\n", least, start + size) + 1 or text.rfind(" ", least, start + size) + 1 or start + size
        pages.append((start, end))
        start = end
    return [*pages, (start, max(len(text), 1))]


def lowered(text: str) -> str:
    """Lower case, character by character: positions stay what they are."""
    folded = text.lower()
    if len(folded) == len(text):
        return folded
    return "".join(low if len(low := c.lower()) == 1 else c for c in text)


def _spaced(text: str) -> str:
    return _CHARACTER.sub(r" \1 ", text)
