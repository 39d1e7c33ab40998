"""stable-baselines3's `predict` for agents that sample token ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion, SamplingParams


class PredictByAct:
    """`predict` over `act`, for a token agent that keeps the contexts of its rows.

    sampling, seed: the agent's own; `predict` takes the seeds of its episodes from `seed`.
    """

    sampling: SamplingParams
    seed: int

    @abstractmethod
    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row`."""

    @abstractmethod
    def started(self, row: int) -> bool:
        """Whether `row` is in an episode."""

    @abstractmethod
    def act(
        self,
        rows: Sequence[int],
        observations: Sequence[NDArray[np.int64]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """One turn for each of `rows`."""

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: NDArray[np.bool_] | None = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """stable-baselines3's `predict` over `act`.

        Args:
            observation: a batch (tuple or list of id arrays, or an integer array [N, T]), or one id array [T], which
                gets one action instead of a batch.
            state: None at the first call, then what the last call returned.  The contexts are in the engine; the state
                only says that the loop has begun.
            episode_start: bool[N], rows whose observation opens an episode (default: all where `state` is None).  Under
                NEXT_STEP autoreset that is the step *after* the one that ended the episode.
            deterministic: take the best token instead of sampling.

        A row that has an empty observation gets an empty action, and nothing is computed for it: its episode is over.
        Returns a tuple of i64[T] arrays, and the state.  Raises RuntimeError where a turn was given up.
        """
        single = isinstance(observation, np.ndarray) and observation.ndim == 1 and observation.dtype != object
        batch = [np.asarray(o) for o in ([observation] if single else observation)]
        begin = np.full(len(batch), state is None) if episode_start is None else np.atleast_1d(episode_start)
        if len(begin) != len(batch):
            raise ValueError(f"predict: {len(batch)} observations but episode_start has {len(begin)} entries")
        for row in range(len(batch)):
            if begin[row] or not self.started(row):
                self.start(row, self._next_seed(row))
        rows = [row for row, ids in enumerate(batch) if ids.size]
        sampling = replace(self.sampling, temperature=0.0) if deterministic else self.sampling
        completions = self.act(rows, [batch[row] for row in rows], sampling)
        if failed := next((c.error for c in completions if c.error), ""):
            raise RuntimeError(f"no turn could be sampled: {failed}")  # an empty action would blame the agent
        actions = [np.zeros(0, np.int64)] * len(batch)
        for row, completion in zip(rows, completions, strict=True):
            actions[row] = completion.token_ids.astype(np.int64)
        return (actions[0] if single else tuple(actions)), ("tokens", len(batch))

    def _next_seed(self, row: int) -> int:
        """Seed of the row's next episode; the same for any number of rows."""
        episodes: dict[int, int] = self.__dict__.setdefault("_episodes", {})  # row -> episodes begun by predict
        episode = episodes.get(row, 0)
        episodes[row] = episode + 1
        words = np.random.SeedSequence(self.seed, spawn_key=(row, episode)).generate_state(2, np.uint64)
        return int(words[0]) << 64 | int(words[1])
