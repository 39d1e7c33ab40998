"""Playback: calls answered with what a `Recording` wrote down."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolstep.envs.tools.builtin import builtin_names
from toolstep.envs.tools.errors import NotRecorded, ToolBackendError
from toolstep.envs.tools.factory import EpisodeInfo, Offer, Toolbox, ToolFactory
from toolstep.envs.tools.tape.base import Tape, episode_key, plain, result_from_dict
from toolstep.envs.tools.tool import Tool
from toolstep.envs.tools.validate import BoundCall
from toolstep.envs.types import Task, ToolCall, ToolResult


@dataclass(slots=True)
class Take:
    """One episode on a tape.

    offer: the tools when it began.  calls: what each call was and what it was answered, by id.  offers: other tools, by
    the turn after which they were there.  failures: what failed, by where and turn.  state: what the tools left behind;
    None where the episode was not finished.
    """

    task: str
    offer: Mapping[str, Any]
    calls: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    offers: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    failures: dict[tuple[str, int], str] = field(default_factory=dict)
    state: dict[str, Any] | None = None


def read_takes(lines: Iterable[Mapping[str, Any]]) -> dict[str, Take]:
    """The episodes that the lines of a `Recording` tell of, by key; of one that was begun again, the last.

    Raises KeyError, TypeError or ValueError for a line that it would not write.
    """
    offers: dict[str, Mapping[str, Any]] = {}
    takes: dict[str, Take] = {}
    for line in lines:
        if "episode" not in line:
            offers[line["offer"]] = {"names": list(line["names"]), "schemas": list(line["schemas"])}
        elif "task" in line:
            takes[line["episode"]] = Take(line["task"], offers[line["offer"]])
        else:
            _add(takes[line["episode"]], line, offers)
    return takes


def _add(take: Take, line: Mapping[str, Any], offers: Mapping[str, Mapping[str, Any]]) -> None:
    if "call" in line:
        take.calls[line["call"]] = {
            "turn": int(line["turn"]),
            "name": line["name"],
            "arguments": line["arguments"],
            "result": result_from_dict(line["result"]),
        }
    elif "offer" in line:
        take.offers[int(line["turn"])] = offers[line["offer"]]
    elif "failure" in line:
        take.failures[line["failure"], int(line["turn"])] = str(line["message"])
    else:
        take.state = dict(line["state"])


class Playback(Tape):
    """Answers calls with what was recorded; no tool runs.

    takes: by episode, see `read_takes`.  An episode that asks for what is not there ends with status "env_error", and
    its error says what that is (`NotRecorded`).
    """

    def __init__(self, takes: Mapping[str, Take]):
        self._takes = takes

    def opens(self, factory: ToolFactory) -> bool:
        return not factory.external

    def toolbox(self, own: Iterable[Offer], extra: Iterable[Offer], episode: EpisodeInfo, sample: int) -> Toolbox:
        take = self._takes.get(episode_key(episode, sample))
        if take is None:
            raise _absent(episode.task, sample, "the episode was never recorded")
        return _PlayedToolbox(own, extra, episode, sample, take)


class _PlayedToolbox(Toolbox):
    """The tools are there to be shown and to check arguments with; their answers come from the take."""

    def __init__(
        self,
        own: Iterable[Offer],
        extra: Iterable[Offer],
        episode: EpisodeInfo,
        sample: int,
        take: Take,
    ):
        self._task, self._sample, self._take = episode.task, sample, take
        self._asked: set[str] = set()
        self._turn = 0
        super().__init__(_made_here(own), _made_here(extra), episode)
        self._here = dict(self.tools)
        try:
            self._show(take.offer)
        except BaseException:
            self.close()
            raise

    def _offer_builtin(self, name: str, episode: EpisodeInfo) -> None:
        if name in builtin_names():  # others are those of an external factory: the recording says what they are
            super()._offer_builtin(name, episode)

    def _show(self, offer: Mapping[str, Any]) -> None:
        """Offer these tools, in this order."""
        recorded = {schema["name"]: schema for schema in offer["schemas"]}
        strange = [name for name in offer["names"] if name not in recorded and name not in self._here]
        strange += [name for name in self._here if name not in offer["names"]] if offer is self._take.offer else []
        if strange:
            raise self._absent(f"the recording and this env do not offer the same tools: {', '.join(strange)}")
        self.tools = {n: _shown(recorded[n]) if n in recorded else self._here[n] for n in offer["names"]}

    def ready(self, names: Collection[str]) -> None:
        """Nothing has to be: nothing is going to run."""

    def answers(self, turn: int, calls: Sequence[BoundCall]) -> list[ToolResult]:
        self._turn = turn
        self._fail("ready")
        return [self._answer(turn, bound.call) for bound in calls]

    def _answer(self, turn: int, call: ToolCall) -> ToolResult:
        found = self._take.calls.get(call.id)
        arguments = plain(call.parsed)
        asked = f"the call {call.name}({json.dumps(arguments, ensure_ascii=False)}) in turn {turn} ({call.id})"
        if found is None:
            raise self._absent(f"{asked} was never recorded")
        if (found["turn"], found["name"], found["arguments"]) != (turn, call.name, arguments):
            there = f"{found['name']}({json.dumps(found['arguments'], ensure_ascii=False)}) in turn {found['turn']}"
            raise self._absent(f"{asked} was never recorded; in its place there is {there}")
        self._asked.add(call.id)
        result: ToolResult = found["result"]
        return result

    def changes(self) -> bool:
        self._fail("changes")
        offer = self._take.offers.get(self._turn)
        if offer is not None:
            self._show(offer)
        return offer is not None

    def snapshot(self) -> dict[str, Any]:
        if self._take.state is None:
            raise self._absent("what the tools left behind was never recorded: that episode was not finished")
        left = [c for c in self._take.calls if c not in self._asked]
        if left and self._take.state:
            raise self._absent(f"what the tools left behind without the recorded call {left[0]} was never recorded")
        return self._take.state

    def _fail(self, where: str) -> None:
        message = self._take.failures.get((where, self._turn))
        if message is not None:
            raise ToolBackendError(message)

    def _absent(self, problem: str) -> NotRecorded:
        return _absent(self._task, self._sample, problem)


def _absent(task: Task, sample: int, problem: str) -> NotRecorded:
    return NotRecorded(f"task {task.id!r}, sample {sample}: {problem}")


def _made_here(offers: Iterable[Offer]) -> list[Offer]:
    return [o for o in offers if not (isinstance(o, ToolFactory) and o.external)]


def _shown(schema: Mapping[str, Any]) -> Tool:
    """A tool that is offered, and answered for."""
    return Tool.from_schema(
        _unanswered, name=schema["name"], parameters=schema["parameters"], description=schema["description"]
    )


async def _unanswered(**_: Any) -> None:
    raise RuntimeError("a recording answers the calls of this tool")
