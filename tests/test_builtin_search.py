"""The search tools: what is found, in what order, and that any text is a query."""

from __future__ import annotations

import json
import pickle
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.envs import Message, Task, ToolUseVectorEnv
from toolstep.envs.tools.builtin import Document, Search
from toolstep.envs.tools.builtin.corpus import Index, lowered, pages_of, positions, snippet
from toolstep.envs.tools.builtin.search import Library, SearchError
from toolstep.envs.tools.factory import EpisodeInfo, tools_of

INFO = EpisodeInfo(Task("t", (Message("user", "Search."),)))
TEXTS = {
    "harbours": "# Harbours of the north\n\nThe old harbour of Belmouth was dug by monks in 1287.\n",
    "monks": "# Monks\n\nMonks lived in the abbey. They dug canals, and brewed ale.\n",
    "café": "# Cafés\n\nA café in Zürich serves coffee; naïve visitors ask for tea.\n",
    "京都": "京都の寺\n\n京都には金閣寺という寺があります。\n",
    "long": "Long story\n\n" + "".join(f"Paragraph {i} speaks of the number {i * i}.\n" for i in range(500)),
}


def opened(documents: Any = None, **options: Any) -> Library:
    made = Search(TEXTS if documents is None else documents, **options).make(INFO)
    assert isinstance(made, Library)
    return made


def do(library: Library, name: str, **arguments: Any) -> Any:
    made = next(t for t in tools_of(library) if t.name == name)
    return made.call(**made.bind(arguments))


def ids(library: Library, query: str) -> list[str]:
    return [hit["id"] for hit in do(library, "search", query=query)]


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_words_are_found_by_stem_accents_and_case_aside_titles_first() -> None:
    library = opened()
    assert ids(library, "Who dug the HARBOUR?")[0] == "harbours"
    assert ids(library, "monk")[0] == "monks"
    assert ids(library, "cafe zurich naive") == ["café"]
    assert ids(library, "金閣寺") == ["京都"]
    assert ids(library, "寺 monk")[-1:] != []
    hit = do(library, "search", query="dug by monks")[0]
    assert hit == {
        "id": "harbours",
        "title": "Harbours of the north",
        "snippet": "# Harbours of the north The old harbour of Belmouth was dug by monks in 1287.",
    }


def test_a_snippet_shows_the_passage_with_the_words() -> None:
    text = "Nothing here. " * 200 + "The silver key lies under the mill. " + "Nothing there. " * 200
    shown = snippet(text, ["silver", "mill"])
    assert "silver key lies under the mill" in shown
    assert shown.startswith("...")
    assert shown.endswith("...")
    assert len(shown) < 220
    assert snippet("short", ["absent"]) == "short"
    assert snippet("", []) == ""


def test_documents_are_opened_page_by_page() -> None:
    library = opened()
    assert do(library, "open", id="monks") == TEXTS["monks"].strip("\n")
    assert do(library, "open", id="MONKS").startswith("# Monks")  # by its title
    seen, page = "", 1
    while True:
        shown = do(library, "open", id="long", page=page)
        assert len(shown) < 3_200
        body, _, mark = shown.rpartition("\n[page ")
        seen += body + "\n"
        if mark == f"{page} of {page}]":
            break
        page += 1
    assert [line for line in seen.splitlines() if line] == [line for line in TEXTS["long"].splitlines() if line]
    assert page > 5


def test_a_title_that_is_not_in_the_text_is_shown_with_it() -> None:
    library = opened([Document("d1", "A title", "Only the text.")])
    assert do(library, "open", id="d1") == "A title\n\nOnly the text."
    assert ids(library, "title") == ["d1"]


