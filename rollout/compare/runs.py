"""What is compared: two output folders of `toolstep eval`, and whether they can be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolstep.rollout.config import Difference, differences, flat, read_config
from toolstep.rollout.folder import CONFIG, EPISODES
from toolstep.rollout.storage import StorageError, read_episodes
from toolstep.rollout.types import OK, Trajectory

# What an agent is and how it samples, as far as config.json tells: two runs may differ in it, and mostly do.
OF_THE_AGENT = frozenset(
    {
        "agent",
        "device",
        "temperature",
        "top_k",
        "top_p",
        "max_new_tokens",
        "chat_template",
        "files.chat_template",
        "stop_token",
        "env_kwargs",
        "model",
        "template",
        "limits.max_context",
        "versions",
        "auth_env",
        "clock",  # the date that a template shows
        "record",
    }
)
_SHOWN = 3  # of the pairs that are wrong


class IncomparableRuns(ValueError):
    """Two runs that say nothing about each other; the message names what differs."""


@dataclass(frozen=True, slots=True)
class EvalRun:
    """An evaluation that was read back.  `episodes` by (task seed, sample index)."""

    path: Path
    config: Mapping[str, Any]
    episodes: Mapping[tuple[int, int], Trajectory]


def load_run(path: Path) -> EvalRun:
    """The evaluation in an output folder.  Raises `StorageError`."""
    if not (path / CONFIG).is_file():
        raise StorageError(f"{path} has no {CONFIG}: give a folder that `toolstep eval --out` wrote")
    config = read_config(path / CONFIG)
    if config.get("command") != "eval":
        raise StorageError(f"{path} holds a run of `toolstep {config.get('command')}`, not of `toolstep eval`")
    episodes = {(t.seed, t.sample_index): t for t in read_episodes(path / EPISODES)}
    return EvalRun(path, config, episodes)


def check_comparable(a: EvalRun, b: EvalRun, except_: Collection[str] = ()) -> list[Difference]:
    """Raise `IncomparableRuns` unless both played the same tasks in the same env; returns in what they may differ.

    except_: keys of config.json that are meant to differ; "episodes" allows runs of different length, and unfinished
    ones: the pairs that both have are compared then.
    """
    known = flat(a.config).keys() | flat(b.config).keys()
    for key in except_:
        if not any(_is_in(k, {key}) for k in known):
            raise ValueError(f"--except {key}: config.json has no such key; it has {', '.join(sorted(known))}")
    allowed = {*OF_THE_AGENT, *except_, *_same_files(a.config, b.config)}
    if "episodes" in except_:
        allowed |= {"task_seeds"}
    if "max_turns" in except_:
        allowed |= {"limits.max_turns"}
    found = differences(a.config, b.config)
    wrong = [str(d) for d in found if not _is_in(d.key, allowed)]
    if "episodes" not in except_:
        wrong += [_unfinished(run) for run in (a, b) if len(run.episodes) != run.config.get("episodes")]
    if not wrong:
        wrong = _other_tasks(a, b, openings="shots" not in except_)
    if wrong:
        raise IncomparableRuns(f"{a.path} and {b.path} are not comparable: {'; '.join(wrong)}")
    return [d for d in found if not _is_in(d.key, _same_files(a.config, b.config))]


def _is_in(key: str, keys: Collection[str]) -> bool:
    """Whether a key, or one that it is part of, is among `keys`."""
    return any(key == k or key.startswith(f"{k}.") for k in keys)


def _same_files(a: Mapping[str, Any], b: Mapping[str, Any]) -> set[str]:
    """Keys that name a file which is the same in both, wherever it is; an env of a file has the file's name."""
    out = set()
    for name in ("tasks", "openapi"):
        first, second = (c.get("files", {}).get(name) for c in (a, b))
        if first is not None and first == second:
            out |= {name, "env"} if name == "tasks" else {name}
    return out


def _unfinished(run: EvalRun) -> str:
    whole = run.config.get("episodes")
    return f"{run.path} has {len(run.episodes)} of {whole} episodes (go on with `toolstep eval --resume`)"


def _other_tasks(a: EvalRun, b: EvalRun, *, openings: bool) -> list[str]:
    """Pairs whose tasks are not the same, though their seeds are: the task set has changed in between."""
    pairs = sorted(a.episodes.keys() & b.episodes.keys())
    if not pairs:
        return ["they have no (task, sample) in common"]
    out = []
    for key in pairs:
        first, second = a.episodes[key], b.episodes[key]
        if not first.status == second.status == OK:
            continue  # an episode that never began has neither
        if first.task_id != second.task_id:
            out.append(f"the task of seed {key[0]} is {first.task_id!r} and {second.task_id!r}")
        elif openings and _opening(first) != _opening(second):
            out.append(f"task {first.task_id!r} (seed {key[0]}) begins with other messages")
    more = [f"and {len(out) - _SHOWN} more"] if len(out) > _SHOWN else []
    return [*out[:_SHOWN], *more]


def _opening(trajectory: Trajectory) -> list[tuple[Any, Any]]:
    """The messages before the first of the assistant's."""
    out = []
    for message in trajectory.messages:
        if message.get("role") == "assistant":
            break
        out.append((message.get("role"), message.get("content")))
    return out
