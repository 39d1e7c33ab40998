"""ToolUseVectorEnv: N conversations behind `gymnasium.vector.VectorEnv`; the tools of a step all run together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import error
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from toolstep.envs.config import EnvConfig
from toolstep.envs.episode import Episode, Outcome
from toolstep.envs.render import render_conversation
from toolstep.envs.tool_use import RENDER_FPS, RENDER_MODES, check_render_mode
from toolstep.envs.tools import BoundCall, Executor, Tool

Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class ToolUseVectorEnv(VectorEnv[Any, Any, Any]):
    """N rows, each of which behaves as a `ToolUseEnv` with the same keywords would.

    Args:
        num_envs: number of rows, N.
        tasks, tools, **options: as for `ToolUseEnv`.
        autoreset_mode: "NextStep" (Gymnasium's default), "SameStep", "Disabled", or the `AutoresetMode`.
        max_episode_steps: cut an episode at that many steps, as `gymnasium.make`'s TimeLimit does.

    `reset` takes an int (row i gets seed + i), a list of N seeds (None: that row's generator goes on), and
    `options={"reset_mask": bool[N]}`, which leaves the other rows alone; `options` is never changed.
    """

    def __init__(
        self,
        num_envs: int,
        tasks: Any,
        tools: Sequence[Tool | Callable[..., Any]] | None = None,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ):
        super().__init__()
        if isinstance(num_envs, bool) or not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
            raise ValueError(f"num_envs must be a whole number >= 1, got {num_envs!r}")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps must be >= 1 or None, got {max_episode_steps!r}")
        check_render_mode(render_mode)
        self.num_envs = int(num_envs)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {
            "render_modes": list(RENDER_MODES),
            "render_fps": RENDER_FPS,
            "autoreset_mode": self.autoreset_mode,
        }
        self.render_mode = render_mode
        self.max_episode_steps = max_episode_steps
        self.config = _with_max_turns(EnvConfig.create(tasks, tools, **options), max_episode_steps)
        self.single_observation_space = self.config.view.observation_space()
        self.single_action_space = self.config.view.action_space()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._episodes = [Episode(self.config) for _ in range(self.num_envs)]
        self._executor = Executor(self.num_envs * self.config.limits.max_calls)
        self._rngs: list[np.random.Generator | None] = [None] * self.num_envs
        self._seeds: list[int] = [-1] * self.num_envs
        self._obs: list[Any] = [None] * self.num_envs
        self._steps = np.zeros(self.num_envs, np.int64)
        self._ended = np.zeros(self.num_envs, np.bool_)  # rows whose episode is over and that await a reset

    # ------------------------------------------------------------------ reset
    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes in all rows, or in those of `options["reset_mask"]`.

        Raises:
            ValueError, TypeError: wrong seeds or a wrong mask; nothing was changed then.
        """
        seeds = self._row_seeds(seed)
        mask = self._reset_mask(options)
        if not mask.all() and any(obs is None for obs, m in zip(self._obs, mask) if not m):
            raise error.ResetNeeded("the first reset must begin every row: call reset() without a reset_mask")
        infos: dict[str, Any] = {}
        for i in np.flatnonzero(mask):
            infos = self._add_info(infos, self._reset_row(int(i), seeds[i]), int(i))
        return self._batch(self._obs), infos

    def _reset_row(self, i: int, seed: int | None = None) -> dict[str, Any]:
        rng = self._rngs[i]
        if seed is not None or rng is None:
            rng, self._seeds[i] = seeding.np_random(seed)
            self._rngs[i] = rng
        episode = self._episodes[i]
        try:
            self._obs[i], info = episode.reset(rng)
        except Exception as e:
            if self.config.strict:
                raise RuntimeError(f"row {i} (seed {self._seeds[i]}) could not be reset: {e}") from e
            self._obs[i], info = episode.failed_reset(e)
        self._steps[i] = 0
        self._ended[i] = False
        return info

    # ------------------------------------------------------------------- step
    def step(self, actions: Any) -> Step:
        """One turn in every row.

        Under NEXT_STEP a row that ended is reset instead, its action is ignored.  Under DISABLED such a row must have
        been reset.

        Raises:
            TypeError, ValueError: wrong number or type of actions, naming the row; nothing was changed then.
            gymnasium.error.ResetNeeded: never reset, or (DISABLED) a row that ended was not reset.
        """
        if any(obs is None for obs in self._obs):
            raise error.ResetNeeded("call reset() before step()")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            rows = np.flatnonzero(self._ended).tolist()
            raise error.ResetNeeded(
                f"rows {rows} have ended; under AutoresetMode.DISABLED reset them first: "
                'reset(options={"reset_mask": terminations | truncations})'
            )
        # Only under NEXT_STEP does a row still await its reset here.
        resetting = self._ended.copy()
        checked = self._check_actions(actions, skip=resetting)
        rows = [i for i in range(self.num_envs) if not resetting[i]]
        outcomes = self._play(rows, checked)

        rewards = np.zeros(self.num_envs, np.float64)
        terminations = np.zeros(self.num_envs, np.bool_)
        truncations = np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for i in range(self.num_envs):
            if resetting[i]:
                infos = self._add_info(infos, self._reset_row(i), i)
                continue
            out = outcomes[i]
            self._steps[i] += 1
            info = out.info
            # As Gymnasium's TimeLimit does: at that step an episode is truncated even if it terminated too.
            late = self.max_episode_steps is not None and self._steps[i] >= self.max_episode_steps
            self._obs[i] = out.observation
            rewards[i], terminations[i], truncations[i] = out.reward, out.terminated, out.truncated or late
            if terminations[i] or truncations[i]:
                self._ended[i] = True
                if self.autoreset_mode is AutoresetMode.SAME_STEP:
                    infos = self._add_info(infos, {"final_obs": out.observation, "final_info": info}, i)
                    info = self._reset_row(i)
            infos = self._add_info(infos, info, i)
        return self._batch(self._obs), rewards, terminations, truncations, infos

    def _play(self, rows: Sequence[int], actions: Sequence[Any]) -> dict[int, Outcome]:
        """Begin the turns of all rows, run all their calls together, finish them."""
        calls: list[BoundCall] = []
        spans: dict[int, slice] = {}
        outcomes: dict[int, Outcome] = {}
        for i in rows:
            try:
                begun = self._episodes[i].begin(actions[i])
            except Exception as e:
                outcomes[i] = self._failed(i, e)
                continue
            spans[i] = slice(len(calls), len(calls) + len(begun))
            calls += begun
        results = self._executor.run(calls, timeout=self.config.limits.tool_timeout)
        for i, span in spans.items():
            try:
                outcomes[i] = self._episodes[i].finish(results[span])
            except Exception as e:
                outcomes[i] = self._failed(i, e)
        return outcomes

    def _failed(self, i: int, e: Exception) -> Outcome:
        if self.config.strict:
            raise RuntimeError(f"row {i} (seed {self._seeds[i]}) failed: {type(e).__name__}: {e}") from e
        return self._episodes[i].fail(e)

    # ------------------------------------------------------------------ parts
    def _row_seeds(self, seed: Any) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)) and not isinstance(seed, bool):
            seeds: list[Any] = [int(seed) + i for i in range(self.num_envs)]
        elif isinstance(seed, (list, tuple, np.ndarray)):
            seeds = list(seed)
        else:
            raise TypeError(f"seed must be an int, a list of {self.num_envs} ints or None, got {type(seed).__name__}")
        if len(seeds) != self.num_envs:
            raise ValueError(f"a list of seeds must have num_envs={self.num_envs} entries, got {len(seeds)}")
        for i, s in enumerate(seeds):
            if s is not None and (isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 0):
                raise ValueError(f"the seed of row {i} must be a whole number >= 0 or None, got {s!r}")
        return [None if s is None else int(s) for s in seeds]

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not isinstance(mask, np.ndarray):
            raise TypeError(f"options['reset_mask'] must be a numpy array, got {type(mask).__name__}")
        if mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] must have dtype bool, got {mask.dtype}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"options['reset_mask'] must have shape ({self.num_envs},), got {mask.shape}")
        if not mask.any():
            raise ValueError("options['reset_mask'] must select at least one row")
        return mask

    def _check_actions(self, actions: Any, skip: NDArray[np.bool_]) -> list[Any]:
        # A bare str of length N would pass for N one-letter actions.
        if not isinstance(actions, (tuple, list, np.ndarray)):
            raise TypeError(f"expected a batch of {self.num_envs} actions, got one {type(actions).__name__}")
        batch = list(actions)
        if len(batch) != self.num_envs:
            raise ValueError(f"expected a batch of {self.num_envs} actions, got {len(batch)}")
        for i, action in enumerate(batch):
            if not skip[i]:
                try:
                    batch[i] = self.config.view.check(action)
                except (TypeError, ValueError) as e:
                    raise type(e)(f"row {i}: {e}") from e
        return batch

    def _batch(self, observations: Sequence[Any]) -> tuple[Any, ...]:
        """Both spaces of every view batch to a tuple of rows; the caller gets objects of its own."""
        return tuple(deepcopy(o) for o in observations)

    # ---------------------------------------------------- what users look at
    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each row's generator."""
        return tuple(self._seeds)

    @property  # type: ignore[misc]  # read-only, as in Gymnasium's own vector envs
    def np_random(self) -> tuple[np.random.Generator | None, ...]:  # type: ignore[override]
        """The generator of each row; None before the first reset."""
        return tuple(self._rngs)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute of each row's episode: "messages", "task", "record", "turns", "tool_seconds", ..."""
        return tuple(deepcopy(getattr(e, name)) if name == "messages" else getattr(e, name) for e in self._episodes)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each row's episode (or get the attribute, as Gymnasium's vector envs do)."""
        values = self.get_attr(name)
        return tuple(v(*args, **kwargs) if callable(v) else v for v in values)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each row's episode: one value for each row, or one for all."""
        rows = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(rows) != self.num_envs:
            raise ValueError(f"values must have num_envs={self.num_envs} entries, got {len(rows)}")
        for episode, value in zip(self._episodes, rows):
            if not hasattr(episode, name):
                raise AttributeError(f"an episode has no attribute {name!r}")
            setattr(episode, name, value)

    def oracle_actions(self) -> tuple[Any, ...]:
        """The right next action of each row in this env's view; None for a row whose episode is over.

        Raises:
            NoOracle: the task set knows no right action.
        """
        return tuple(e.oracle_action() for e in self._episodes)

    def render(self) -> tuple[str, ...] | None:
        """The conversation of each row, for a person to read."""
        return None if self.render_mode is None else tuple(map(render_conversation, self._episodes))

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the tool threads and processes."""
        self._executor.close()


def _with_max_turns(config: EnvConfig, max_episode_steps: int | None) -> EnvConfig:
    """A step is a turn: so the episode itself ends there, is scored, and says why."""
    if max_episode_steps is None:
        return config
    turns = min(max_episode_steps, config.limits.max_turns or max_episode_steps)
    return replace(config, limits=replace(config.limits, max_turns=turns))


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = [m.value for m in AutoresetMode]
        raise ValueError(f"autoreset_mode must be one of {known}, got {mode!r}") from None
