"""The generated archive behind toolstep/Search-v0: ships, people, yards, schools and towns, and papers about them.

A paper is long, and most of what stands in it is of no use.  Some facts stand in the paper of another entity: who
commands a ship is told by the yard that built it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tools.builtin.corpus import Document

# fmt: off
_TOWN_START = (
    "Ald", "Brack", "Cinder", "Dorn", "East", "Fallow", "Gannet", "Harrow", "Ilver", "Jessa", "Kelp", "Lantern",
    "Merrow", "Nettle", "Osprey", "Pell", "Quill", "Rook", "Sander", "Tide", "Umber", "Varn", "Whelk", "Yarrow",
)
_TOWN_END = ("haven", "mouth", "wick", "ford", "sea", "by", "ton", "holm", "quay", "ness", "water", "port")
_SHIP_START = (
    "Amber", "Bold", "Crimson", "Distant", "Eager", "Faithful", "Grey", "Hardy", "Iron", "Jade", "Kindly", "Lonely",
    "Merry", "Northern", "Old", "Pale", "Quiet", "Red", "Silver", "True", "Velvet", "White", "Young",
)
_SHIP_END = (
    "Finch", "Heron", "Tern", "Star", "Anne", "Petrel", "Lady", "Mermaid", "Sister", "Tide", "Lantern", "Pilgrim",
    "Swan", "Harbour", "Sovereign", "Oar", "Wind", "Gull", "Otter", "Thistle",
)
_FIRST = (
    "Agnes", "Barnaby", "Cordelia", "Desmond", "Edwina", "Fergus", "Gwen", "Horace", "Isolde", "Jarvis", "Kitty",
    "Lionel", "Maud", "Nigel", "Ottilie", "Percy", "Rowena", "Silas", "Thea", "Ulric", "Verity", "Wilfred",
)
_FAMILY = (
    "Ashdown", "Blackwood", "Crane", "Drummond", "Ellery", "Fairfax", "Goodwin", "Holloway", "Inchbald", "Jessop",
    "Kittredge", "Lovell", "Marchbanks", "Nightingale", "Osgood", "Penhallow", "Quarles", "Ravenscroft",
)
_YARDS = ("Anchor", "Beacon", "Compass", "Dolphin", "Falcon", "Griffin", "Kraken", "Neptune", "Pelican", "Trident")
_SCHOOLS = ("Abbey", "Chapel", "Priory", "Minster", "Harbour", "Castle", "Orchard", "Meadow", "Bridge", "Hillside")
CARGOES = ("wool", "timber", "salt", "tea", "copper", "wine", "grain", "spices", "coal", "silk")
INSTRUMENTS = ("fiddle", "flute", "concertina", "harp", "bugle", "mandolin", "drum", "oboe")
RIVERS = ("Averne", "Blyde", "Corrin", "Derrow", "Esker", "Foyle", "Garrow", "Hesper", "Ister", "Lenne")
COLOURS = ("scarlet", "indigo", "saffron", "emerald", "violet", "ochre", "turquoise", "maroon")
# fmt: on
WORDS: dict[str, tuple[str, ...]] = {
    "cargo": CARGOES,
    "instrument": INSTRUMENTS,
    "river": RIVERS,
    "colour": COLOURS,
}  # fmt: skip
LINKS: dict[str, str] = {
    "captain": "the captain of {}",
    "yard": "the yard that built {}",
    "port": "the home port of {}",
    "birthplace": "the town where {} was born",
    "school": "the school that {} went to",
    "seat": "the town where {} stands",
}
QUESTIONS: dict[str, str] = {
    "launched": "In which year was {} launched?",
    "cargo": "What cargo does {} carry?",
    "born": "In which year was {} born?",
    "instrument": "Which instrument does {} play?",
    "founded": "In which year was {} founded?",
    "workers": "How many workers does {} employ?",
    "pupils": "How many pupils does {} have?",
    "colour": "What colour is the uniform of {}?",
    "population": "How many people live in {}?",
    "river": "On which river does {} lie?",
}
_OF = {
    "ship": ("captain", "yard", "port", "launched", "cargo"),
    "person": ("birthplace", "school", "born", "instrument"),
    "yard": ("seat", "founded", "workers"),
    "school": ("seat", "founded", "pupils", "colour"),
    "town": ("founded", "population", "river"),
}
_TARGET = {
    "captain": "person",
    "yard": "yard",
    "port": "town",
    "birthplace": "town",
    "school": "school",
    "seat": "town",
}
#: Whose paper states the fact, where it is not the entity's own.
_ELSEWHERE = {"captain": "yard", "launched": "yard", "instrument": "school"}
_SENTENCES: dict[str, str] = {
    "captain": "The {n} is commanded by {v}.",
    "yard": "The {n} was built by {v}.",
    "port": "The {n} has its home port in {v}.",
    "launched": "The {n} was launched in {v}.",
    "cargo": "The {n} carries {v}.",
    "birthplace": "{n} was born in the town of {v}.",
    "school": "{n} went to school at {v}.",
    "born": "{n} was born in the year {v}.",
    "instrument": "{n} plays the {v}.",
    "seat": "{n} stands in {v}.",
    "founded": "{n} was founded in {v}.",
    "workers": "{n} employs {v} workers.",
    "pupils": "{n} has {v} pupils.",
    "colour": "The uniform of {n} is {v}.",
    "population": "{v} people live in {n}.",
    "river": "{n} lies on the river {v}.",
}
_IDLE = (
    "A letter on the subject was found behind a cupboard and has since been lost again.",
    "The papers were kept in a damp cellar, and many pages can no longer be read.",
    "Nobody knows who wrote the note in the margin, which says only: not so.",
    "A later hand has added a drawing of a dog.",
    "What is said about the winter of that year should be taken with caution.",
    "The ledger goes on for eleven pages about the price of candles.",
    "Two visitors are named, but their names are spelled in four different ways.",
    "The clerk complains about his pen, his ink and the cold.",
    "An old map shows the place, though not where it is.",
    "The account ends in the middle of a sentence, as such accounts do.",
    "Opinions differ, and the archive has kept all of them.",
    "A receipt for nine barrels is pinned to this page.",
    "It rained for most of the time that is described here.",
    "The seal is broken, and the ribbon has faded.",
    "Somebody has crossed out a whole paragraph and written it again below.",
    "A story about a cat is told at length, and is left out in this copy.",
)


@dataclass(frozen=True, slots=True)
class Archive:
    """Facts by entity and attribute, what each entity is, the papers, and which paper states a fact (by id)."""

    facts: dict[str, dict[str, str]]
    kinds: dict[str, str]
    documents: tuple[Document, ...]
    stated: dict[tuple[str, str], str]

    def follow(self, start: str, attributes: Sequence[str]) -> str:
        """The value at the end of a chain of attributes."""
        for attribute in attributes:
            start = self.facts[start][attribute]
        return start


def make_archive(draw: Draw) -> Archive:
    """Eight towns, five schools, five yards, ten people and eight ships: 36 papers."""
    towns = [start + draw.choice(_TOWN_END) for start in draw.sample(_TOWN_START, 8)]
    schools = [f"{word} School" for word in draw.sample(_SCHOOLS, 5)]
    yards = [f"{word} Yard" for word in draw.sample(_YARDS, 5)]
    people = [f"{a} {b}" for a, b in zip(draw.sample(_FIRST, 10), draw.sample(_FAMILY, 10), strict=True)]
    ships = [f"{start} {draw.choice(_SHIP_END)}" for start in draw.sample(_SHIP_START, 8)]
    facts: dict[str, dict[str, str]] = {}
    kinds: dict[str, str] = {}
    for kind, names in (("town", towns), ("school", schools), ("yard", yards), ("person", people), ("ship", ships)):
        for name in names:
            kinds[name] = kind
            facts[name] = {attribute: _value(draw, attribute, towns, schools, yards, people) for attribute in _OF[kind]}
    order = draw.sample(list(facts), len(facts))
    ids = {name: f"p{i + 1:02d}" for i, name in enumerate(order)}
    told: dict[str, list[str]] = {name: [] for name in facts}
    stated: dict[tuple[str, str], str] = {}
    for name, attributes in facts.items():
        for attribute, value in attributes.items():
            holder = attributes[_ELSEWHERE[attribute]] if attribute in _ELSEWHERE else name
            told[holder].append(_SENTENCES[attribute].format(n=name, v=value))
            stated[name, attribute] = ids[holder]
    documents = tuple(Document(ids[name], name, _paper(draw, told[name])) for name in order)
    return Archive(facts, kinds, documents, stated)


def _value(
    draw: Draw, attribute: str, towns: list[str], schools: list[str], yards: list[str], people: list[str]
) -> str:
    if attribute in LINKS:
        choices = {"person": people, "yard": yards, "town": towns, "school": schools}[_TARGET[attribute]]
        return draw.choice(choices)
    if attribute in WORDS:
        return draw.choice(WORDS[attribute])
    low, high = {
        "launched": (1790, 1899), "born": (1760, 1880), "founded": (1100, 1750), "workers": (12, 990),
        "pupils": (20, 880), "population": (900, 98_000),
    }[attribute]  # fmt: skip
    return str(draw.integer(low, high))


def _paper(draw: Draw, sentences: Sequence[str]) -> str:
    """The sentences in random order, far apart in a text of two to four thousand characters."""
    paragraphs = []
    for sentence in draw.sample(list(sentences), len(sentences)):
        before, after = draw.sample(_IDLE, draw.integer(2, 4)), draw.sample(_IDLE, draw.integer(1, 3))
        paragraphs.append(" ".join([*before, sentence, *after]))
    paragraphs.append(" ".join(draw.sample(_IDLE, 3)))
    return "\n\n".join(paragraphs)


def make_chain(draw: Draw, archive: Archive, links: int) -> tuple[str, tuple[str, ...]]:
    """An entity and the attributes to follow from it: `links` to other entities, then one that is asked for."""
    while True:
        start = draw.choice(list(archive.facts))
        kind, attributes, seen = archive.kinds[start], [], [start]
        for _ in range(links):
            ways = [a for a in _OF[kind] if a in LINKS]
            if not ways:
                break
            attributes.append(draw.choice(ways))
            seen.append(archive.follow(start, attributes))
            kind = _TARGET[attributes[-1]]
        if len(attributes) == links and len(set(seen)) == len(seen):
            return start, (*attributes, draw.choice([a for a in _OF[kind] if a in QUESTIONS]))


def phrase(archive: Archive, start: str, attributes: Sequence[str]) -> str:
    """The question of a chain, for instance "In which year was the yard that built the Umbra founded?"."""
    said = f"the {start}" if archive.kinds[start] == "ship" else start
    for attribute in attributes[:-1]:
        said = LINKS[attribute].format(said)
    return QUESTIONS[attributes[-1]].format(said)


def find_fact(text: str, name: str, attribute: str) -> str | None:
    """The value of the attribute in a paper that states it; None in one that doesn't."""
    before, _, after = _SENTENCES[attribute].replace("{n}", name).partition("{v}")
    match = re.search(rf"(?:^|(?<=\s)){re.escape(before)}([\w ]+?){re.escape(after)}(?:\s|$)", text)
    return match[1] if match else None
