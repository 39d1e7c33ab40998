"""Whole episodes of an env, played by its task set's oracle or by a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolstep.envs.checker.bench import Bench, Broken
from toolstep.envs.checker.report import Report
from toolstep.envs.tasks.base import NoOracle
from toolstep.envs.tools.encode import shorten

RESET_LIMIT = 120.0  # seconds: tools may have to start
MOST_TURNS = 64


@dataclass(slots=True)
class Played:
    """One episode: what each step returned, and the actions.  first: observation and info of the reset."""

    seed: int
    first: tuple[Any, dict[str, Any]]
    actions: list[Any] = field(default_factory=list)
    steps: list[tuple[Any, float, bool, bool, dict[str, Any]]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.steps) and (self.steps[-1][2] or self.steps[-1][3])

    @property
    def info(self) -> dict[str, Any]:
        return self.steps[-1][4] if self.steps else self.first[1]


def step_limit(env: Any) -> float:
    """Seconds that a step may take: its tools have a deadline each, and workers may have to start."""
    config = getattr(env.unwrapped, "config", None)
    limit = config.limits.tool_timeout * config.limits.max_calls if config is not None else 60.0
    return float(limit) + 60.0


def play(env: Any, seed: int, actions: Sequence[Any], bench: Bench) -> Played:
    """The episode of `seed`, with these actions as far as it goes.  Raises Broken."""
    played = Played(seed, bench.run(f"reset(seed={seed})", lambda: env.reset(seed=seed), RESET_LIMIT))
    for action in actions:
        if played.ended:
            break
        take(env, played, action, bench)
    return played


def take(env: Any, played: Played, action: Any, bench: Bench) -> None:
    """One step.  Raises Broken."""
    played.actions.append(action)
    title = f"step({shorten(repr(action), 80)})"
    played.steps.append(bench.run(title, lambda: env.step(action), step_limit(env)))


def check_oracle(env: Any, seeds: Sequence[int], bench: Bench, report: Report, where: str) -> list[Played]:
    """Episodes that the oracle plays: each must end with a score of 1.  [] where there is no oracle."""
    out: list[Played] = []
    for seed in seeds:
        try:
            played = _oracle(env, seed, bench)
        except Broken as broken:
            if isinstance(broken.error, NoOracle):
                fix = "With oracle(record) -> Turn the tasks are known to be solvable, and `--agent oracle` plays them."
                report.add(
                    "no-oracle", "note", where, f"Whether its tasks can be solved is not known: {broken.error}", fix
                )
                return []
            code = "hangs" if broken.hangs else "oracle-raises"
            report.add(
                code, "error", where, str(broken), "Mend the code that the message names.", f"reset(seed={seed})"
            )
            return out
        out.append(played)
        info = played.info
        if info["status"] != "ok":
            report.add(
                "env-error",
                "error",
                where,
                f"The episode of seed {seed} ended because a part of the env failed: {info['error']}",
                "Mend the code that the message names; ToolUseEnv(..., strict=True) raises it where it happens.",
                f"reset(seed={seed})",
            )
        elif not played.ended or info["score"] < 1.0:
            how = (
                f"ended with a score of {info['score']:g}" if played.ended else f"is not over after {MOST_TURNS} turns"
            )
            said = env.unwrapped.record.answer
            report.add(
                "oracle-fails",
                "error",
                where,
                f"The oracle's episode of seed {seed} {how} ({info['stop_reason'] or 'running'}); "
                f"it answered {shorten(said, 120)!r}; expected: {shorten(repr(env.unwrapped.task.answer), 120)}.",
                "Mend oracle(), score() or the task: what the oracle does must be right.",
                f"reset(seed={seed})",
            )
    return out


def _oracle(env: Any, seed: int, bench: Bench) -> Played:
    played = play(env, seed, (), bench)
    while not played.ended and len(played.steps) < MOST_TURNS:
        action = bench.run("the oracle's turn", env.unwrapped.oracle_action, step_limit(env))
        if action is None:  # it could not even begin
            take(env, played, env.unwrapped.config.view.write(""), bench)
        else:
            take(env, played, action, bench)
    return played
