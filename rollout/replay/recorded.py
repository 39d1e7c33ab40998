"""Recorded episodes as they stand in a file: what contradicts itself there is for the comparison to find."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.rollout.specs import EpisodeSpec
from toolstep.rollout.storage import StorageError, whole_lines
from toolstep.rollout.types import Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class RecordedEpisode:
    """One episode of a file.

    line: its number there, from 1.  data: the JSON object, what `Trajectory.to_dict` gives.  spec: which task and
    sample it says that it is.  token_ids, source, turn: i64, as in `Trajectory`, but unchecked.
    """

    line: int
    data: Mapping[str, Any]
    spec: EpisodeSpec
    token_ids: NDArray[np.int64]
    source: NDArray[np.int64]
    turn: NDArray[np.int64]

    @property
    def turns(self) -> int:
        """Env steps taken."""
        return len(self.data["turn_rewards"])

    @property
    def actions(self) -> list[str | int]:
        """Turns of a text view, or of a menu."""
        found: list[str | int] = self.data.get("actions", [])
        return found

    @classmethod
    def from_dict(cls, data: Any, line: int) -> RecordedEpisode:
        """ValueError, TypeError or KeyError for what can't be played at all."""
        if not isinstance(data, Mapping):
            raise TypeError(f"expected an object, found {type(data).__name__}")
        for name, kind in _KINDS.items():
            if name not in data and name != "actions":
                raise ValueError(f"the field {name!r} is missing")
            if not isinstance(data.get(name, []), kind):
                raise TypeError(f"{name!r} must be a {kind.__name__}, found {type(data[name]).__name__}")
        return cls(
            line=line,
            data=data,
            spec=EpisodeSpec(data["seed"], data["sample_index"], data.get("group_id")),
            token_ids=_whole(data, "token_ids"),
            source=_whole(data, "source"),
            turn=_whole(data, "turn"),
        )


_KINDS: Mapping[str, type] = {
    "token_ids": list,
    "source": list,
    "turn": list,
    "turn_rewards": list,
    "messages": list,
    "actions": list,
    "seed": int,
    "sample_index": int,
    "task_id": str,
    "status": str,
    "stop_reason": str,
}


def read_recorded(path: Path | str) -> list[RecordedEpisode]:
    """The episodes of a .jsonl file, in its order; a torn last line is left out.

    Raises `StorageError` for a line that is no episode, with its number.
    """
    out = []
    for number, line in whole_lines(Path(path)):
        try:
            out.append(RecordedEpisode.from_dict(json.loads(line), number))
        except (ValueError, TypeError, RecursionError) as error:
            raise StorageError(f"{path}, line {number}: no episode: {error}") from error
    return out


def as_recorded(episodes: Iterable[Trajectory | RecordedEpisode]) -> list[RecordedEpisode]:
    """Trajectories in memory, numbered from 1, in the form of those of a file."""
    return [
        e if isinstance(e, RecordedEpisode) else RecordedEpisode.from_dict(json.loads(json.dumps(e.to_dict())), n)
        for n, e in enumerate(episodes, start=1)
    ]


def _whole(data: Mapping[str, Any], name: str) -> NDArray[np.int64]:
    values = data[name]
    if not all(type(v) is int and -(2**63) <= v < 2**63 for v in values):
        raise TypeError(f"{name!r} must be a list of whole numbers")
    return np.array(values, dtype=np.int64)
