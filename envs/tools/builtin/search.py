"""`search`, `open` and `find`: documents, by a full-text index."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolstep.envs.tools.builtin.corpus import Document, Index, pages_of, positions
from toolstep.envs.tools.factory import EpisodeInfo, ToolFactory
from toolstep.envs.tools.tool import tool

MAX_QUERY = 1_000  # characters
MAX_MATCHES = 5  # places that `find` shows
CONTEXT = 80  # characters on each side of one
SUFFIXES = (".txt", ".md", ".rst")


class SearchError(ValueError):
    """What was asked for is not there; the message is for the model to read."""


class Search(ToolFactory):
    """The tools `search(query)`, `open(id, page)` and `find(id, text)` over documents.

    documents: text by id; `Document`s with titles; or a folder, whose text files (.txt, .md, .rst) have their paths as
        ids.  The title of a document without one is its first line.  They are read and indexed once, when the first
        episode is made, and never changed.
    max_results: of one search.  max_output: characters of a page, and of any result.

    Raises:
        ValueError: no documents, two of one id, a limit that is none.
    """

    def __init__(
        self,
        documents: Mapping[str, str] | Iterable[Document] | str | Path,
        *,
        max_results: int = 8,
        max_output: int = 3_000,
    ) -> None:
        for key, value in (("max_results", max_results), ("max_output", max_output)):
            if not 0 < value < float("inf"):
                raise ValueError(f"Search: {key} must be a finite number > 0, got {value!r}")
        self._documents = documents_of(documents)
        self._max_results = max_results
        self._max_output = max_output
        self._index: Index | None = None
        self._lock = threading.Lock()

    def make(self, episode: EpisodeInfo) -> Any:
        with self._lock:
            if self._index is None:
                self._index = Index(self._documents)
        return Library(self._index, self._max_results, self._max_output)

    def close(self) -> None:
        """Forget the index; an episode that still uses it keeps it."""
        with self._lock:
            self._index = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())


class Library:
    """The tools over one index; it remembers nothing."""

    def __init__(self, index: Index, max_results: int, max_output: int) -> None:
        self._index = index
        self._max_results = max_results
        self._max_output = max_output

    @tool(run_in="inline", shared=True)
    def search(self, query: str) -> Any:
        """Search the documents. Shows id, title and a passage of the best matches, best first.

        Args:
            query: Words to look for.
        """
        found = self._index.search(query[:MAX_QUERY], self._max_results)
        if not found:
            raise SearchError(f"no document has any word of {_shown(query)}; try other words")
        return found

    @tool(run_in="inline", shared=True)
    def open(self, id: str, page: int = 1) -> str:  # noqa: A002  what search calls it
        """Open a document.

        Args:
            id: The id of the document, as search shows it.
            page: Long documents have several pages; 1 is the first one.
        """
        document = self._document(id)
        pages = pages_of(document.text, self._max_output)
        if not 1 <= page <= len(pages):
            raise SearchError(
                f"page must be from 1 to {len(pages)}, the number of pages of {document.id!r}; got {page}"
            )
        start, end = pages[page - 1]
        text = document.text[start:end].strip("\n")
        title = f"{document.title}\n\n" if page == 1 and first_line(text) != document.title else ""
        more = f"\n[page {page} of {len(pages)}]" if len(pages) > 1 else ""
        return f"{title}{text}{more}"

    @tool(run_in="inline", shared=True)
    def find(self, id: str, text: str) -> Any:  # noqa: A002
        """Find a word or phrase in a document. Shows the first places with the text around them, and their pages.

        Args:
            id: The id of the document, as search shows it.
            text: What to look for, as it stands in the document (upper and lower case are the same).
        """
        document = self._document(id)
        if not text.strip():
            raise SearchError("text is empty: give the words to find")
        places = positions(document.text, text[:MAX_QUERY].strip())
        if not places:
            raise SearchError(f"{_shown(text)} is not in the document {document.id!r}")
        pages = pages_of(document.text, self._max_output)
        shown = []
        for at in places[:MAX_MATCHES]:
            number = next(i for i, (_, end) in enumerate(pages, 1) if at < end)
            around = document.text[max(0, at - CONTEXT) : at + len(text) + CONTEXT]
            shown.append({"page": number, "text": " ".join(around.split())[: self._max_output // MAX_MATCHES]})
        return {"matches": len(places), "shown": shown}

    def _document(self, name: str) -> Document:
        found = self._index.get(name.strip()[:500])
        if found is None:
            near = []
            if len(self._index.documents) <= 1_000:  # each comparison takes its time
                near = difflib.get_close_matches(name[:100], list(self._index.documents), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "; search shows the ids"
            raise SearchError(f"there is no document with the id {_shown(name)}{hint}")
        return found


def documents_of(given: Mapping[str, str] | Iterable[Document] | str | Path) -> list[Document]:
    """The documents that were given in whatever form.  Raises ValueError."""
    if isinstance(given, str | Path):
        folder = Path(given)
        if not folder.is_dir():
            raise ValueError(f"Search: {folder} is no folder")
        paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        given = {p.relative_to(folder).as_posix(): p.read_text(encoding="utf-8", errors="replace") for p in paths}
        if not given:
            raise ValueError(f"Search: {folder} has no text files ({', '.join(SUFFIXES)})")
    if isinstance(given, Mapping):
        given = [Document(name, "", text) for name, text in given.items()]
    documents = [d if d.title else Document(d.id, first_line(d.text) or d.id, d.text) for d in given]
    if not documents:
        raise ValueError("Search: there are no documents")
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise ValueError(f"Search: two documents have the id {document.id!r}")
        seen.add(document.id)
    return documents


def first_line(text: str) -> str:
    line = next((line.strip("#= \t") for line in text[:2_000].splitlines() if line.strip("#= \t")), "")
    return line[:100]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")
