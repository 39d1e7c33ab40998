"""The first difference between an episode as recorded and as played again, in the order in which it was read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.envs.types import EpisodeStatus
from toolstep.rollout.replay.difference import GOES_ON, NOTHING, Difference, around
from toolstep.rollout.replay.recorded import RecordedEpisode
from toolstep.rollout.types import AGENT_ERROR, Trajectory, TrajectoryError

Decode = Callable[[Sequence[int]], str]
_ENV_ERROR = EpisodeStatus.ENV_ERROR.value
_ARRAYS = ("token_ids", "source", "turn")
_IDS_AROUND = 8
_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Found:
    """A difference, and when it would have been noticed: in which turn, and at which stage of it."""

    turn: int
    stage: int
    field: str
    expected: Any
    found: Any
    position: int | None = None
    expected_text: str = ""
    found_text: str = ""


def first_difference(recorded: RecordedEpisode, again: Trajectory, decode: Decode | None = None) -> Difference | None:
    """Where `again`, the same episode played again, is first something else than `recorded` says; None: nowhere.

    Everything that env and recorder compute is compared: ids, sources (hence masks), turns, messages, rewards, how it
    ended, metrics.  The agent's own claims (log-probs, weight versions) cannot be computed without it; whether they are
    a possible part of such a record is checked.  decode: text of ids, for the text around a difference.
    """
    new: dict[str, Any] = json.loads(json.dumps(again.to_dict()))
    looks = (_status, _task, _ids, _messages, _rewards, _ends, _rest)
    found = [f for look in looks for f in look(recorded, new, decode)]
    if not found:
        found = list(_impossible(recorded))
    if not found:
        return None
    first = min(found, key=lambda f: (f.turn, f.stage))
    spec = recorded.spec
    return Difference(
        recorded.line,
        recorded.data["task_id"],
        spec.seed,
        spec.sample_index,
        first.turn,
        first.field,
        first.expected,
        first.found,
        first.position,
        first.expected_text,
        first.found_text,
    )


def _status(old: RecordedEpisode, new: Mapping[str, Any], decode: Decode | None) -> Iterator[_Found]:
    """A failure of the env comes before what is missing because of it."""
    was, now = old.data["status"], new["status"]
    if was == now or (now == AGENT_ERROR and was != _ENV_ERROR):
        return  # the script gives up where something else is different
    turns = len(new["turn_rewards"]) if now == _ENV_ERROR else old.turns
    yield _Found(max(0, turns - 1), 0, "status", _with_error(old.data), _with_error(new))


def _with_error(data: Mapping[str, Any]) -> str:
    return f"{data['status']}: {data['error']}" if data.get("error") else str(data["status"])


def _task(old: RecordedEpisode, new: Mapping[str, Any], decode: Decode | None) -> Iterator[_Found]:
    for name in ("task_id", "tags"):
        if old.data.get(name) != new[name] and new["status"] != _ENV_ERROR:
            yield _Found(0, 1, name, old.data.get(name), new[name])


def _ids(old: RecordedEpisode, new: Mapping[str, Any], decode: Decode | None) -> Iterator[_Found]:
    before = {name: np.asarray(getattr(old, name)) for name in _ARRAYS}
    after = {name: np.array(new[name], np.int64) for name in _ARRAYS}
    places = {name: _first(before[name], after[name]) for name in _ARRAYS}
    found = [(place, name) for name, place in places.items() if place is not None]
    if not found:
        return
    at, name = min(found, key=lambda item: item[0])
    turns = after["turn"] if at < len(after["turn"]) else before["turn"]
    turn = int(turns[at]) if at < len(turns) else old.turns
    texts = [_decoded(decode, side["token_ids"], at) for side in (before, after)]
    yield _Found(turn, 2, name, _item(before[name], at), _item(after[name], at), at, *texts)


def _first(a: NDArray[np.int64], b: NDArray[np.int64]) -> int | None:
    shared = min(len(a), len(b))
    other = np.flatnonzero(a[:shared] != b[:shared])
    if len(other):
        return int(other[0])
    return None if len(a) == len(b) else shared


def _item(values: NDArray[np.int64], at: int) -> Any:
    return int(values[at]) if at < len(values) else NOTHING


def _decoded(decode: Decode | None, ids: NDArray[np.int64], at: int) -> str:
    if decode is None:
        return ""
    parts = [decode(part.tolist()) for part in (ids[max(0, at - _IDS_AROUND) : at], ids[at : at + 1])]
    tail = decode(ids[at + 1 : at + 1 + _IDS_AROUND].tolist())
    return f"{parts[0]}«{parts[1]}»{tail}"


def _messages(old: RecordedEpisode, new: Mapping[str, Any], decode: Decode | None) -> Iterator[_Found]:
    was, now = old.data["messages"], new["messages"]
    at = next((i for i, (a, b) in enumerate(zip_longest(was, now, fillvalue=_MISSING)) if a != b), None)
    if at is None:
        return
    longer = (now, new["turn_rewards"], new["status"])
    if at >= len(now):
        longer = (was, old.data["turn_rewards"], old.data["status"])
    turn = message_turns(longer[0], len(longer[1]), failed=longer[2] in (_ENV_ERROR, AGENT_ERROR))[at]
    sides = [side[at] if at < len(side) else _MISSING for side in (was, now)]
    yield _value(turn, 3, f"messages[{at}]", *sides)


def message_turns(messages: Sequence[Any], turns: int, *, failed: bool) -> list[int]:
    """The turn that each message belongs to; those of the prompt, worked examples included, belong to turn 0.

    Each turn adds one assistant message, but the last one of an episode that `failed` adds none.
    """
    said = [i for i, m in enumerate(messages) if isinstance(m, Mapping) and m.get("role") == "assistant"]
    own = set(said[len(said) - max(0, turns - failed) :]) if turns - failed > 0 else set()
    out, turn = [], 0
    for i in range(len(messages)):
        out.append(turn)
        turn += i in own
    return out


def _value(turn: int, stage: int, field: str, was: Any, now: Any) -> _Found:
    """The innermost place at which two JSON values differ."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*was, *now]):
            if was.get(key, _MISSING) != now.get(key, _MISSING):
                return _value(turn, stage, f"{field}.{key}", was.get(key, _MISSING), now.get(key, _MISSING))
    if isinstance(was, list) and isinstance(now, list):
        for i, (a, b) in enumerate(zip_longest(was, now, fillvalue=_MISSING)):
            if a != b:
                return _value(turn, stage, f"{field}[{i}]", a, b)
    if isinstance(was, str) and isinstance(now, str):
        at = next((i for i, (a, b) in enumerate(zip(was, now)) if a != b), min(len(was), len(now)))
        texts = around(was, at, at + 1), around(now, at, at + 1)
        return _Found(turn, stage, field, was[at : at + 1] or NOTHING, now[at : at + 1] or NOTHING, at, *texts)
    return _Found(turn, stage, field, NOTHING if was is _MISSING else was, NOTHING if now is _MISSING else now)


