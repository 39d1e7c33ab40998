"""Who is right in a multi-turn conversation: the verdicts of the official checker, reached call by call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolstep.envs.tasks.bfcl.apis import Apis, parse_call
from toolstep.envs.tasks.bfcl.data import Entry


class Referee:
    """The agent's APIs and the reference's, and what became of the turns so far.

    turn: turns of the user that are over.  passed: those of them that were right; after the first one that is not,
    nothing counts.
    error: the official `error_type` of what is wrong, "" for nothing.
    needless: turns in which no call was wanted, and one was made; the official score does not look at it.
    """

    def __init__(self, entry: Entry) -> None:
        self._truth = [[parse_call(text) for text in turn] for turn in entry.truth]
        self._agent, self._reference = Apis(entry), Apis(entry)
        self._results: list[str] = []  # of all calls of the agent
        self._called = False  # in this turn
        self.turn = self.passed = self.needless = 0
        self.error = ""

    @property
    def right(self) -> bool:
        """Whether all turns are over, and right."""
        return not self.error and self.turn == len(self._truth)

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Make a call of the agent.  Returns what it answers, and whether it ran."""
        text, ran = self._agent.call(name, (), arguments)
        self._results.append(text)
        self._called = True
        return text, ran

    def end_turn(self) -> None:
        """The agent has said what it had to say to this turn of the user."""
        wanted = [self._reference.call(*call)[0] for call in self._truth[self.turn]]
        if not self.error:
            self.error = self._compare(wanted)
        self.needless += self._called and not wanted
        self.passed += not self.error
        self.turn += 1
        self._called = False

    def _compare(self, wanted: list[str]) -> str:
        if not wanted:  # the turn lacks something: whatever was called shows in the state later on
            return ""
        if not self._called:
            return "multi_turn:empty_turn_model_response"
        if not self._agent.same_state(self._reference):
            return "multi_turn:instance_state_mismatch"
        # A result may come from an earlier turn, but each counts once.
        left = list(self._results)
        for text in wanted:
            if text not in left:
                return "multi_turn:execution_response_mismatch"
            left.remove(text)
        return ""
