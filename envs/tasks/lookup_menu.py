"""The menu of toolstep/Lookup-v0: search a name, read a hit, follow a link, answer a fact of the document at hand."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from toolstep.envs.menu import Menu, Page
from toolstep.envs.tasks.conversation import call, results
from toolstep.envs.tasks.lookup_world import LINKS, QUESTIONS, find_fact
from toolstep.envs.types import EpisodeRecord, Turn

_HITS = 5  # that `search` returns
_BETWEEN = "How many years lie between the founding of {} and the founding of {}?"
_DEPTH = 3  # documents that a question needs at most


@dataclass(frozen=True, slots=True)
class Question:
    """What can be read off a question: the names in it, the links to follow from the first, what is asked for."""

    names: tuple[str, ...]
    links: tuple[str, ...]
    asked: str


@dataclass(slots=True)
class _Seen:
    """What the conversation has shown so far."""

    query: str = ""
    hits: list[dict[str, str]] = field(default_factory=list)  # of the latest search
    read: list[str] = field(default_factory=list)  # titles, in order
    facts: dict[str, str] = field(default_factory=dict)  # of the document that was read last
    founded: list[str] = field(default_factory=list)  # years of founding, each document once


class LookupMenu(Menu):
    """What can be done with a question and the document at hand; which of it is right has to be learned.

    The features say what is asked and by which links, whether a hit has the title that was searched for, and how far
    the conversation is; the mask says which facts the document states.
    """

    labels = (
        "search the name in the question",
        "search the second name in the question",
        *(f"search {LINKS[a].format('it')}" for a in LINKS),
        *(f"read hit {i + 1}" for i in range(_HITS)),
        *(f"answer: {a}" for a in QUESTIONS),
        "answer: years between the last two foundings",
    )
    features = (
        *(f"asked: {a}" for a in QUESTIONS),
        "asked: years between two foundings",
        *(f"first link: {a}" for a in LINKS),
        *(f"second link: {a}" for a in LINKS),
        "searched last: the name in the question",
        "searched last: the second name",
        *(f"hit {i + 1} is what was searched for" for i in range(_HITS)),
        "what was searched for is read",
        *(f"{i} documents read" for i in range(_DEPTH + 1)),
        "turns",
    )

    def page(self, record: EpisodeRecord) -> Page:
        question = parse_question(record.task.messages[-1].content)
        seen = _look(record)
        names = (*question.names, None, None)[:2] if question else (None, None)
        return Page(_choices(record, names, seen), _features(record, question, names, seen))


def parse_question(text: str) -> Question | None:
    """What `text` asks for; None if it is no question of this task set."""
    if match := _fullmatch(_BETWEEN, text):
        return Question(match, (), "years")
    for asked, form in QUESTIONS.items():
        if match := _fullmatch(form, text):
            said, links = match[0], []
            while inner := next(((a, m[0]) for a, f in LINKS.items() if (m := _fullmatch(f, said))), None):
                links.append(inner[0])
                said = inner[1]
            return Question((said,), tuple(reversed(links)), asked)
    return None


def _fullmatch(form: str, text: str) -> tuple[str, ...]:
    """What stands for the {} of `form` in `text`; () if they do not match."""
    match = re.fullmatch("(.+)".join(map(re.escape, form.split("{}"))), text)
    return match.groups() if match else ()


def _look(record: EpisodeRecord) -> _Seen:
    seen = _Seen()
    for made, content in results(record):
        if made.name == "search":
            seen.query, seen.hits = str((made.parsed or {}).get("query")), _hits(content)
        elif made.name == "read":
            title, _, body = content.partition("\n")
            facts = {a: find_fact(body, title, a) for a in (*QUESTIONS, *LINKS)}
            seen.facts = {a: v for a, v in facts.items() if v is not None}
            if title not in seen.read:
                seen.read.append(title)
                seen.founded += [seen.facts["founded"]] if "founded" in seen.facts else []
    return seen


def _hits(content: str) -> list[dict[str, str]]:
    try:
        return list(json.loads(content))[:_HITS]
    except ValueError:  # cut by max_result_tokens
        return []


def _choices(record: EpisodeRecord, names: Sequence[str | None], seen: _Seen) -> list[Turn | None]:
    def search(name: str | None) -> Turn | None:
        return None if name is None else call(record, ("search", {"query": name}))

    hits = [call(record, ("read", {"id": hit["id"]})) for hit in seen.hits]
    years = seen.founded[-2:]
    return [
        *map(search, names),
        *(search(seen.facts.get(a)) for a in LINKS),
        *hits,
        *[None] * (_HITS - len(hits)),
        *(Turn(seen.facts[a]) if a in seen.facts else None for a in QUESTIONS),
        Turn(str(abs(int(years[0]) - int(years[1])))) if len(years) == 2 else None,
    ]


def _features(
    record: EpisodeRecord, question: Question | None, names: Sequence[str | None], seen: _Seen
) -> list[float]:
    asked = question.asked if question else ""
    links = (*(question.links if question else ()), "", "")[:2]
    titles = [hit["title"] for hit in seen.hits] + [""] * (_HITS - len(seen.hits))
    flags = [
        *(asked == a for a in (*QUESTIONS, "years")),
        *(link == a for link in links for a in LINKS),
        *(bool(seen.query) and seen.query == name for name in names),
        *(bool(seen.query) and seen.query == title for title in titles),
        bool(seen.query) and seen.query in seen.read,
        *(min(len(seen.read), _DEPTH) == i for i in range(_DEPTH + 1)),
    ]
    return [*map(float, flags), min(record.turns / 8, 1.0)]
