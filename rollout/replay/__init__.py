"""Replay: play recorded episodes again, with the real tools, and find the first place where something is different.

    report = replay_file("run/episodes.jsonl")           # the env is made from the config.json beside it
    report = replay_episodes(envs, read_recorded(path))  # an env of your own
    assert report.equal, report.differences[0]

The agent's turns are taken from the file; everything else (prompts, results, masks, rewards, ends) is computed anew.
`docs/replay.md` says what that proves.  Names are imported where they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolstep.rollout.replay.compare import first_difference as first_difference
    from toolstep.rollout.replay.difference import Difference as Difference
    from toolstep.rollout.replay.recorded import RecordedEpisode as RecordedEpisode
    from toolstep.rollout.replay.recorded import read_recorded as read_recorded
    from toolstep.rollout.replay.run import ReplayError as ReplayError
    from toolstep.rollout.replay.run import ReplayReport as ReplayReport
    from toolstep.rollout.replay.run import replay_episodes as replay_episodes
    from toolstep.rollout.replay.run import replay_file as replay_file

_HOME = {
    "Difference": "difference",
    "RecordedEpisode": "recorded",
    "ReplayError": "run",
    "ReplayReport": "run",
    "first_difference": "compare",
    "read_recorded": "recorded",
    "replay_episodes": "run",
    "replay_file": "run",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
