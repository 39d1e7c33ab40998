"""GymnasiumVecEnv: any `gymnasium.vector.VectorEnv` as a stable-baselines3 `VecEnv`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from toolstep.envs import ToolUseVectorEnv
from toolstep.envs.vector_envs import ended_row, refuse_broken, row_info

Rows = None | int | Iterable[int]
_ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
# What RecordEpisodeStatistics writes: arrays without masks of their own, also under SAME_STEP at the top.
_EPISODE = "episode"


class GymnasiumVecEnv(VecEnv):
    """Steps a gymnasium vector env as stable-baselines3 wants it, bit for bit as `DummyVecEnv` over the same envs.

    Args:
        envs: any vector env that obeys `reset_mask` (Sync, Async, `ToolUseVectorEnv`), in any of the three autoreset
            modes.
        any_space: take observations and actions that no SB3 algorithm learns from, text for instance: for
            `evaluate_policy` with an agent of ours.

    An SB3 env always shows the next episode's first observation in the step that ends one.  Under SAME_STEP it is there
    already; under NEXT_STEP and DISABLED a masked reset right behind the step gets it, which clears a pending autoreset
    too: no phantom step, with its ignored action and its reward of 0, reaches the learner.

    Raises:
        TypeError: not a vector env, or spaces that SB3 cannot learn from.
        ValueError: a vector env that is known to return wrong results (`refuse_broken`), or whose autoreset mode is not
            stated.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], *, any_space: bool = False):
        if not isinstance(envs, VectorEnv):
            raise TypeError(
                f"expected a gymnasium.vector.VectorEnv, got {type(envs).__name__}; SB3 takes a single env as it is"
            )
        if not any_space:
            refuse_unlearnable(envs.single_observation_space, envs.single_action_space)
        refuse_broken(envs)
        self.mode = envs.metadata.get("autoreset_mode")
        if not isinstance(self.mode, AutoresetMode):
            raise ValueError(f"metadata['autoreset_mode'] of {envs} must be an AutoresetMode, got {self.mode!r}")
        if self.mode is not AutoresetMode.SAME_STEP:
            _refuse_statistics(envs)
        self.envs = envs
        self._actions: Any = None
        self._begun = False
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    # ------------------------------------------------------------------ reset
    def reset(self) -> Any:
        """Begin an episode in every row, with the seeds and options that `seed` and `set_options` left."""
        seeds = None if all(s is None for s in self._seeds) else list(self._seeds)
        if all(o == self._options[0] for o in self._options):
            batch, infos = self.envs.reset(seed=seeds, options=dict(self._options[0]) or None)  # type: ignore[arg-type]
            self.reset_infos = [row_info(infos, i) for i in range(self.num_envs)]
        else:
            batch = self._reset_by_options(seeds)
        self._begun = True
        self._reset_seeds()
        self._reset_options()
        return self._own(batch)

    def _reset_by_options(self, seeds: list[int | None] | None) -> Any:
        """Rows with the same options together: a vector env takes one dict for all of them."""
        batch: Any = None
        if not self._begun:  # a first reset must begin every row
            batch, _ = self.envs.reset(seed=seeds)  # type: ignore[arg-type]
        left = set(range(self.num_envs))
        while left:
            options = self._options[min(left)]
            rows = [i for i in sorted(left) if self._options[i] == options]
            left -= set(rows)
            batch, infos = self._masked_reset(rows, batch, seeds, options, kept=[])
            for i in rows:
                self.reset_infos[i] = row_info(infos, i)
        return batch

    def _masked_reset(
        self,
        rows: Sequence[int],
        batch: Any,
        seeds: list[int | None] | None = None,
        options: dict[str, Any] | None = None,
        *,
        kept: Sequence[int],
    ) -> tuple[Any, dict[str, Any]]:
        """Reset these rows; those of `kept` must still show what they showed in `batch`."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[list(rows)] = True
        after, infos = self.envs.reset(seed=seeds, options={**(options or {}), "reset_mask": mask})  # type: ignore[arg-type]
        if kept:
            old, new = self._rows(batch), self._rows(after)
            for i in kept:
                if not _equal(old[i], new[i]):
                    raise ValueError(
                        f"{self.envs} reset row {i} too when it was asked to reset rows {list(rows)}: it ignores "
                        "options['reset_mask']; use make_vec(..., vectorization_mode='sync')"
                    )
        return after, infos

    # ------------------------------------------------------------------- step
    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        batch, rewards, terminations, truncations, infos = self.envs.step(self._actions)
        dones = np.logical_or(terminations, truncations)
        observations = self._rows(batch)
        out: list[dict[str, Any]] = []
        for i in range(self.num_envs):
            last, info = ended_row(infos, observations[i], i)
            info["TimeLimit.truncated"] = bool(truncations[i]) and not bool(terminations[i])
            if dones[i]:
                info["terminal_observation"] = deepcopy(last)
                if self.mode is AutoresetMode.SAME_STEP:
                    self.reset_infos[i] = row_info(infos, i)
                    self.reset_infos[i].pop(_EPISODE, None)
            if dones[i] and _EPISODE in infos and infos[f"_{_EPISODE}"][i]:
                info[_EPISODE] = {k: v[i].item() for k, v in infos[_EPISODE].items()}
            out.append(info)
        if self.mode is not AutoresetMode.SAME_STEP and dones.any():
            rows, kept = np.flatnonzero(dones).tolist(), np.flatnonzero(~dones).tolist()
            batch, infos = self._masked_reset(rows, batch, kept=kept)
            for i in rows:
                self.reset_infos[i] = row_info(infos, i)
        return self._own(batch), np.array(rewards, np.float32), dones, out

    # ------------------------------------------------------------------ parts
    def _rows(self, batch: Any) -> list[Any]:
        return list(iterate(self.envs.observation_space, batch))

    def _own(self, batch: Any) -> Any:
        """The batch, copied where the vector env writes its next one over it (Sync and Async with copy=False)."""
        return batch if getattr(self.envs.unwrapped, "copy", True) else deepcopy(batch)

    def _indices(self, indices: Rows) -> list[int]:
        return list(self._get_indices(indices))

    # ---------------------------------------------------- what users look at
    def get_attr(self, attr_name: str, indices: Rows = None) -> list[Any]:
        """The attribute of these rows' envs (of their episodes, for a `ToolUseVectorEnv`)."""
        if attr_name == "render_mode":
            return [self.envs.render_mode for _ in self._indices(indices)]
        values = self._reach("get_attr")(attr_name)
        return [values[i] for i in self._indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Rows = None) -> None:
        """Set one value for all of these rows."""
        rows = set(self._indices(indices))
        whole = len(rows) == self.num_envs
        old = [None] * self.num_envs if whole else self.get_attr(attr_name)
        self._reach("set_attr")(attr_name, [value if i in rows else old[i] for i in range(self.num_envs)])

    def env_method(self, method_name: str, *method_args: Any, indices: Rows = None, **method_kwargs: Any) -> list[Any]:
        """Call the method of these rows' envs.

        Raises NotImplementedError where these are some rows and the vector env can only call it in all (Async).
        """
        rows = self._indices(indices)
        if len(set(rows)) == self.num_envs:
            values = self._reach("call")(method_name, *method_args, **method_kwargs)
            return [values[i] for i in rows]
        base = self.envs.unwrapped
        if isinstance(base, SyncVectorEnv):
            methods = [base.envs[i].get_wrapper_attr(method_name) for i in rows]
        elif isinstance(base, ToolUseVectorEnv):
            methods = [base.get_attr(method_name)[i] for i in rows]
        else:
            raise NotImplementedError(
                f"{type(base).__name__} calls {method_name!r} in all rows at once, not in rows {rows} alone"
            )
        return [method(*method_args, **method_kwargs) for method in methods]

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Rows = None) -> list[bool]:
        """Whether the vector env, or the env of each row where that can be seen (Sync), is wrapped with it."""
        from stable_baselines3.common.env_util import is_wrapped

        if any(isinstance(wrapper, wrapper_class) for wrapper in _wrappers(self.envs)):
            return [True for _ in self._indices(indices)]
        base = self.envs.unwrapped
        singles: Any = base.envs if isinstance(base, SyncVectorEnv) else [None] * self.num_envs
        return [singles[i] is not None and is_wrapped(singles[i], wrapper_class) for i in self._indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """What each row renders."""
        frames: Any = self.envs.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def close(self) -> None:
        """Close the vector env."""
        self.envs.close()

    def _reach(self, name: str) -> Any:
        """A method that the vector env behind all wrappers has and `VectorEnv` does not promise."""
        method = getattr(self.envs.unwrapped, name, None)
        if method is None:
            raise AttributeError(f"{type(self.envs.unwrapped).__name__} has no method {name}()")
        return method


def refuse_unlearnable(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    """TypeError where no algorithm of SB3 can learn from these spaces."""
    parts = (
        list(observation_space.spaces.values()) if isinstance(observation_space, spaces.Dict) else [observation_space]
    )
    actions_fit = isinstance(action_space, _ARRAYS)
    if actions_fit and all(isinstance(part, _ARRAYS) for part in parts):
        return
    raise TypeError(
        f"stable-baselines3 cannot learn from observations {observation_space} and actions {action_space}; make the "
        'env with view="menu" (docs/sb3.md), or pass any_space=True to run an agent of yours in evaluate_policy'
    )


def _wrappers(envs: Any) -> Iterator[VectorWrapper[Any, Any, Any, Any, Any]]:
    while isinstance(envs, VectorWrapper):
        yield envs
        envs = envs.env


def _refuse_statistics(envs: VectorEnv[Any, Any, Any]) -> None:
    """Gymnasium 1.4's Sync and Async take the mask out of the options before the wrapper has seen it."""
    if isinstance(envs.unwrapped, (SyncVectorEnv, AsyncVectorEnv)) and any(
        isinstance(wrapper, RecordEpisodeStatistics) for wrapper in _wrappers(envs)
    ):
        raise ValueError(
            "RecordEpisodeStatistics counts wrong where some rows are reset (gymnasium 1.4); leave it out and wrap the "
            "result in stable-baselines3's VecMonitor, or use autoreset_mode=AutoresetMode.SAME_STEP"
        )


def _equal(a: Any, b: Any) -> bool:
    """Whether two observations of one space are the same, NaN included."""
    if isinstance(a, dict):
        return all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, np.ndarray) and np.issubdtype(a.dtype, np.inexact):
        return np.array_equal(a, b, equal_nan=True)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)
