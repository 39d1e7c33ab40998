"""How an agent is asked for the turns of the live rows: by `act` (ids with log-probs) or by `predict`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from toolstep.agents.base import Agent, Completion, TextAgent, TokenAgent

_NO_TURN = Completion(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32), "abort")


@dataclass(frozen=True, slots=True)
class Turns:
    """One turn for each live row.

    actions: the batch for `envs.step`, with the null action for all other rows.  records: by row, what a trajectory
    keeps of the turn (None for an action that is neither ids, nor text, nor a number).  aborted: by row, the turns that
    the agent gave up; they are not to be stepped.
    """

    actions: Any
    records: Mapping[int, Completion | NDArray[Any] | str | int | None]
    aborted: Mapping[int, Completion] = field(default_factory=dict)

    def sampled(self, row: int) -> int:
        """Token ids of the row's turn; 0 in a view without."""
        turn = self.records[row]
        if isinstance(turn, Completion):
            return len(turn.token_ids)
        return len(turn) if isinstance(turn, np.ndarray) else 0


class Player(ABC):
    """An agent at one vector env."""

    @abstractmethod
    def begin(self, row: int, seed: int) -> None:
        """An episode begins in `row`; `seed` decides the agent's samples."""

    def new_segment(self, row: int) -> None:
        """The row's next observation is its whole context.  Nothing to do for an agent that keeps none."""
        return

    @abstractmethod
    def act(self, rows: Sequence[int], observation: Any) -> Turns:
        """One turn for each of `rows`; `observation` is the env's latest batch."""


def make_player(envs: VectorEnv[Any, Any, Any], agent: Agent, *, tokens: bool) -> Player:
    """The player for that agent in that env; ValueError where its views do not match."""
    bind = getattr(agent, "bind", None)
    if callable(bind):
        bind(envs)
    if isinstance(agent, TextAgent) and not isinstance(agent, TokenAgent):
        return TextPlayer(envs.num_envs, agent)
    if not isinstance(agent, TokenAgent):
        return PredictPlayer(envs, agent, tokens=tokens)
    if not tokens:
        raise ValueError(
            f"{type(agent).__name__} samples token ids, but the env's observations are "
            f"{envs.single_observation_space}; make the env with **agent.env_kwargs (view='tokens')"
        )
    return TokenPlayer(envs.num_envs, agent)


class TokenPlayer(Player):
    """Asks a `TokenAgent` for the rows that need a turn, and for no other."""

    def __init__(self, num_envs: int, agent: TokenAgent):
        self._num_envs = num_envs
        self._agent = agent

    def begin(self, row: int, seed: int) -> None:
        self._agent.start(row, seed)

    def new_segment(self, row: int) -> None:
        begin = getattr(self._agent, "new_segment", None)
        if not callable(begin):
            raise ValueError(
                f"the env began the context of row {row} anew (history='rerender'), but {type(self._agent).__name__} "
                "has no new_segment(row); use an env with history='keep'"
            )
        begin(row)

    def act(self, rows: Sequence[int], observation: Any) -> Turns:
        completions = self._agent.act(rows, [np.asarray(observation[r], dtype=np.int64) for r in rows])
        if len(completions) != len(rows):
            raise ValueError(
                f"{type(self._agent).__name__}.act returned {len(completions)} completions for {len(rows)} rows"
            )
        records = dict(zip(rows, completions, strict=True))
        aborted = {r: c for r, c in records.items() if c.finish_reason == "abort"}
        actions = [np.zeros(0, dtype=np.int64) for _ in range(self._num_envs)]
        for row, completion in records.items():
            if row not in aborted:
                actions[row] = completion.token_ids.astype(np.int64)
        return Turns(tuple(actions), records, aborted)


class TextPlayer(Player):
    """Asks a `TextAgent` for the rows that need a turn, and for no other."""

    def __init__(self, num_envs: int, agent: TextAgent):
        self._num_envs = num_envs
        self._agent = agent

    def begin(self, row: int, seed: int) -> None:
        self._agent.start(row, seed)

    def act(self, rows: Sequence[int], observation: Any) -> Turns:
        turns = dict(zip(rows, self._agent.reply(rows, [observation[r] for r in rows]), strict=True))
        actions = tuple(turns[r].text if r in turns else "" for r in range(self._num_envs))
        return Turns(actions, dict.fromkeys(rows), {r: _aborted(t.error) for r, t in turns.items() if t.error})


def _aborted(error: str) -> Completion:
    none = np.zeros(0, np.float32)
    return Completion(np.zeros(0, np.int32), none, none, "abort", error=error)


class PredictPlayer(Player):
    """Asks any agent by `predict`, with the whole batch; its state is handed back to it at each call.

    None in the place of a live row's action gives the turn up, in a space that has a null action.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], agent: Agent, *, tokens: bool):
        self._agent = agent
        self._tokens = tokens
        self._state: Any = None
        self._starts = np.ones(envs.num_envs, dtype=np.bool_)
        self._null = null_action(envs.single_action_space)
        start = getattr(agent, "start", None)
        self._start: Callable[[int, int], None] | None = start if callable(start) else None

    def begin(self, row: int, seed: int) -> None:
        self._starts[row] = True
        if self._start is not None:
            self._start(row, seed)

    def act(self, rows: Sequence[int], observation: Any) -> Turns:
        predicted, self._state = self._agent.predict(
            observation, state=self._state, episode_start=self._starts.copy(), deterministic=False
        )
        self._starts[list(rows)] = False
        if len(predicted) != len(self._starts) or isinstance(predicted, str):
            raise ValueError(
                f"{type(self._agent).__name__}.predict must return one action a row, {len(self._starts)}, "
                f"got {type(predicted).__name__} of length {len(predicted)}"
            )
        given_up: dict[int, Completion] = {}
        if self._null is not None:
            live = set(rows)
            given_up = {r: _NO_TURN for r in rows if predicted[r] is None}
            predicted = tuple(a if r in live and a is not None else self._null() for r, a in enumerate(predicted))
        return Turns(predicted, {r: self._record(predicted[r]) for r in rows}, given_up)

    def _record(self, action: Any) -> NDArray[Any] | str | int | None:
        if self._tokens:
            return np.asarray(action)
        if isinstance(action, str):
            return str(action)
        return int(action) if isinstance(action, int | np.integer) else None


def null_action(space: spaces.Space[Any]) -> Callable[[], Any] | None:
    """Makes the action that asks for nothing; None for a space that has none (a Discrete, a Box)."""
    if isinstance(space, spaces.Text):
        return str
    if isinstance(space, spaces.Sequence):
        return lambda: np.zeros(0, dtype=np.int64)
    return None
