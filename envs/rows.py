"""Rows: the episodes of a vector env, one by one.  What `step` and `send`/`recv` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.utils import seeding
from numpy.typing import NDArray

from toolstep.envs.config import EnvConfig
from toolstep.envs.episode import Episode, Outcome
from toolstep.envs.tools import BoundCall, SharedStateError
from toolstep.envs.types import ToolResult


class Rows:
    """N episodes, each with its generator.

    A failure of the environment's own parts ends the row it happens in (status "env_error"); under `config.strict` it
    is a RuntimeError that names the row.

    observations: the latest of each row, None before its first reset.  ended: bool[N], rows that await a reset.
    tool_seconds: that all tool calls took so far.  template_seconds: that was spent in the chat template so far.
    """

    def __init__(self, num: int, config: EnvConfig, max_steps: int | None):
        self.config = config
        self.max_steps = max_steps
        self.episodes = [Episode(config) for _ in range(num)]
        self.rngs: list[np.random.Generator | None] = [None] * num
        self.seeds: list[int] = [-1] * num
        self.observations: list[Any] = [None] * num
        self.ended = np.zeros(num, np.bool_)
        self.tool_seconds = 0.0
        self._template_seconds = 0.0  # of contexts that are gone
        self._steps = np.zeros(num, np.int64)

    def __len__(self) -> int:
        return len(self.episodes)

    def reset(self, i: int, seed: int | None = None, sample: int = 0) -> dict[str, Any]:
        """Begin the next episode of row i; seed None: its generator goes on.  Returns the info."""
        rng = self.rngs[i]
        if seed is not None or rng is None:
            rng, self.seeds[i] = seeding.np_random(seed)
            self.rngs[i] = rng
        episode = self.episodes[i]
        self._template_seconds += episode.context.seconds
        try:
            self.observations[i], info = episode.reset(rng, sample)
        except SharedStateError:  # a mistake of whoever wrote the tools, not the failure of a row
            raise
        except Exception as e:
            if self.config.strict:
                raise RuntimeError(f"row {i} (seed {self.seeds[i]}) could not be reset: {e}") from e
            self.observations[i], info = episode.failed_reset(e)
        self._steps[i] = 0
        self.ended[i] = False
        return info

    def check(self, i: int, action: Any) -> Any:
        """The action in its plain type; the TypeError or ValueError of the view names the row."""
        try:
            return self.config.view.check(action)
        except (TypeError, ValueError) as e:
            raise type(e)(f"row {i}: {e}") from e

    def begin(self, i: int, action: Any) -> list[BoundCall] | Exception:
        """First half of row i's turn: the calls to run, or the failure with which to `fail` it."""
        try:
            return self.episodes[i].begin(action)
        except Exception as e:
            return e

    def finish(self, i: int, results: Sequence[ToolResult]) -> Outcome:
        """Second half: the results of the calls go in, the outcome comes out."""
        self.tool_seconds += sum(r.seconds for r in results)
        try:
            outcome = self.episodes[i].finish(results)
        except Exception as e:
            return self.fail(i, e)
        return self._settled(i, outcome)

    def fail(self, i: int, error: Exception) -> Outcome:
        """The outcome of a turn in which a part of the environment failed."""
        outcome = self._settled(i, self.episodes[i].fail(error))
        if self.config.strict:
            raise RuntimeError(f"row {i} (seed {self.seeds[i]}) failed: {type(error).__name__}: {error}") from error
        return outcome

    def _settled(self, i: int, outcome: Outcome) -> Outcome:
        self._steps[i] += 1
        # As Gymnasium's TimeLimit does: at that step an episode is truncated even if it terminated too.
        if self.max_steps is not None and self._steps[i] >= self.max_steps:
            outcome = replace(outcome, truncated=True)
        self.observations[i] = outcome.observation
        if outcome.terminated or outcome.truncated:
            self.ended[i] = True
        return outcome

    @property
    def template_seconds(self) -> float:
        return self._template_seconds + sum(episode.context.seconds for episode in self.episodes)

    def close(self) -> None:
        """Close the tools of all episodes."""
        for episode in self.episodes:
            episode.close()


def row_seeds(seed: Any, num_envs: int) -> list[int | None]:
    """One seed a row out of what `reset` takes; ValueError or TypeError where that is wrong."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
        seeds: list[Any] = [int(seed) + i for i in range(num_envs)]
    elif isinstance(seed, (list, tuple, np.ndarray)):
        seeds = list(seed)
    else:
        raise TypeError(f"seed must be an int, a list of {num_envs} ints or None, got {type(seed).__name__}")
    if len(seeds) != num_envs:
        raise ValueError(f"a list of seeds must have num_envs={num_envs} entries, got {len(seeds)}")
    for i, s in enumerate(seeds):
        if s is not None and (isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 0):
            raise ValueError(f"the seed of row {i} must be a whole number >= 0 or None, got {s!r}")
    return [None if s is None else int(s) for s in seeds]


def reset_samples(samples: Any, num: int, where: str = "options['samples']") -> list[int]:
    """One sample a row, 0 by default; ValueError or TypeError where that is wrong."""
    if samples is None:
        return [0] * num
    if not isinstance(samples, (list, tuple, np.ndarray)) or len(samples) != num:
        raise TypeError(f"{where} must be a list of {num} whole numbers, got {samples!r}")
    for s in samples:
        if isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 0:
            raise ValueError(f"{where} must be whole numbers >= 0, got {s!r}")
    return [int(s) for s in samples]


def reset_mask(options: dict[str, Any] | None, num_envs: int) -> NDArray[np.bool_]:
    """bool[N] out of the options of `reset`, all True by default; ValueError or TypeError where it is wrong."""
    mask = (options or {}).get("reset_mask")
    if mask is None:
        return np.ones(num_envs, np.bool_)
    if not isinstance(mask, np.ndarray):
        raise TypeError(f"options['reset_mask'] must be a numpy array, got {type(mask).__name__}")
    if mask.dtype != np.bool_:
        raise TypeError(f"options['reset_mask'] must have dtype bool, got {mask.dtype}")
    if mask.shape != (num_envs,):
        raise ValueError(f"options['reset_mask'] must have shape ({num_envs},), got {mask.shape}")
    if not mask.any():
        raise ValueError("options['reset_mask'] must select at least one row")
    return mask
