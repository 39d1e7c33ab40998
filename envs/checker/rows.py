"""A vector env against single envs: step by step the same, in the three autoreset modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from toolstep.envs.checker.bench import Bench, Broken
from toolstep.envs.checker.playing import RESET_LIMIT
from toolstep.envs.checker.report import Report
from toolstep.envs.tools.encode import shorten

STEPS = 8
MODES = (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
_FINAL = ("final_obs", "final_info")


def check_modes(
    make: Callable[[], Any],
    make_vec: Callable[[int, AutoresetMode], Any],
    scripts: Sequence[Sequence[Any]],
    bench: Bench,
    report: Report,
) -> None:
    """Rows that play `scripts` (one each, again and again) in a vector env, and the same in single envs."""
    for mode in MODES:
        where = f"autoreset {mode.value}"
        try:
            difference = bench.run(
                f"{len(scripts)} rows, {where}",
                lambda mode=mode: _compared(make, make_vec, mode, scripts),  # type: ignore[misc]
                RESET_LIMIT + STEPS * len(scripts) * 30.0,
            )
        except Broken as broken:
            code = "hangs" if broken.hangs else "vector-raises"
            report.add(code, "error", where, str(broken), "A vector env must play what a single one plays.")
            if broken.hangs:
                return
            continue
        if difference:
            report.add(
                "vector-differs",
                "error",
                where,
                f"Rows of a vector env are not what single envs are: {difference}.",
                "What an episode does may depend on its own seed and actions only: no state in the class, in a global "
                "variable, or in an object that the rows share.",
            )


def _compared(make: Callable[[], Any], make_vec: Any, mode: AutoresetMode, scripts: Sequence[Sequence[Any]]) -> str:
    envs = make_vec(len(scripts), mode)
    singles = [_Single(make(), mode, i, script) for i, script in enumerate(scripts)]
    try:
        observations, infos = envs.reset(seed=0)
        for row in singles:
            row.reset(seed=row.index)
            if problem := row.against(observations, None, infos, "reset"):
                return problem
        for t in range(STEPS):
            ended = np.array([row.ended for row in singles])
            if mode is AutoresetMode.DISABLED and ended.any():
                observations, infos = envs.reset(options={"reset_mask": ended})
                for row in singles:
                    if row.ended:
                        row.reset()
                        if problem := row.against(observations, None, infos, f"the partial reset before step {t}"):
                            return problem
            actions = [row.action() for row in singles]
            observations, rewards, terminated, truncated, infos = envs.step(tuple(actions))
            for row, action in zip(singles, actions, strict=True):
                row.step(action)
                if problem := row.against(observations, (rewards, terminated, truncated), infos, f"step {t}"):
                    return problem
    finally:
        envs.close()
        for row in singles:
            row.env.close()
    return ""


class _Single:
    """One env that is driven as its row in a vector env is."""

    def __init__(self, env: Any, mode: AutoresetMode, index: int, script: Sequence[Any]) -> None:
        self.env, self.mode, self.index, self.script = env, mode, index, script
        self.ended = False
        self._turn = 0
        self._obs: Any = None
        self._info: dict[str, Any] = {}
        self._outcome: tuple[float, bool, bool] = (0.0, False, False)
        self._final: tuple[Any, dict[str, Any]] | None = None

    def action(self) -> Any:
        action = self.script[self._turn % len(self.script)]
        self._turn += not self.ended
        return action

    def reset(self, seed: int | None = None) -> None:
        self._obs, self._info = self.env.reset(seed=seed)
        self._outcome, self._final, self.ended = (0.0, False, False), None, False

    def step(self, action: Any) -> None:
        if self.ended:  # NEXT_STEP: the action is ignored
            self.reset()
            return
        self._obs, reward, terminated, truncated, self._info = self.env.step(action)
        self._final = None
        self._outcome = (float(reward), bool(terminated), bool(truncated))
        self.ended = terminated or truncated
        if self.ended and self.mode is AutoresetMode.SAME_STEP:
            self._final = self._obs, self._info
            self._obs, self._info = self.env.reset()
            self.ended = False

    def against(self, observations: Any, outcome: Any, infos: Mapping[str, Any], when: str) -> str:
        """How the row differs from this; "" where it does not."""
        i = self.index
        pairs: list[tuple[str, Any, Any]] = [("observation", self._obs, observations[i])]
        if outcome is not None:
            names = ("reward", "terminated", "truncated")
            pairs += [(n, own, values[i].item()) for n, own, values in zip(names, self._outcome, outcome, strict=True)]
        pairs.append(("info", self._info, row_info(infos, i)))
        if self._final is not None:
            if "final_obs" not in infos:
                return f"row {i}, {when}: there is no final_obs"
            pairs.append(("final_obs", self._final[0], infos["final_obs"][i]))
            pairs.append(("final_info", self._final[1], row_info(infos["final_info"], i)))
        for name, own, row in pairs:
            if not same(own, row):
                return f"row {i}, {when}, {name}: {_shown(own, row)}"
        return ""


def row_info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The info of one row out of batched ones, as `VectorEnv._add_info` has put them together."""
    out: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if key in _FINAL or key.startswith("_") or mask is None or not mask[row]:
            continue
        value = row_info(values, row) if isinstance(values, Mapping) else values[row]
        out[key] = value.item() if isinstance(value, np.generic) else value
    return out


def same(a: Any, b: Any) -> bool:
    """Equal in every part; arrays by shape, dtype and values; 1 equals 1.0, as batching turns one into the other."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        # A dict without keys leaves no trace in batched infos.
        names = {k for k, v in a.items() if not _hollow(v)} | {k for k, v in b.items() if not _hollow(v)}
        return all(k in a and k in b and same(a[k], b[k]) for k in names)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.shape(a) == np.shape(b) and np.array_equal(np.asarray(a), np.asarray(b)))
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _hollow(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_hollow(v) for v in value.values())


def _shown(own: Any, row: Any) -> str:
    if isinstance(own, Mapping) and isinstance(row, Mapping):
        key = next((k for k in {**own, **row} if not same(own.get(k), row.get(k))), "")
        return f"{key!r} is {shorten(repr(row.get(key)), 100)}, alone {shorten(repr(own.get(key)), 100)}"
    return f"{shorten(repr(row), 100)}, alone {shorten(repr(own), 100)}"