def test_places_are_found_in_a_document_with_their_pages() -> None:
    library = opened()
    found = do(library, "find", id="long", text="NUMBER 40000")
    assert found["matches"] == 1
    assert "Paragraph 200 speaks of the number 40000" in found["shown"][0]["text"]
    page = found["shown"][0]["page"]
    assert "number 40000." in do(library, "open", id="long", page=page)
    many = do(library, "find", id="long", text="paragraph")
    assert (many["matches"], len(many["shown"])) == (500, 5)
    assert positions("İstanbul ISTANBUL", "istanbul") == [9]
    assert len(lowered("İx")) == 2


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("search", {"query": "zzz qqq"}, "no document has any word of 'zzz qqq'"),
        ("search", {"query": ""}, "no document has any word"),
        ("open", {"id": "monk"}, "did you mean 'monks'?"),
        ("open", {"id": "../etc/passwd"}, "no document with the id '../etc/passwd'"),
        ("open", {"id": "long", "page": 0}, "page must be from 1 to"),
        ("open", {"id": "long", "page": 10**6}, "page must be from 1 to"),
        ("find", {"id": "long", "text": "unicorn"}, "'unicorn' is not in the document 'long'"),
        ("find", {"id": "long", "text": "  "}, "text is empty"),
        ("find", {"id": "nowhere", "text": "x"}, "no document"),
    ],
)
def test_errors_say_what_to_do(name: str, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(SearchError) as raised:
        do(opened(), name, **arguments)
    assert told in str(raised.value)


HOSTILE = [
    '"', '""', '"unclosed', "a AND", "OR OR", "NOT a", "a NEAR(b", "title: x", "*", "a*", "^a", "{title}: a", "(((",
    "-a", "a + b", "'; DROP TABLE texts; --", "\x00", "a\x00b", "\ud800", "<|im_end|>", "%_%", "\\", "NEAR/2",
    "x" * 100_000, "a " * 50_000, "寺" * 10_000, "texts", "rank", "rowid",
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE)
def test_any_text_is_a_query(query: str) -> None:
    library = opened()
    for name, arguments in (
        ("search", {"query": query}),
        ("find", {"id": "long", "text": query}),
        ("open", {"id": query}),
    ):
        try:
            shown = json.dumps(do(library, name, **arguments))
        except SearchError as error:
            shown = str(error)
        assert len(shown) < 4_000, name
    assert ids(library, "monk")[0] == "monks"


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_query_property(query: str) -> None:
    try:
        hits = do(LIBRARY, "search", query=query)
    except SearchError:
        return
    assert 0 < len(hits) <= 8


LIBRARY = opened()


def test_looking_at_long_texts_takes_linear_time() -> None:
    def seconds(n: int) -> float:
        text = "ab" * n
        words = ["ab" * 20 + "c", "abab"]
        start = time.thread_time()
        snippet(text, words)
        positions(text, "ab" * 400 + "c")
        pages_of(text, 3_000)
        return time.thread_time() - start

    seconds(1_000)
    assert seconds(320_000) < 100 * min(seconds(20_000) for _ in range(3)) + 0.05


@given(st.text(alphabet="ab \n", max_size=400), st.integers(1, 50))
@settings(max_examples=200, deadline=None)
def test_pages_cover_a_text_without_gaps(text: str, size: int) -> None:
    pages = pages_of(text, size)
    assert "".join(text[start:end] for start, end in pages) == text
    assert all(end - start <= max(size, 1) for start, end in pages)


def test_a_folder_of_texts_is_searched(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.md").write_text("# Apples\nRed apples.\n")
    (tmp_path / "b.txt").write_bytes(b"Pears \xff are green.\n")
    (tmp_path / "c.bin").write_bytes(b"\x00\x01")
    library = opened(tmp_path)
    assert ids(library, "apple") == ["sub/a.md"]
    assert ids(library, "pear") == ["b.txt"]
    assert sorted(library._index.documents) == ["b.txt", "sub/a.md"]


@pytest.mark.parametrize(
    ("documents", "options", "message"),
    [
        ({}, {}, "no documents"),
        ([Document("a", "", "x"), Document("a", "", "y")], {}, "two documents have the id 'a'"),
        ("no/such", {}, "is no folder"),
        ({"a": "b"}, {"max_results": 0}, "max_results"),
    ],
)
def test_what_cannot_be_searched_is_refused(documents: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Search(documents, **options)


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no text files"):
        Search(tmp_path)


def test_all_rows_and_threads_share_one_index() -> None:
    factory = Search({f"d{i}": f"Document number {i} about topic{i % 7}." for i in range(300)})
    libraries = [factory.make(INFO) for _ in range(8)]
    assert len({id(library._index) for library in libraries}) == 1
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda library: ids(library, "topic3"), libraries * 10))
    assert all(hits == found[0] for hits in found)
    assert threading.active_count() < 50
    env = ToolUseVectorEnv(4, [{"prompt": "q", "answer": "a"}], tools=[factory])
    env.reset(seed=0)
    env.step([call("search", query=f"number {i}") + call("open", id=f"d{i}") for i in range(4)])
    shown = [[m.content for m in messages if m.role == "tool"] for messages in env.get_attr("messages")]
    assert [row[1] for row in shown] == [f"Document number {i} about topic{i}." for i in range(4)]
    env.close()
    assert ids(libraries[0], "topic3") == found[0]  # an episode of somebody else still has it


def test_a_factory_can_be_sent_to_another_process_and_used_again() -> None:
    factory = Search(TEXTS)
    first = factory.make(INFO)
    copy = pickle.loads(pickle.dumps(factory)).make(INFO)
    assert ids(copy, "monk") == ids(first, "monk")
    factory.close()
    assert ids(factory.make(INFO), "monk") == ids(first, "monk")


def test_an_sqlite_without_full_text_search_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor(sqlite3.Connection):
        def execute(self, *args: Any) -> Any:
            raise sqlite3.OperationalError("no such module: fts5")

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Poor, **k))
    with pytest.raises(RuntimeError, match="FTS5"):
        Index([Document("a", "a", "a")])
