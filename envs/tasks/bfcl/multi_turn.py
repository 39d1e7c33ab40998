"""The multi-turn categories: conversations over simulated APIs, judged by their state and by what calls answered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from toolstep.envs.tasks.bfcl.apis import named, parse_call
from toolstep.envs.tasks.bfcl.data import MULTI_TURN, Entry, api_docs
from toolstep.envs.tasks.bfcl.docs import doc_tool
from toolstep.envs.tasks.bfcl.listed import ListedTasks
from toolstep.envs.tasks.bfcl.referee import Referee
from toolstep.envs.tasks.conversation import call, since_task
from toolstep.envs.tools.bound import BoundTools
from toolstep.envs.tools.factory import Offer, per_episode
from toolstep.envs.tools.tool import Tool
from toolstep.envs.types import CallStatus, EpisodeRecord, Message, Task, ToolResult, Turn

PER_TURN = 8  # calls of the oracle in one of its turns
_MOST_TURNS = 8  # of a user


class MultiTurnTasks(ListedTasks):
    """Conversations of one to eight requests over file system, trading, travel, ticket, message and car APIs.

    A turn of the agent without a call ends the user's turn: then the APIs must be in the same state as those on which
    the reference's calls were made, and must have answered all that these answered.  The first turn that is wrong ends
    the episode with 0; 1 is for all turns.  Twenty rounds of calls in one turn of the user are the most.

    `record.state["bfcl"]` says what is wrong (the official error_type), how many turns passed, and in how many the
    agent called something where nothing was wanted.
    """

    categories: ClassVar[tuple[str, ...]] = MULTI_TURN
    #: A round of calls too many ends the episode, so nothing is cut short that the leaderboard would let go on.
    limits: ClassVar[dict[str, Any]] = {"max_turns": 21 * _MOST_TURNS, "max_calls": 64, "max_result_tokens": 65_536}

    def tools(self, task: Task) -> Sequence[Offer]:
        return [per_episode(partial(World, task.data))]

    def score(self, record: EpisodeRecord) -> float:
        return float(record.state.get("bfcl", {}).get("right", False))

    def reply(self, record: EpisodeRecord) -> Message | None:
        entry: Entry = record.task.data
        state = record.state.get("bfcl", {})
        turn = state.get("turn", len(entry.turns))
        if state.get("error") or turn >= len(entry.turns):
            return None
        said = "\n\n".join(m.content for m in entry.turns[turn])
        return Message("user", said or _more_functions())

    def oracle(self, record: EpisodeRecord) -> Turn:
        entry: Entry = record.task.data
        made: list[list[tuple[str, Any]]] = [[]]  # calls, by turn of the user
        for message in since_task(record):
            if message.role == "user":
                made.append([])
            made[-1] += [(c.name, c.parsed) for c in message.tool_calls]
        truth = entry.truth[len(made) - 1]
        wanted = [named(parse_call(text)) for text in truth]
        for done in made[-1]:
            if done in wanted:
                wanted.remove(done)
        if wanted:
            return call(record, *wanted[:PER_TURN])
        return Turn("Done." if truth else "I can't do this with what I have been given so far.")

    def task_of(self, entry: Entry) -> Task:
        return Task(entry.id, entry.turns[0], entry.truth, tags={"requests": str(len(entry.turns))}, data=entry)


class World(BoundTools):
    """The APIs of one episode as tools, and their referee."""

    def __init__(self, entry: Entry) -> None:
        from bfcl_eval.constants.default_prompts import MAXIMUM_STEP_LIMIT

        self._entry = entry
        self._referee = Referee(entry)
        self._steps, self._most = 0, int(MAXIMUM_STEP_LIMIT)  # rounds of calls in this turn of the user
        self._docs = {doc["name"]: doc for name in entry.classes for doc in api_docs(name)}
        self._tools = self._offered()
        self._added = False  # functions, with this turn of the user

    def ready(self) -> None:
        """A round of calls begins."""
        self._steps += 1

    def answered(self) -> None:
        """The agent has answered: the user's turn is over."""
        self._steps = 0
        self._referee.end_turn()
        self._added = self._referee.turn in self._entry.held

    def changes(self) -> list[Tool] | None:
        """All tools, once, where this turn of the user brings some that were held back."""
        if not self._added:
            return None
        self._added = False
        self._tools = self._offered()
        return self._tools

    def snapshot(self) -> dict[str, Any]:
        judged = self._referee
        error = judged.error or ("multi_turn:force_terminated" if self._steps > self._most else "")
        return {
            "bfcl": {
                "right": judged.right,
                "error": error,
                "turn": judged.turn,
                "passed": judged.passed,
                "requests": len(self._entry.turns),
                "needless": judged.needless,
            }
        }

    def _offered(self) -> list[Tool]:
        later = [name for turn, names in self._entry.held.items() if turn > self._referee.turn for name in names]
        return [doc_tool(d, partial(self._call, name)) for name, d in self._docs.items() if name not in later]

    def _call(self, function: str, /, **arguments: Any) -> ToolResult:
        text, ran = self._referee.call(function, arguments)
        error = None if ran else CallStatus.TOOL_ERROR
        return ToolResult(text, error=error, terminate=self._steps > self._most)


def turns_passed(record: EpisodeRecord) -> float:
    """Share of the user's turns that were right, up to the first that was not: a reward on the way to success."""
    state = record.state.get("bfcl", {})
    return state.get("passed", 0) / state["requests"] if state.get("requests") else 0.0


def _more_functions() -> str:
    """What the user says where functions are added; the env names them."""
    from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC

    return str(DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC)
