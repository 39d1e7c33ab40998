"""The single-turn categories: one question, and the calls that it asks for (or none)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from toolstep.envs.tasks.bfcl.data import SINGLE_TURN, Entry
from toolstep.envs.tasks.bfcl.docs import doc_tool, tool_name
from toolstep.envs.tasks.bfcl.listed import ListedTasks
from toolstep.envs.tasks.bfcl.match import Arguments, matched
from toolstep.envs.tasks.bfcl.possible import first_calls
from toolstep.envs.tasks.conversation import call, since_task
from toolstep.envs.tools.factory import Offer
from toolstep.envs.types import CallStatus, EpisodeRecord, Task, ToolResult, Turn


class SingleTurnTasks(ListedTasks):
    """Questions that ask for one or several calls in one turn, or for none.

    Nothing is run: the names and arguments of the first turn's calls are held against the acceptable ones, by the rules
    of the official checker.  In the irrelevance categories success is to make no call, in relevance to make one.
    """

    categories: ClassVar[tuple[str, ...]] = SINGLE_TURN
    limits: ClassVar[dict[str, Any]] = {"max_turns": 1, "max_calls": 64}

    def tools(self, task: Task) -> Sequence[Offer]:
        return [doc_tool(doc, _note) for doc in task.data.functions]

    def score(self, record: EpisodeRecord) -> float:
        return float(not error_type(record.task.data, made_calls(record)))

    def oracle(self, record: EpisodeRecord) -> Turn:
        entry: Entry = record.task.data
        if "irrelevance" in self.category:
            return Turn("None of the functions can do this.")
        if not entry.truth:  # relevance: any call will do
            return call(record, (tool_name(entry.functions[0]["name"]), {}))
        return call(record, *first_calls(entry))

    def task_of(self, entry: Entry) -> Task:
        tags = {"calls": str(len(entry.truth))} if entry.truth else {}
        return Task(entry.id, entry.turns[0], entry.truth or None, tags=tags, data=entry)


def made_calls(record: EpisodeRecord) -> list[tuple[str, Arguments]] | None:
    """The calls of the first turn after the task; None where one of them can't be read."""
    first = next((m for m in since_task(record) if m.role == "assistant"), None)
    made: list[tuple[str, Arguments]] = []
    for c in first.tool_calls if first is not None else ():
        if c.parsed is None or not c.name or c.status is CallStatus.TRUNCATED:
            return None
        made.append((c.name, dict(c.parsed)))
    return made


def error_type(entry: Entry, made: list[tuple[str, Arguments]] | None) -> str:
    """What is wrong with the calls, in the official words; "" for nothing.  Does not raise, whatever they are."""
    if "irrelevance" in entry.category:
        return "irrelevance_error:decoder_success" if made else ""
    if "relevance" in entry.category:
        return "" if made else "relevance_error:decoder_failed"
    if made is None:
        return "ast_decoder:decoder_failed"
    try:
        return matched(entry, made)
    except Exception:  # arguments that nothing can be compared with
        return "ast_checker:failed"


def _note(**arguments: Any) -> ToolResult:
    return ToolResult("The call has been noted.", terminate=True)
