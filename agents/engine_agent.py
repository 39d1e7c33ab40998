"""EngineAgent: what agents over a `TokenEngine` share, in this process or at a server."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion, SamplingParams

if TYPE_CHECKING:
    from toolstep.agents.engine.interface import TokenEngine


class EngineAgent:
    """Rows are the engine's; `predict`, as stable-baselines3 has it, is over `act`.

    engine: keeps the contexts of the rows.  sampling, seed: the agent's own; `predict` takes the seeds of its episodes
    from `seed`.
    """

    engine: TokenEngine
    sampling: SamplingParams
    seed: int

    @property
    def weight_version(self) -> int:
        """0 at first; goes up with every `update_weights`, and to what a server says of itself."""
        return self.engine.weight_version

    @property
    def max_context(self) -> int:
        """Longest context of a row, in tokens."""
        return self.engine.max_context

    def start(self, row: int, seed: int) -> None:
        """Begin an episode in `row`: forget its context; `seed` alone decides what will be sampled in it."""
        self.engine.start(row, seed)

    def started(self, row: int) -> bool:
        """Whether `row` is in an episode."""
        return self.engine.started(row)

    def new_segment(self, row: int) -> None:
        """The next observation of `row` is its whole context, not a delta; the episode and its samples go on."""
        self.engine.new_segment(row)

    def release(self, row: int) -> None:
        """Forget `row` and give its memory to the next new one."""
        self.engine.release(row)

    # Without a common turn (see `agents/continuous.py`).
    @property
    def busy(self) -> bool:
        """Whether a submitted turn has neither come out of `step` nor been cancelled."""
        return self.engine.busy

    def step(self) -> list[tuple[int, Completion]]:
        """Compute a little, or wait a moment for a server; the (row, turn) pairs that ended in it."""
        return [(f.row, f.completion) for f in self.engine.step()]

    def cancel(self, ticket: int) -> None:
        """Give a submitted turn up; the row's context is what it was before."""
        self.engine.cancel(ticket)

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
