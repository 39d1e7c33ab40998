"""The agents of a replay: they say again what was recorded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion, FinishReason
from toolstep.rollout.replay.recorded import RecordedEpisode
from toolstep.rollout.specs import sampling_seed
from toolstep.rollout.types import AGENT_ERROR

RUN_SEED = 0  # of a replay: it names episodes, nothing is sampled


class _Script:
    """Which recorded episode each row plays, and its next turn."""

    env_kwargs: Mapping[str, Any] = {}

    def __init__(self, episodes: Iterable[RecordedEpisode]):
        self._waiting: dict[int, deque[RecordedEpisode]] = {}
        for episode in episodes:
            self._waiting.setdefault(sampling_seed(episode.spec, RUN_SEED), deque()).append(episode)
        self._rows: dict[int, tuple[RecordedEpisode, int]] = {}

    def start(self, row: int, seed: int) -> None:
        """An episode begins in `row`: the recorded one that its seed belongs to."""
        self._rows[row] = self._waiting[seed].popleft(), 0

    def next_turn(self, row: int) -> tuple[RecordedEpisode, int]:
        episode, turn = self._rows[row]
        self._rows[row] = episode, turn + 1
        return episode, turn


class ActionScript(_Script):
    """For views without token ids: an action a turn, and `idle` where there are no more.

    idle: None, which gives the turn up; a number in a menu, where no turn can be given up.
    """

    def __init__(self, episodes: Iterable[RecordedEpisode], *, idle: int | None = None):
        super().__init__(episodes)
        self._idle = idle

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """The recorded action of each row; `idle` for rows without an episode too."""
        actions: list[Any] = []
        for row in range(len(observation)):
            if row not in self._rows:
                actions.append(self._idle)
                continue
            episode, turn = self.next_turn(row)
            actions.append(episode.actions[turn] if turn < len(episode.actions) else self._idle)
        return tuple(actions) if self._idle is None else np.array(actions), None


class TokenScript(_Script):
    """For token views: the recorded ids of a turn, behind an observation that is the recorded one.

    Where the observation is another one, or no turn was recorded, it gives up: nothing that follows could be compared.
    What is said is everything behind the observation in the record of that turn, whatever the mask says of it.
    """

    def new_segment(self, row: int) -> None:
        """The context begins anew; the record goes on."""

    def act(self, rows: Sequence[int], observations: Sequence[NDArray[np.int64]]) -> list[Completion]:
        return [self._completion(row, np.asarray(seen)) for row, seen in zip(rows, observations, strict=True)]

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """`act` for all rows."""
        turns = self.act(range(len(observation)), observation)
        return tuple(turn.token_ids.astype(np.int64) for turn in turns), None

    def _completion(self, row: int, seen: NDArray[Any]) -> Completion:
        episode, turn = self.next_turn(row)
        at = np.flatnonzero(episode.turn[: len(episode.token_ids)] == turn)
        ids = episode.token_ids[at]
        if turn >= episode.turns or not np.array_equal(ids[: len(seen)], seen):
            return _said(ids[:0], "abort")
        given_up = episode.data["status"] == AGENT_ERROR and turn == episode.turns - 1
        return _said(ids[len(seen) :], "abort" if given_up else "stop")


def _said(ids: NDArray[np.int64], finish: FinishReason) -> Completion:
    none = np.zeros(len(ids), np.float32)
    return Completion(ids.astype(np.int32), none, none, finish, weight_version=-1)