def _rewards(old: RecordedEpisode, new: Mapping[str, Any], decode: Decode | None) -> Iterator[_Found]:
    pairs = zip(old.data["turn_rewards"], new["turn_rewards"])  # how many there are is told by the end
    for turn, (was, now) in enumerate(pairs):
        if was != now:
            yield _Found(turn, 4, "turn_rewards", was, now, turn)
            return


def _ends(old: RecordedEpisode, new: Mapping[str, Any], decode: Decode | None) -> Iterator[_Found]:
    was, now = old.turns, len(new["turn_rewards"])
    last = max(0, min(was, now) - 1)
    if was != now:
        ends = (str(old.data["stop_reason"]), str(new["stop_reason"]))
        yield _Found(last, 5, "stop_reason", *((ends[0], GOES_ON) if was < now else (GOES_ON, ends[1])))
        return
    for name in ("stop_reason", "terminated", "truncated"):
        if old.data.get(name) != new[name]:
            yield _Found(last, 5, name, old.data.get(name), new[name])


def _rest(old: RecordedEpisode, new: Mapping[str, Any], decode: Decode | None) -> Iterator[_Found]:
    last = max(0, min(old.turns, len(new["turn_rewards"])) - 1)
    for name in ("prompt_length", "segment_starts", "metrics", "history_policy", "error", "status"):
        was = old.data.get(name, _MISSING)
        if was != new[name]:
            yield _value(last, 6, name, was, new[name])


def _impossible(old: RecordedEpisode) -> Iterator[_Found]:
    """What nothing is compared with has to be possible at least: finite log-probs, none where nothing was sampled."""
    try:
        Trajectory.from_dict(old.data)
    except (TrajectoryError, TypeError, ValueError, AttributeError) as error:
        yield _Found(0, 7, "trajectory", "one that does not contradict itself", str(error))
