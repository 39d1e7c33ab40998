"""toolstep/Search-v0: questions that take several steps through a generated archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.tasks.answers import tells
from toolstep.envs.tasks.archive import WORDS, Archive, find_fact, make_archive, make_chain, phrase
from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.builtin.corpus import pages_of
from toolstep.envs.tools.builtin.search import Search
from toolstep.envs.tools.factory import Offer
from toolstep.envs.types import EpisodeRecord, Task, Turn

PAGE = 2_000  # characters
Chain = tuple[str, tuple[str, ...]]


class SearchTasks(ProceduralTasks):
    """Questions about an invented archive of 36 papers, drawn anew for each task, with search, open and find.

    Level 1 asks for one fact, level 2 for one about something that another paper names, level 3 takes three steps, or
    compares two years that take two steps each.  Some facts stand in the paper of another entity, so that what is asked
    about is not always the title of the paper to open.

    A number must be the answer's last one.  A word must stand in the answer, and no other word of its kind.
    """

    name: ClassVar[str] = "toolstep/Search-v0"
    system = "Find the answer in the archive with the tools: search, open a paper, find a word in it. Answer briefly."

    def tools(self, task: Task) -> Sequence[Offer]:
        return [Search(task.data["documents"], max_output=PAGE)]

    def score(self, record: EpisodeRecord) -> float:
        return float(tells(record.answer, str(record.task.answer), WORDS.get(record.task.data["asked"], ())))

    def oracle(self, record: EpisodeRecord) -> Turn:
        missing, values = [], []
        for steps in record.task.data["steps"]:
            found: str | tuple[str, dict[str, object]] = ""
            for name, attribute, paper in steps:
                found = _look_up(record, name, attribute, paper)
                if isinstance(found, tuple):
                    missing.append(found)
                    break
            values.append(found)
        if missing:
            return call(record, *missing)
        return Turn(str(values[0]) if len(values) == 1 else str(abs(int(str(values[0])) - int(str(values[1])))))

    def draw(self, draw: Draw, level: int) -> Problem:
        archive = make_archive(draw)
        chains: tuple[Chain, ...]
        if level == 3 and draw.chance(0.4):
            chains = _two_years(draw, archive)
            first, second = (phrase(archive, *chain) for chain in chains)
            prompt = f"How many years lie between the answers to these two questions? {first} {second}"
            years = [int(archive.follow(*chain)) for chain in chains]
            answer, asked = str(abs(years[0] - years[1])), "years"
        else:
            chain = make_chain(draw, archive, level - 1)
            chains, answer, asked = (chain,), archive.follow(*chain), chain[1][-1]
            prompt = phrase(archive, *chain)
        steps = []
        for start, attributes in chains:
            path = []
            for attribute in attributes:
                path.append((start, attribute, archive.stated[start, attribute]))
                start = archive.facts[start][attribute]
            steps.append(tuple(path))
        return Problem(
            key=f"search:{prompt}",
            prompt=prompt,
            answer=answer,
            data={"documents": archive.documents, "steps": tuple(steps), "asked": asked},
        )


def _two_years(draw: Draw, archive: Archive) -> tuple[Chain, Chain]:
    """Two different chains of one link each that end in a year."""
    found: list[Chain] = []
    while len(found) < 2:
        chain = make_chain(draw, archive, 1)
        if chain[1][-1] in ("launched", "born", "founded") and chain not in found:
            found.append(chain)
    return found[0], found[1]


def _look_up(record: EpisodeRecord, name: str, attribute: str, paper: str) -> str | tuple[str, dict[str, object]]:
    """The value that the paper gives, or the call that still has to be made to know it."""
    query: dict[str, object] = {"query": name}
    if result_of(record, "search", query) is None:
        return "search", query
    text = next(d.text for d in record.task.data["documents"] if d.id == paper)
    pages = enumerate(pages_of(text, PAGE), 1)
    page = next(i for i, (start, end) in pages if find_fact(text[start:end], name, attribute) is not None)
    opened: dict[str, object] = {"id": paper, "page": page}
    shown = result_of(record, "open", opened)
    if shown is None:
        return "open", opened
    value = find_fact(shown, name, attribute)
    assert value is not None, (name, attribute, shown)
    return value
