"""ToolUseVectorEnv: N conversations behind `gymnasium.vector.VectorEnv`; the tools of a step all run together."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import error
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from toolstep.envs.config import EnvConfig, Tools
from toolstep.envs.episode import Outcome
from toolstep.envs.render import render_conversation
from toolstep.envs.rows import Rows, reset_mask, reset_samples, row_seeds
from toolstep.envs.stream import Received, Stream
from toolstep.envs.tool_use import RENDER_FPS, RENDER_MODES, check_render_mode
from toolstep.envs.tools import BoundCall, Executor

Step = tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class ToolUseVectorEnv(VectorEnv[Any, Any, Any]):
    """N rows, each of which behaves as a `ToolUseEnv` with the same keywords would.

    Args:
        num_envs: number of rows, N.
        tasks, tools, **options: as for `ToolUseEnv`.
        autoreset_mode: "NextStep" (Gymnasium's default), "SameStep", "Disabled", or the `AutoresetMode`.
        max_episode_steps: cut an episode at that many steps, as `gymnasium.make`'s TimeLimit does.

    `reset` takes an int (row i gets seed + i), a list of N seeds (None: that row's generator goes on), and
    `options={"reset_mask": bool[N]}`, which leaves the other rows alone; `options` is never changed.  On a tape, where
    several rows play one task, `options={"samples": int[N]}` tells them apart.

    `begin`, `send` and `recv` play the same turns row by row, as EnvPool does: no row waits for the tools of another.
    """

    def __init__(
        self,
        num_envs: int,
        tasks: Any,
        tools: Tools | None = None,
        *,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ):
        super().__init__()
        if isinstance(num_envs, bool) or not isinstance(num_envs, (int, np.integer)) or num_envs < 1:
            raise ValueError(f"num_envs must be a whole number >= 1, got {num_envs!r}")
        if max_episode_steps is not None and not (isinstance(max_episode_steps, int) and max_episode_steps >= 1):
            raise ValueError(f"max_episode_steps must be a whole number >= 1 or None, got {max_episode_steps!r}")
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
        self._rows = Rows(self.num_envs, self.config, max_episode_steps)
        self._executor = Executor(self.num_envs * self.config.limits.max_calls)
        self._stream = Stream(self._rows, self._executor)

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
            gymnasium.error.AlreadyPendingCallError: rows were sent and not yet received.
        """
        self._stream.refuse_if_pending("reset")
        seeds = row_seeds(seed, self.num_envs)
        mask = reset_mask(options, self.num_envs)
        samples = reset_samples((options or {}).get("samples"), self.num_envs)
        if not mask.all() and any(obs is None for obs, m in zip(self._rows.observations, mask) if not m):
            raise error.ResetNeeded("the first reset must begin every row: call reset() without a reset_mask")
        infos: dict[str, Any] = {}
        for i in np.flatnonzero(mask):
            infos = self._add_info(infos, self._rows.reset(int(i), seeds[i], samples[i]), int(i))
        return self._batch(), infos

    # ------------------------------------------------------------------- step
    def step(self, actions: Any) -> Step:
        """One turn in every row.

        Under NEXT_STEP a row that ended is reset instead, its action is ignored.  Under DISABLED such a row must have
        been reset.

        Raises:
            TypeError, ValueError: wrong number or type of actions, naming the row; nothing was changed then.
            gymnasium.error.ResetNeeded: never reset, or a row that ended was not reset (DISABLED; or it ended by
                `recv`, under SAME_STEP).
            gymnasium.error.AlreadyPendingCallError: rows were sent and not yet received.
        """
        rows = self._rows
        self._stream.refuse_if_pending("step")
        if any(obs is None for obs in rows.observations):
            raise error.ResetNeeded("call reset() before step()")
        if self.autoreset_mode is not AutoresetMode.NEXT_STEP and rows.ended.any():
            raise error.ResetNeeded(
                f"rows {np.flatnonzero(rows.ended).tolist()} have ended; reset them first: "
                'reset(options={"reset_mask": terminations | truncations})'
            )
        resetting = rows.ended.copy()
        outcomes = self._play(self._check_actions(actions, skip=resetting), skip=resetting)

        rewards = np.zeros(self.num_envs, np.float64)
        terminations = np.zeros(self.num_envs, np.bool_)
        truncations = np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for i in range(self.num_envs):
            if resetting[i]:
                infos = self._add_info(infos, rows.reset(i), i)
                continue
            out = outcomes[i]
            info = out.info
            rewards[i], terminations[i], truncations[i] = out.reward, out.terminated, out.truncated
            if rows.ended[i] and self.autoreset_mode is AutoresetMode.SAME_STEP:
                infos = self._add_info(infos, {"final_obs": out.observation, "final_info": info}, i)
                info = rows.reset(i)
            infos = self._add_info(infos, info, i)
        return self._batch(), rewards, terminations, truncations, infos

    def _play(self, actions: Sequence[Any], skip: NDArray[np.bool_]) -> dict[int, Outcome]:
        """Begin the turns of all rows, run all their calls together, finish them."""
        calls: list[BoundCall] = []
        begun: dict[int, slice | Exception] = {}
        for i in np.flatnonzero(~skip).tolist():
            own = self._rows.begin(i, actions[i])
            if isinstance(own, Exception):
                begun[i] = own
                continue
            begun[i] = slice(len(calls), len(calls) + len(own))
            calls += own
        results = self._executor.run(calls, timeout=self.config.limits.tool_timeout)
        return {
            i: self._rows.finish(i, results[own]) if isinstance(own, slice) else self._rows.fail(i, own)
            for i, own in begun.items()
        }

    # ------------------------------------------------------------ row by row
    @property
    def pending(self) -> int:
        """Number of rows that were sent and not yet received."""
        return self._stream.pending

    @property
    def turn_timeout(self) -> float:
        """Seconds within which at least one pending row comes back, on a machine that is not overloaded."""
        return self._stream.turn_timeout

    @property
    def recorded(self) -> bool:
        """Whether there is a tape, on which episodes of one task have to be told apart by their samples."""
        return self.config.tape is not None

    def begin(
        self, rows: Sequence[int], seeds: Sequence[int | None], samples: Sequence[int] | None = None
    ) -> tuple[list[Any], list[dict[str, Any]]]:
        """Reset these rows now, whatever the autoreset mode; a running episode of theirs is given up.

        seeds: one a row; None: that row's generator goes on.  samples: one a row (None: all 0), see the class.  Returns
        one observation and one info a row, not batched.

        Raises:
            ValueError: wrong rows or seeds.  gymnasium.error.AlreadyPendingCallError: a row's turn is under way.
            Both name the row, and nothing was changed then.
        """
        self._refuse_if_closed("begin")
        return self._stream.begin(rows, seeds, samples)

    def send(self, actions: Sequence[Any], rows: Sequence[int]) -> None:
        """Begin one turn in each of these rows and return; their tools run in the background ("inline" ones here).

        Raises:
            TypeError, ValueError: wrong actions or rows.  gymnasium.error.AlreadyPendingCallError: a row's turn is
            under way.  gymnasium.error.ResetNeeded: a row was never begun, or its episode is over (no autoreset
            happens here: `begin` it again).  All name the row, and nothing was changed then.
        """
        self._refuse_if_closed("send")
        self._stream.send(actions, rows)

    def recv(self, min_rows: int = 1, timeout: float | None = None) -> Received:
        """Rows whose turn is finished, in order of completion; all there are, at least `min_rows` of them.

        timeout: seconds after which it returns what there is, maybe nothing; None: as long as the deadlines of the
        tools allow.  Each row's outcome is what `step` would have returned for it.

        Raises:
            gymnasium.error.NoAsyncCallError: nothing is pending.  ValueError: more rows asked for than are pending.
            RuntimeError: strict, and a row failed; that row is received and over, the others are still to be received.
        """
        return self._stream.recv(min_rows, timeout)

    def cancel(self, rows: Sequence[int] | None = None) -> None:
        """Stop the tools of these pending rows (None: of all): their calls answer `tool_error`.  `recv` them as always.

        Raises:
            ValueError: a row is not pending.
        """
        self._stream.cancel(rows)

    def _refuse_if_closed(self, method: str) -> None:
        if self.closed:
            raise error.ClosedEnvironmentError(f"{method}() after close()")

    # ------------------------------------------------------------------ parts
    def _check_actions(self, actions: Any, skip: NDArray[np.bool_]) -> list[Any]:
        # A bare str of length N would pass for N one-letter actions.
        if not isinstance(actions, (tuple, list, np.ndarray)):
            raise TypeError(f"expected a batch of {self.num_envs} actions, got one {type(actions).__name__}")
        batch = list(actions)
        if len(batch) != self.num_envs:
            raise ValueError(f"expected a batch of {self.num_envs} actions, got {len(batch)}")
        for i, action in enumerate(batch):
            if not skip[i]:
                batch[i] = self._rows.check(i, action)
        return batch

    def _batch(self) -> Any:
        """The rows as `observation_space` has them: an array for a Box, else a tuple.  The caller gets its own."""
        rows = self._rows.observations
        return np.stack(rows) if isinstance(self.observation_space, Box) else tuple(map(deepcopy, rows))

    # ---------------------------------------------------- what users look at
    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each row's generator."""
        return tuple(self._rows.seeds)

    @property  # type: ignore[misc]  # read-only, as in Gymnasium's own vector envs
    def np_random(self) -> tuple[np.random.Generator | None, ...]:  # type: ignore[override]
        """The generator of each row; None before the first reset."""
        return tuple(self._rows.rngs)

    @property
    def total_tool_seconds(self) -> float:
        """Seconds that tools took so far, summed over the calls of all episodes (many of which ran at once)."""
        return self._rows.tool_seconds

    @property
    def total_template_seconds(self) -> float:
        """Seconds that went into rendering and tokenizing so far, over all episodes."""
        return self._rows.template_seconds

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute of each row's episode: "messages", "task", "record", "turns", "tool_seconds", ..."""
        return tuple(
            deepcopy(getattr(e, name)) if name == "messages" else getattr(e, name) for e in self._rows.episodes
        )

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each row's episode (or get the attribute, as Gymnasium's vector envs do)."""
        values = self.get_attr(name)
        return tuple(v(*args, **kwargs) if callable(v) else v for v in values)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of each row's episode: one value for each row, or one for all."""
        rows = list(values) if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(rows) != self.num_envs:
            raise ValueError(f"values must have num_envs={self.num_envs} entries, got {len(rows)}")
        for episode, value in zip(self._rows.episodes, rows):
            if not hasattr(episode, name):
                raise AttributeError(f"an episode has no attribute {name!r}")
            setattr(episode, name, value)

    def oracle_actions(self) -> tuple[Any, ...]:
        """The right next action of each row in this env's view; None for a row whose episode is over.

        Raises:
            NoOracle: the task set knows no right action.
        """
        return tuple(e.oracle_action() for e in self._rows.episodes)

    def render(self) -> tuple[str, ...] | None:
        """The conversation of each row, for a person to read."""
        return None if self.render_mode is None else tuple(map(render_conversation, self._rows.episodes))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the tools of all episodes, stop the tool threads and processes."""
        self._rows.close()
        self.config.close()
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
