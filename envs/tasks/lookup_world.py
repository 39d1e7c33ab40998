"""The small invented world behind toolstep/Lookup-v0: entities, the documents about them, and questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolstep.envs.tasks.draw import Draw

# What links entities: attribute -> how it is said of a noun phrase.
LINKS: dict[str, str] = {
    "lives": "the city where {} lives",
    "employer": "the company that {} works for",
    "based": "the city where {} is based",
    "mayor": "the mayor of {}",
}
# What is asked for in the end: none of it ever is the title of a document.
QUESTIONS: dict[str, str] = {
    "founded": "In which year was {} founded?",
    "population": "How many inhabitants does {} have?",
    "river": "On which river does {} lie?",
    "born": "In which year was {} born?",
    "instrument": "Which instrument does {} play?",
    "product": "What does {} make?",
    "staff": "How many employees does {} have?",
}
# How a document states an attribute; {n} is its subject and {v} the value.
_SENTENCES: dict[str, tuple[str, ...]] = {
    "lives": ("{n} lives in {v}.", "The home of {n} is in {v}."),
    "employer": ("{n} works for {v}.", "{n} is employed by {v}."),
    "based": ("{n} is based in {v}.", "The head office of {n} stands in {v}."),
    "mayor": ("The mayor of {n} is {v}.", "{n} is governed by its mayor, {v}."),
    "founded": ("{n} was founded in {v}.", "{n} dates from {v}, the year it was founded."),
    "population": ("{n} has {v} inhabitants.", "{v} people live in {n}."),
    "river": ("{n} lies on the river {v}.", "The river {v} flows through {n}."),
    "born": ("{n} was born in {v}.", "{n} came into the world in {v}."),
    "instrument": ("{n} plays the {v}.", "{n} is known for playing the {v}."),
    "product": ("{n} makes {v}.", "{n} is a maker of {v}."),
    "staff": ("{n} has {v} employees.", "{v} employees work for {n}."),
}
_OF = {
    "city": ("founded", "population", "river", "mayor"),
    "person": ("born", "instrument", "lives", "employer"),
    "company": ("founded", "product", "staff", "based"),
}
_TARGET = {"lives": "city", "employer": "company", "based": "city", "mayor": "person"}

RIVERS = ("Alder", "Brenn", "Corra", "Dusk", "Elm", "Farrow", "Gilt", "Hasel", "Isk", "Jorn", "Kesh", "Lune")
INSTRUMENTS = ("cello", "flute", "harp", "oboe", "lute", "trumpet", "viola", "banjo", "organ", "drums")
PRODUCTS = ("clocks", "paper", "boots", "lenses", "bicycles", "cheese", "ladders", "kettles", "maps", "ropes")
# fmt: off
_START = (
    "Bel", "Cor", "Dra", "El", "Fen", "Gar", "Hol", "Il", "Kar", "Lor", "Mar", "Nor", "Or", "Pel",
    "Quin", "Ros", "Sel", "Tar", "Ul", "Ver", "Wes", "Yar", "Zel", "Ash",
)
_CITY_END = (
    "burg", "dale", "ford", "gate", "ham", "holm", "mere", "mouth", "port", "stead", "ton", "vale",
    "wick", "worth", "by", "haven",
)
_LAST_END = (
    "ane", "den", "dorf", "ek", "er", "ic", "in", "kov", "man", "ov", "ra", "sen", "son", "wen", "wyn",
)
_FIRST = (
    "Ada", "Boris", "Clara", "Dario", "Edith", "Felix", "Greta", "Hugo", "Irma", "Jasper", "Karin",
    "Leo", "Mira", "Nils", "Olga", "Pavel", "Rosa", "Simon", "Tilda", "Uri", "Vera", "Walter", "Xenia",
    "Yusuf", "Zora", "Anton", "Bella", "Conrad", "Dora", "Emil", "Fanny", "Gustav",
)
_TRADE = (
    "Foundry", "Mills", "Optics", "Press", "Shipyard", "Trading", "Works", "Workshop", "Brothers",
    "Labs",
)
# fmt: on

WORDS: dict[str, tuple[str, ...]] = {"river": RIVERS, "instrument": INSTRUMENTS, "product": PRODUCTS}


@dataclass(frozen=True, slots=True)
class Document:
    """What `read` shows; `id` says nothing about the content."""

    id: str
    title: str
    body: str


@dataclass(frozen=True, slots=True)
class World:
    """Facts by entity name and attribute, and the documents that state them, one for each entity."""

    facts: dict[str, dict[str, str]]
    kinds: dict[str, str]
    documents: tuple[Document, ...]

    def follow(self, start: str, attributes: Sequence[str]) -> str:
        """The value at the end of a chain of attributes."""
        for attribute in attributes:
            start = self.facts[start][attribute]
        return start


def make_world(draw: Draw) -> World:
    """Six cities, eight people and six companies."""
    stems = draw.sample(_START, 24)
    cities = [stem + draw.choice(_CITY_END) for stem in stems[:6]]
    # Few family names, so that a name has to be read to its end.
    families = [stem + draw.choice(_LAST_END) for stem in stems[6:10]]
    people = [f"{first} {draw.choice(families)}" for first in draw.sample(_FIRST, 8)]
    companies = [f"{stem}{draw.choice(('a', 'en', 'is', 'um'))} {draw.choice(_TRADE)}" for stem in stems[10:16]]
    rivers = draw.sample(RIVERS, 6)
    facts: dict[str, dict[str, str]] = {}
    kinds: dict[str, str] = {}
    for i, name in enumerate(cities):
        kinds[name] = "city"
        facts[name] = {
            "founded": str(draw.integer(1050, 1890)),
            "population": str(draw.integer(1_200, 980_000)),
            "river": rivers[i],
            "mayor": draw.choice(people),
        }
    for name in people:
        kinds[name] = "person"
        facts[name] = {
            "born": str(draw.integer(1940, 2000)),
            "instrument": draw.choice(INSTRUMENTS),
            "lives": draw.choice(cities),
            "employer": draw.choice(companies),
        }
    for name in companies:
        kinds[name] = "company"
        facts[name] = {
            "founded": str(draw.integer(1895, 2015)),
            "product": draw.choice(PRODUCTS),
            "staff": str(draw.integer(12, 9_800)),
            "based": draw.choice(cities),
        }
    titles = draw.sample(list(facts), len(facts))
    documents = []
    for i, title in enumerate(titles):
        attributes = draw.sample(_OF[kinds[title]], 4)
        body = " ".join(draw.choice(_SENTENCES[a]).format(n=title, v=facts[title][a]) for a in attributes)
        documents.append(Document(f"d{i + 1:02d}", title, body))
    return World(facts, kinds, tuple(documents))


def make_chain(draw: Draw, world: World, links: int) -> tuple[str, tuple[str, ...]]:
    """An entity and the attributes to follow from it: `links` to other entities, then one asked for."""
    while True:
        start = draw.choice(list(world.facts))
        kind, attributes, seen = world.kinds[start], [], [start]
        for _ in range(links):
            link = draw.choice([a for a in _OF[kind] if a in LINKS])
            attributes.append(link)
            seen.append(world.follow(start, attributes))
            kind = _TARGET[link]
        if len(set(seen)) == len(seen):  # a chain that comes back is a shorter one
            return start, (*attributes, draw.choice([a for a in _OF[kind] if a in QUESTIONS]))


def phrase(start: str, attributes: Sequence[str]) -> str:
    """The question of a chain, for instance "In which year was the city where Ada Belson lives founded?"."""
    said = start
    for attribute in attributes[:-1]:
        said = LINKS[attribute].format(said)
    return QUESTIONS[attributes[-1]].format(said)


_SUBJECT = "\0"  # stands for the title, so that the patterns are compiled once


def _pattern(form: str) -> re.Pattern[str]:
    before, _, after = form.replace("{n}", _SUBJECT).partition("{v}")
    return re.compile(rf"(?:^|(?<=\s)){re.escape(before)}([\w ]+?){re.escape(after)}(?:\s|$)")


_PATTERNS = {attribute: tuple(map(_pattern, forms)) for attribute, forms in _SENTENCES.items()}


def find_fact(text: str, title: str, attribute: str) -> str | None:
    """The value of `attribute` in the text of the document about `title`, or None if it does not state it."""
    said = text.replace(title, _SUBJECT)
    matches = (pattern.search(said) for pattern in _PATTERNS[attribute])
    return next((match[1] for match in matches if match), None)


def search(documents: Sequence[Document], query: str, limit: int = 5) -> list[Document]:
    """The documents that share words with `query`, those in the title first.  Any text is a query."""
    wanted = set(re.findall(r"\w+", query.casefold()))

    def points(document: Document) -> int:
        words = set(re.findall(r"\w+", document.title.casefold()))
        title = wanted & words
        body = {w for w in wanted & set(re.findall(r"\w+", document.body.casefold())) if len(w) > 3}
        # "Karin Karin" asks for her and not for Irma Karin.
        return 10 * len(title) + len(body) + (5 if words == wanted else 0)

    ranked = sorted(((-points(d), d.id, d) for d in documents), key=lambda x: x[:2])
    return [d for score, _, d in ranked if score][:limit]
