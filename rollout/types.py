"""What a finished episode is: one flat record of token ids, and the transitions that are views of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.envs.types import EpisodeStatus, Source

OK = EpisodeStatus.OK.value
AGENT_ERROR = "agent_error"  # the agent gave a turn up (its completion was "abort"): not a fair sample either

_SAMPLED = int(Source.SAMPLED)
# float32 rounding may lift a log-probability of 0 by a hair.
_LOGPROB_SLACK = 1e-3


class TrajectoryError(ValueError):
    """A trajectory whose fields contradict one another."""


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """One env step of one row.

    observation_ids: i32[To], what the agent read before this turn (the prompt, or the delta since its last turn).
    action_ids: i32[Ta], what it sampled, the stop token included; Ta == 0 is a legal, empty turn.
    logprobs: f32[Ta], of `action_ids`.  reward: that of the step.  terminated, truncated: True on the last step only.
    info: `turn`, `task_id`, `group_id`, `sample_index`, `seed` and `status`, and on the last step `stop_reason`.
    """

    observation_ids: NDArray[np.int32]
    action_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    reward: float
    terminated: bool
    truncated: bool
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """One finished episode of one row.  Arrays have T entries, in the order in which the model saw or sampled the ids.

    token_ids: i32[T]; source: u8[T], `toolstep.envs.types.Source` (who wrote the id).
    logprobs: f32[T], log-probability under the distribution that was sampled from; 0.0 where not sampled.
    model_logprobs: f32[T], the same under the plain model (temperature 1, whole vocabulary).
    turn: i32[T], index of the turn that an id belongs to: the observation before the sampled ids and these.
        What an env appends after the last turn has the index `turns`.
    weight_versions: i32[T], version of the weights that sampled the id; -1 where not sampled, and where an
        agent that tells no log-probabilities (a script) wrote it, see `has_logprobs`.
    prompt_length: ids of the opening prompt.  turn_rewards: f32[turns], the reward of each env step.
    terminated, truncated: as gymnasium's; at least one is True.  stop_reason: `StopReason`, or the env's own word.
    status: "ok", or what failed that was not the agent's doing ("env_error", "agent_error").
    messages: the conversation as OpenAI-style dicts.
    metrics: numbers of this episode that depend on nothing but it (no wall clock).
    tags: what the task set groups its results by.
    error: what failed, where `status` says that something did.
    history_policy: what the env does where the chat template would rewrite the past (see `EnvConfig.history`).
    segment_starts: where each context begins, [0] unless the env began it anew.
    actions: each turn as the agent wrote it (text) or chose it (the number in a menu), so that it can be played again;
        [] in a token view, where the sampled ids are the actions, and in other spaces.

    An episode in a view without token ids (text) has T == 0 and is told by its messages and rewards alone.  Every
    contradiction is refused on construction with a `TrajectoryError` that names the field.
    """

    token_ids: NDArray[np.int32]
    source: NDArray[np.uint8]
    logprobs: NDArray[np.float32]
    model_logprobs: NDArray[np.float32]
    turn: NDArray[np.int32]
    weight_versions: NDArray[np.int32]
    prompt_length: int
    turn_rewards: NDArray[np.float32]
    terminated: bool
    truncated: bool
    stop_reason: str
    status: str
    task_id: str
    group_id: int | None
    sample_index: int
    seed: int
    messages: list[dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    error: str = ""
    history_policy: str = "keep"
    segment_starts: list[int] = field(default_factory=lambda: [0])
    actions: list[str | int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, dtype in _ARRAYS.items():
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
                found = f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)
                raise TrajectoryError(
                    f"Trajectory.{name} must be a one-dimensional {np.dtype(dtype)} array, got {found}"
                )
        length = len(self.token_ids)
        for name in _ARRAYS:
            if name != "turn_rewards" and len(getattr(self, name)) != length:
                raise TrajectoryError(
                    f"Trajectory.{name} has {len(getattr(self, name))} entries for {length} token_ids"
                )
        for name in ("logprobs", "model_logprobs", "turn_rewards"):
            bad = np.flatnonzero(~np.isfinite(getattr(self, name)))
            if bad.size:
                raise TrajectoryError(
                    f"Trajectory.{name}[{bad[0]}] is {getattr(self, name)[bad[0]]} in task {self.task_id!r} "
                    f"(seed {self.seed}): it must be a finite number"
                )
        self._refuse("source", self.source > max(Source), "is no toolstep.envs.types.Source")
        mask = self.action_mask
        for name in ("logprobs", "model_logprobs"):
            values = getattr(self, name)
            self._refuse(name, (values != 0.0) & ~mask, "must be 0.0 where not sampled")
            self._refuse(name, values > _LOGPROB_SLACK, "must not be positive")
        self._refuse("weight_versions", (self.weight_versions != -1) & ~mask, "must be -1 where not sampled")
        self._refuse("token_ids", self.token_ids < 0, "must not be negative")
        self._check_turns(mask)
        self._check_segments()
        if not (self.terminated or self.truncated):
            raise TrajectoryError("Trajectory: one of terminated and truncated must be True, both are False")
        if self.group_id is not None and self.group_id < 0:
            raise TrajectoryError(f"Trajectory.group_id must be None or >= 0, got {self.group_id}")
        if len(self.actions) > self.turns:
            raise TrajectoryError(f"Trajectory.actions has {len(self.actions)} entries for {self.turns} turns")
        for key, number in self.metrics.items():
            if not np.isfinite(number):
                raise TrajectoryError(f"Trajectory.metrics[{key!r}] is {number}: it must be a finite number")

    def _refuse(self, name: str, bad: NDArray[np.bool_], rule: str) -> None:
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise TrajectoryError(f"Trajectory.{name}[{at}] {rule}, got {getattr(self, name)[at]}")

    def _check_turns(self, mask: NDArray[np.bool_]) -> None:
        if not 0 <= self.prompt_length <= len(self.token_ids):
            raise TrajectoryError(
                f"Trajectory.prompt_length must be in [0, {len(self.token_ids)}], got {self.prompt_length}"
            )
        self._refuse("source", mask & (np.arange(mask.size) < self.prompt_length), "is SAMPLED in the prompt")
        self._refuse("turn", self.turn < 0, "must not be negative")
        self._refuse("turn", np.diff(self.turn, prepend=0) < 0, "must not go down")
        self._refuse("turn", self.turn > self.turns, f"must be at most the number of turns, {self.turns}")
        late = mask & (self.turn == self.turns)
        self._refuse("turn", late, f"is of a sampled id, but there are {self.turns} turns")
        same_turn = np.diff(self.turn) == 0
        after_action = np.zeros_like(mask)
        after_action[1:] = same_turn & mask[:-1] & ~mask[1:]
        self._refuse("source", after_action, "is an observation after the sampled ids of its own turn")

    def _check_segments(self) -> None:
        starts = self.segment_starts
        if starts[:1] != [0] or any(b <= a for a, b in pairwise(starts)) or starts[-1] > len(self.token_ids):
            raise TrajectoryError(
                f"Trajectory.segment_starts must begin with 0 and go up to at most {len(self.token_ids)}, got {starts}"
            )

    @property
    def segments(self) -> list[slice]:
        """Where each context lies in the record: one slice, and one more for each time that the env began it anew.

        A segment is a training row of its own: its first ids are a whole prompt.
        """
        return [slice(a, b) for a, b in zip(self.segment_starts, [*self.segment_starts[1:], len(self.token_ids)])]

    @property
    def turns(self) -> int:
        """Env steps taken."""
        return len(self.turn_rewards)

    @property
    def action_mask(self) -> NDArray[np.bool_]:
        """bool[T]: True exactly where the agent sampled the id (from provenance, never by searching text)."""
        return np.equal(self.source, _SAMPLED)

    @property
    def sampled(self) -> int:
        """Ids that the agent sampled."""
        return int(np.count_nonzero(self.source == _SAMPLED))

    @property
    def observed(self) -> int:
        """Ids that the env appended after the prompt: results, user messages, the template around them."""
        return int(np.count_nonzero(self.source > _SAMPLED))

    @property
    def context(self) -> int:
        """All ids: prompt, sampled and observed."""
        return len(self.token_ids)

    @property
    def has_logprobs(self) -> bool:
        """Whether each sampled id comes with the version of the weights that sampled it, hence a log-prob."""
        return bool((self.weight_versions[self.action_mask] >= 0).all())

    @property
    def rewards(self) -> NDArray[np.float32]:
        """f32[T]: each turn's reward at its last sampled id.

        The reward of a turn without sampled ids has no id to stand at; `turn_rewards` alone carries it.
        """
        out = np.zeros(len(self.token_ids), dtype=np.float32)
        at = np.flatnonzero(self.action_mask)
        turns = self.turn[at]
        last = np.append(turns[1:] != turns[:-1], True)[: at.size]
        out[at[last]] = self.turn_rewards[turns[last]]
        return out

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of all turns, empty turns included."""
        return float(self.turn_rewards.sum(dtype=np.float64))

    def transitions(self) -> list[Transition]:
        """One `Transition` for each env step, in order; views of this record, no copies of it."""
        mask = self.action_mask
        out = []
        for k in range(self.turns):
            here = slice(*np.searchsorted(self.turn, [k, k + 1]))
            split = here.start + int(np.count_nonzero(~mask[here]))
            last = k == self.turns - 1
            info: dict[str, Any] = {
                "turn": k,
                "task_id": self.task_id,
                "group_id": self.group_id,
                "sample_index": self.sample_index,
                "seed": self.seed,
                "status": self.status,
            }
            if last:
                info["stop_reason"] = self.stop_reason
            out.append(
                Transition(
                    observation_ids=self.token_ids[here.start : split],
                    action_ids=self.token_ids[split : here.stop],
                    logprobs=self.logprobs[split : here.stop],
                    reward=float(self.turn_rewards[k]),
                    terminated=last and self.terminated,
                    truncated=last and self.truncated,
                    info=info,
                )
            )
        return out

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dict; `from_dict` gives back an equal trajectory, bit for bit."""
        out = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, dtype in _ARRAYS.items():
            # str() of a float32 is its shortest exact form; that of the float64 is twice as long.
            array = out[name]
            out[name] = [float(str(x)) for x in array] if dtype == np.float32 else array.tolist()
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trajectory:
        """The inverse of `to_dict`; raises `TrajectoryError` naming a field that is missing or unknown.

        `actions` may be missing: files of before have none.
        """
        names = {f.name for f in fields(cls)}
        missing, unknown = sorted(names - data.keys() - {"actions"}), sorted(data.keys() - names)
        if missing or unknown:
            raise TrajectoryError(f"Trajectory: missing fields {missing}, unknown fields {unknown}")
        values = dict(data)
        for name, dtype in _ARRAYS.items():
            try:
                values[name] = np.asarray(values[name], dtype=dtype)
            except (TypeError, ValueError, OverflowError) as error:
                raise TrajectoryError(f"Trajectory.{name} must be a list of numbers: {error}") from error
        return cls(**values)


_ARRAYS: dict[str, type[np.generic]] = {
    "token_ids": np.int32,
    "source": np.uint8,
    "logprobs": np.float32,
    "model_logprobs": np.float32,
    "turn": np.int32,
    "weight_versions": np.int32,
    "turn_rewards": np.float32,
}
