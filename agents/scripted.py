"""Agents without a model: random, oracle and replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class _Scripted:
    """Shared by the agents that need no model: no env keywords, and an env that `bind` tells them about."""

    def __init__(self) -> None:
        self._envs: Any = None

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        return {}

    def bind(self, envs: Any) -> None:
        """Take the env, or vector env, that is going to be played.  Called once, before the first `predict`."""
        self._envs = envs

    @property
    def _space(self) -> Any:
        """Action space of one row."""
        if self._envs is None:
            raise RuntimeError(f"{type(self).__name__}: call bind(envs) before predict")
        space = getattr(self._envs, "single_action_space", None)
        return self._envs.action_space if space is None else space

    @property
    def _single(self) -> bool:
        return getattr(self._envs, "num_envs", None) is None

    def _rows(self) -> int:
        return 1 if self._single else int(self._envs.num_envs)


class RandomAgent(_Scripted):
    """Draws from the action space, each row from a copy of its own.

    `start(row, seed)` alone decides what is drawn in an episode; without it, (`seed`, row) does.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self._spaces: list[Any] = []

    def bind(self, envs: Any) -> None:
        super().bind(envs)
        self._spaces = []
        for row in range(self._rows()):
            space = deepcopy(self._space)
            space.seed(int(np.random.SeedSequence(self.seed, spawn_key=(row,)).generate_state(1)[0]))
            self._spaces.append(space)

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row`."""
        self._spaces[row].seed(seed)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """One random action a row; observations are not looked at."""
        if not self._spaces:
            raise RuntimeError("RandomAgent: call bind(envs) before predict; actions come from the env's action space")
        actions = tuple(space.sample() for space in self._spaces)
        return (actions[0] if self._single else actions), None


class OracleAgent(_Scripted):
    """Asks the env for the right next action: the upper bound of a task set, and a check that it can be solved.

    Needs an env with `oracle_actions()` (vector) or `oracle_action()` (single, or each of a vector env's sub-envs).
    """

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """The right action of each row; an empty one where the episode is over."""
        if self._single:
            return self._or_empty(self._ask_single()), None
        return tuple(map(self._or_empty, self._ask_vector())), None

    def _ask_single(self) -> Any:
        space = self._space  # not bound: says so
        assert space is not None
        if not hasattr(self._envs.unwrapped, "oracle_action"):
            raise self._no_oracle()
        return self._envs.unwrapped.oracle_action()

    def _ask_vector(self) -> Sequence[Any]:
        inner = self._envs.unwrapped
        if hasattr(inner, "oracle_actions"):
            return tuple(inner.oracle_actions())
        if hasattr(inner, "env_method"):  # a VecEnv of stable-baselines3
            return tuple(inner.env_method("oracle_action"))
        if not hasattr(inner, "call"):
            raise self._no_oracle()
        try:
            return tuple(inner.call("oracle_action"))
        except AttributeError as error:
            raise self._no_oracle() from error

    def _no_oracle(self) -> TypeError:
        return TypeError(
            f"OracleAgent: {self._envs.unwrapped} has no oracle_actions(); expected a ToolUseEnv or a ToolUseVectorEnv"
        )

    def _or_empty(self, action: Any) -> Any:
        return _empty(self._space) if action is None else action


class ReplayAgent(_Scripted):
    """Plays given actions back: `actions[row][episode][turn]`.

    `episode_start` moves a row on to its next episode.  A row whose observation is empty without opening an episode
    gets an empty action and uses up none of its own.  Raises IndexError, naming the row, where the script has run out.
    """

    def __init__(self, actions: Sequence[Sequence[Sequence[Any]]]) -> None:
        super().__init__()
        self.actions = actions
        self._at: dict[int, tuple[int, int]] = {}

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """The next action of each row; `state` is not needed, and "" or [] marks an empty observation."""
        single = isinstance(observation, (str, np.ndarray)) and not _is_batch(observation)
        batch = [observation] if single else list(observation)
        begin = np.full(len(batch), state is None) if episode_start is None else np.atleast_1d(episode_start)
        out = []
        for row, seen in enumerate(batch):
            episode, turn = self._at.get(row, (-1, 0))
            if begin[row] or episode < 0:
                episode, turn = episode + 1, 0
            if len(seen) == 0 and not begin[row]:
                out.append("" if isinstance(seen, str) else np.zeros(0, np.int64))
                self._at[row] = (episode, turn)
                continue
            out.append(self._script(row, episode, turn))
            self._at[row] = (episode, turn + 1)
        return (out[0] if single else tuple(out)), "replay"

    def _script(self, row: int, episode: int, turn: int) -> Any:
        try:
            return self.actions[row][episode][turn]
        except IndexError:
            raise IndexError(
                f"ReplayAgent: no action for row {row}, episode {episode}, turn {turn}; the script ends "
                "before the env does"
            ) from None


def _is_batch(observation: Any) -> bool:
    return isinstance(observation, np.ndarray) and (observation.ndim > 1 or observation.dtype == object)


def _empty(space: Any) -> Any:
    """The empty action of a text or token space, any one of a finite choice."""
    if isinstance(space, spaces.Discrete):
        return space.start
    return "" if isinstance(space.sample(), str) else np.zeros(0, np.int64)
