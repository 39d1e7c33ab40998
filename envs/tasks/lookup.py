"""toolstep/Lookup-v0: questions that only documents can answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

from toolstep.envs.menu import Menu
from toolstep.envs.tasks.answers import tells
from toolstep.envs.tasks.base import nearest
from toolstep.envs.tasks.conversation import call, result_of
from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.lookup_menu import LookupMenu
from toolstep.envs.tasks.lookup_world import (
    WORDS,
    Document,
    find_fact,
    make_chain,
    make_world,
    phrase,
    search,
)
from toolstep.envs.tasks.procedural import Problem, ProceduralTasks
from toolstep.envs.tools.tool import Tool, tool
from toolstep.envs.types import EpisodeRecord, Task, Turn


class LookupTasks(ProceduralTasks):
    """Questions about an invented world of twenty documents, drawn anew for each task.

    `search` shows ids and titles only, `read` shows a document: the answer is in no title, so at least two turns are
    needed.  Level 1 needs one document, level 2 two (the first names the second), level 3 three in a chain, or two
    whose years are compared.

    A number must be the answer's last one.  A word must stand in the answer, and no other word of its kind.
    """

    name: ClassVar[str] = "toolstep/Lookup-v0"
    system = "Find the answer with the tools: search, then read. Then answer briefly."

    def tools(self, task: Task) -> Sequence[Tool]:
        library = Library(task.data["documents"])
        return [library.search, library.read]

    def score(self, record: EpisodeRecord) -> float:
        return float(tells(record.answer, str(record.task.answer), WORDS.get(record.task.data["asked"], ())))

    def oracle(self, record: EpisodeRecord) -> Turn:
        missing, values = [], []
        for start, attributes in record.task.data["chains"]:
            value = start
            for attribute in attributes:
                found = _read(record, value, attribute)
                if isinstance(found, tuple):
                    missing.append(found)
                    break
                value = found
            values.append(value)
        if missing:
            return call(record, *missing)
        return Turn(values[0] if len(values) == 1 else str(abs(int(values[0]) - int(values[1]))))

    def menu(self) -> Menu:
        return LookupMenu()

    def draw(self, draw: Draw, level: int) -> Problem:
        world = make_world(draw)
        chains: tuple[tuple[str, tuple[str, ...]], ...]
        if level == 3 and draw.chance(0.4):
            first, second = draw.sample([n for n in world.facts if "founded" in world.facts[n]], 2)
            chains = ((first, ("founded",)), (second, ("founded",)))
            years = [int(world.follow(*chain)) for chain in chains]
            prompt = f"How many years lie between the founding of {first} and the founding of {second}?"
            answer, asked = str(abs(years[0] - years[1])), "years"
        else:
            chain = make_chain(draw, world, level - 1)
            chains, answer, asked = (chain,), world.follow(*chain), chain[1][-1]
            prompt = phrase(*chain)
        return Problem(
            key=f"lookup:{' '.join(sorted(repr(c) for c in chains))}",
            prompt=prompt,
            answer=answer,
            data={"documents": world.documents, "chains": chains, "asked": asked},
        )


class Library:
    """The two tools over one task's documents."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = {d.id: d for d in documents}

    @tool(run_in="inline")
    def search(self, query: str) -> list[dict[str, str]]:
        """Search the documents; returns the ids and titles of the best matches.

        Args:
            query: Words to look for, for example the name of a person, a city or a company.
        """
        return [{"id": d.id, "title": d.title} for d in search(list(self._documents.values()), query)]

    @tool(run_in="inline")
    def read(self, id: str) -> str:  # noqa: A002 - what search calls it
        """Read one document.

        Args:
            id: The id of a document, as search returns it.
        """
        found = self._documents.get(id.strip())
        if found is None:
            raise LookupError(f"no document has the id {id[:100]!r}; {nearest(id[:100], self._documents)}")
        return f"{found.title}\n{found.body}"


def _read(record: EpisodeRecord, title: str, attribute: str) -> str | tuple[str, dict[str, str]]:
    """The value that the document about `title` gives, or the call that still has to be made to know it."""
    query = {"query": title}
    hits = result_of(record, "search", query)
    if hits is None:
        return "search", query
    document = {"id": next(h["id"] for h in json.loads(hits) if h["title"] == title)}
    text = result_of(record, "read", document)
    if text is None:
        return "read", document
    value = find_fact(text, title, attribute)
    assert value is not None, (title, attribute, text)
    return value
