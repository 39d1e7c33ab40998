"""Menus: a finite choice of turns, for agents that do not write; `view="menu"` shows one."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolstep.envs.tasks.base import TaskError, TaskSet
from toolstep.envs.tasks.conversation import call, results, since_task
from toolstep.envs.types import EpisodeRecord, Turn

Entry = Turn | Mapping[str, Any] | Callable[[EpisodeRecord], Turn | None]

_WORDS = 256  # buckets that the words of a text are hashed into
_LONG = 8  # turns: the default limit of an episode


class MenuError(TaskError):
    """A menu that cannot be used, or that broke its own promise."""


@dataclass(frozen=True, slots=True)
class Page:
    """The menu at one point of a conversation.

    choices: K turns; None where a choice is not on offer now.  features: D numbers in [0, 1], what the agent sees.
    """

    choices: Sequence[Turn | None]
    features: Sequence[float]


class Menu(ABC):
    """A finite choice of turns, the same K for every task, and D features of the conversation.

    A menu is built from what an agent may know, the messages (`since_task(record)`), and not from the task's answer.
    It keeps nothing between calls; one object serves all rows.

    labels: what each choice is, for people; K of them.  features: what each feature says; D of them.
    """

    labels: Sequence[str]
    features: Sequence[str]

    @abstractmethod
    def page(self, record: EpisodeRecord) -> Page:
        """What is on offer after the conversation so far.  Until the episode is over, something must be."""


class ListMenu(Menu):
    """Choices that are given one by one; what the agent sees are words.

    entries: `{"call": "search", "arguments": {"query": "Rome"}}`, `{"answer": "470"}`, a `Turn`, or a function from
        the `EpisodeRecord` to a `Turn` (None: not on offer now), for whatever depends on the conversation.

    Features: the words of the task, hashed into 256 buckets; those of what the tools answered last; which choices were
    taken; turns so far / 8.
    """

    def __init__(self, entries: Sequence[Entry]):
        if isinstance(entries, (str, bytes, Mapping)) or not isinstance(entries, Sequence) or not entries:
            raise MenuError(f"a menu is a list of entries, at least one, got {entries!r:.80}")
        made = [_entry(entry, i) for i, entry in enumerate(entries)]
        self.labels = tuple(label for label, _ in made)
        self._choices = tuple(choose for _, choose in made)
        self.features = (
            *(f"word {i} of the task" for i in range(_WORDS)),
            *(f"word {i} of the last results" for i in range(_WORDS)),
            *(f"taken: {label}" for label in self.labels),
            "turns",
        )

    def page(self, record: EpisodeRecord) -> Page:
        choices = [choose(record) for choose in self._choices]
        said = since_task(record)
        asked = [m.content for m in record.task.messages if m.role == "user"]
        last = max((i for i, m in enumerate(said) if m.role == "assistant"), default=len(said))
        made = {_same(c.name, c.parsed) for m in said for c in m.tool_calls}
        taken = [
            t is not None and bool(t.calls) and all(_same(c.name, c.parsed) in made for c in t.calls) for t in choices
        ]
        features = [
            *_words(asked),
            *_words([m.content for m in said[last:] if m.role == "tool"]),
            *map(float, taken),
            min(record.turns / _LONG, 1.0),
        ]
        return Page(choices, features)


def as_menu(menu: Any, tasks: TaskSet) -> Menu:
    """The menu that `menu=` means; None: the one that the task set brings along.

    Raises MenuError where that is none.
    """
    if menu is None:
        return tasks.menu()
    return menu if isinstance(menu, Menu) else ListMenu(menu)


def open_page(menu: Menu, record: EpisodeRecord) -> Page:
    """`menu.page(record)`, held to what a menu promises.  Raises MenuError."""
    page = menu.page(record)
    name, size, width = type(menu).__name__, len(menu.labels), len(menu.features)
    if len(page.choices) != size:
        raise MenuError(f"{name}.page gave {len(page.choices)} choices for {size} labels")
    values = np.asarray(page.features, dtype=np.float64)
    if values.shape != (width,):
        raise MenuError(f"{name}.page gave features of shape {values.shape}, it names {width}")
    wrong = np.flatnonzero(~((values >= 0) & (values <= 1)))  # NaN too
    if wrong.size:
        at = int(wrong[0])
        raise MenuError(f"{name}: feature {menu.features[at]!r} must be in [0, 1], got {values[at]}")
    if record.stop_reason is None and all(choice is None for choice in page.choices):
        raise MenuError(f"{name} has nothing on offer for task {record.task.id!r} after {record.turns} turns")
    return page


def find_choice(choices: Sequence[Turn | None], turn: Turn) -> int | None:
    """The choice that says `turn`, or makes the first of its calls that is on offer; None if there is none."""
    wanted = [_same(c.name, c.parsed) for c in turn.calls]
    offered = [None if choice is None else [_same(c.name, c.parsed) for c in choice.calls] for choice in choices]
    for calls in (wanted, *([w] for w in wanted)):
        for i, (choice, made) in enumerate(zip(choices, offered, strict=True)):
            if choice is not None and made == calls and (calls or choice.content == turn.content):
                return i
    return None


def _entry(entry: Any, at: int) -> tuple[str, Callable[[EpisodeRecord], Turn | None]]:
    """Label and choice of one entry."""
    if isinstance(entry, Turn):
        calls = ", ".join(f"{c.name}({c.arguments})" for c in entry.calls)
        wanted = tuple((c.name, dict(c.parsed or {})) for c in entry.calls)
        if not wanted:
            return f"answer {entry.content}", lambda record: entry
        return calls, lambda record: call(record, *wanted)
    if callable(entry):
        return str(getattr(entry, "__name__", entry)), entry
    if isinstance(entry, Mapping) and set(entry) == {"answer"} and isinstance(entry["answer"], str):
        turn = Turn(entry["answer"])
        return f"answer {turn.content}", lambda record: turn
    if isinstance(entry, Mapping) and {"call"} <= set(entry) <= {"call", "arguments"}:
        name, arguments = entry["call"], entry.get("arguments", {})
        if isinstance(name, str) and isinstance(arguments, Mapping):
            return f"{name}({json.dumps(dict(arguments), ensure_ascii=False)})", lambda record: call(
                record, (name, arguments)
            )
    raise MenuError(
        f"menu entry {at}: expected {{'call': NAME, 'arguments': {{...}}}}, {{'answer': TEXT}}, a Turn, or a function "
        f"of an EpisodeRecord, got {entry!r:.120}"
    )


def _same(name: str, arguments: Mapping[str, Any] | None) -> str:
    """What two equal calls have in common."""
    return f"{name} {json.dumps(dict(arguments or {}), sort_keys=True, default=str)}"


def _words(texts: Sequence[str]) -> list[float]:
    """Which buckets the words of the texts fall into.  crc32, because `hash` differs from process to process."""
    out = [0.0] * _WORDS
    for text in texts:
        for word in text.casefold().split():
            out[zlib.crc32(word.strip(".,;:!?\"'()[]{}").encode("utf-8", "replace")) % _WORDS] = 1.0
    return out


def last_result(record: EpisodeRecord) -> str | None:
    """What the newest call that succeeded in this task answered; None if there is none."""
    return next((content for _, content in reversed(list(results(record)))), None)
