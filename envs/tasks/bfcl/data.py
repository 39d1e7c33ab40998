"""The questions and answers of the leaderboard, as the package bfcl-eval carries them."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolstep.envs.tasks.base import TaskError
from toolstep.envs.tasks.families import FAMILIES
from toolstep.envs.types import Message

_FAMILY = next(family for family in FAMILIES if family.name == "BFCL")
INSTALL = _FAMILY.needs
MULTI_TURN = tuple(name for name in _FAMILY.members if name.startswith("multi_turn_"))
SINGLE_TURN = tuple(name for name in _FAMILY.members if name not in MULTI_TURN)


class BFCLMissing(TaskError):
    """The package with the questions is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One item of the leaderboard.  Nobody changes what its fields hold.

    turns: the messages with which the user opens each turn; empty where functions are added instead.
    functions: docs of the functions on offer, in a single-turn category.
    truth: in a multi-turn category the right calls of each turn, as text; else a list of {name: {argument: values}}.
    classes, config: the simulated APIs and their state at the beginning.
    held: names of functions that are only added in that turn.
    """

    id: str
    category: str
    turns: tuple[tuple[Message, ...], ...]
    functions: Sequence[Mapping[str, Any]] = ()
    truth: Sequence[Any] = ()
    classes: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for items that one should not train on where another is tested.

        The four multi-turn categories are variants of the same 200 conversations, and 96 questions of "multiple" are
        those of "simple_python".
        """
        if self.category in MULTI_TURN:
            return f"bfcl:multi_turn:{self.id.rpartition('_')[2]}"
        return f"bfcl:{self.turns[0][-1].content}"


def folder() -> Path:
    """The installed package.  It is not imported: that would need none of its 150 dependencies, but costs time.

    Raises:
        BFCLMissing: it, or mpmath, is not there.
    """
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("mpmath") is None:
        raise BFCLMissing(
            f"the tasks of the Berkeley Function-Calling Leaderboard need two packages: {INSTALL} "
            "(without --no-deps it would bring 150 others, 6 GB, and an older numpy)"
        )
    return Path(found.submodule_search_locations[0])


@functools.cache
def entries(category: str) -> tuple[Entry, ...]:
    """The items of a category, in their order.

    Raises:
        BFCLMissing: the package is not there, or has no such file.
    """
    data = folder() / "data"
    name = f"BFCL_v4_{category}.json"
    questions = _lines(data / name)
    answers = data / "possible_answer" / name
    truth = {item["id"]: item["ground_truth"] for item in _lines(answers)} if answers.exists() else {}
    return tuple(_entry(item, category, truth.get(item["id"], ())) for item in questions)


@functools.cache
def api_docs(name: str) -> tuple[Mapping[str, Any], ...]:
    """The docs of the methods of a simulated API."""
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    return tuple(_lines(folder() / "data" / "multi_turn_func_doc" / MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]))


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BFCLMissing(f"the installed bfcl-eval has no {path.name} ({error}); {INSTALL}") from error
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _entry(item: Mapping[str, Any], category: str, truth: Sequence[Any]) -> Entry:
    turns = tuple(tuple(Message(m["role"], m["content"]) for m in turn) for turn in item["question"])
    return Entry(
        id=item["id"],
        category=category,
        turns=turns,
        functions=item.get("function", ()),
        truth=truth,
        classes=tuple(item.get("involved_classes", ())),
        config=item.get("initial_config", {}),
        held={int(turn): names for turn, names in item.get("missed_function", {}).items()},
    )
