"""Trajectories of many lengths as one padded batch, with the advantages of their groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from toolstep.rollout.advantages import Estimator, group_advantages, turn_returns
from toolstep.rollout.packed import Arrays, PackedBatch, ShiftedBatch
from toolstep.rollout.types import OK, Trajectory

_TOKENS: dict[str, type[np.generic]] = {  # [B,T]
    "input_ids": np.int64,
    "attention_mask": np.bool_,
    "action_mask": np.bool_,
    "old_logprobs": np.float32,
    "model_logprobs": np.float32,
    "weight_versions": np.int32,
    "advantages": np.float32,
}
_ROWS: dict[str, type[np.generic]] = {  # [B]
    "rewards": np.float32,
    "group_ids": np.int64,
    "episodes": np.int64,
    "lengths": np.int64,
    "cut": np.bool_,
}
_PACKED = ("input_ids", "action_mask", "old_logprobs", "model_logprobs", "advantages")


class BatchError(ValueError):
    """Trajectories or arrays that do not make a batch, or a batch that nothing can be learned from."""


class GroupPromptError(BatchError):
    """Members of one group that do not start from identical prompt ids (invariant I16)."""


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """What was left out of a batch or of its learning signal, and why.

    groups: groups with at least one usable member.  single_member_groups, zero_variance_groups: groups whose advantages
    are 0 because there is nothing to compare.  unusable_rows: rows with a status other than "ok" (mask 0, outside the
    baseline).  dropped_rows, cut_rows: rows that were longer than `max_length`.
    rows_without_logprobs: rows that a script wrote: good to imitate, but their `old_logprobs` are fillers (0.0).
    """

    groups: int = 0
    single_member_groups: int = 0
    zero_variance_groups: int = 0
    unusable_rows: int = 0
    dropped_rows: int = 0
    cut_rows: int = 0
    rows_without_logprobs: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch(Arrays):
    """B rows of token ids, right-padded to the longest of them, T.

    A row is a trajectory, or one of its segments where the env began a context anew; each segment carries its episode's
    reward and advantage.

    input_ids: i64[B,T], `pad_id` behind each row's end.
    attention_mask: bool[B,T], from the lengths alone (the pad id may well be a real token, such as eos).
    action_mask: bool[B,T], True at the sampled ids of usable rows.
    old_logprobs: f32[B,T], of the distribution that was sampled from; 0.0 off the mask.
    model_logprobs: f32[B,T], the same under the plain model (temperature 1, whole vocabulary); 0.0 off the mask.
    weight_versions: i32[B,T], the weights that sampled the id; -1 off the mask and where no log-probs are known.
    rewards: f32[B], each episode's total.
    advantages: f32[B,T], the group-relative advantage of the row, or of the turn, at its action ids; 0.0 elsewhere.
    group_ids: i64[B], -1 for a row without a group.
    episodes: i64[B], which of the given trajectories the row is of (one has a row for each of its segments).
    lengths: i64[B], ids of each row.
    cut: bool[B], rows that lost their end to `max_length`.

    Arrays that contradict one another are refused with a `BatchError` that names the field and the row.
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.bool_]
    action_mask: NDArray[np.bool_]
    old_logprobs: NDArray[np.float32]
    model_logprobs: NDArray[np.float32]
    weight_versions: NDArray[np.int32]
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    group_ids: NDArray[np.int64]
    episodes: NDArray[np.int64]
    lengths: NDArray[np.int64]
    cut: NDArray[np.bool_]
    counts: BatchCounts

    def __post_init__(self) -> None:
        if np.ndim(self.input_ids) != 2:
            raise BatchError(f"RolloutBatch.input_ids must be [B,T], got {list(np.shape(self.input_ids))}")
        rows, width = np.shape(self.input_ids)[:1], np.shape(self.input_ids)[1:]
        for names, shape in ((_TOKENS, rows + width), (_ROWS, rows)):
            for name, dtype in names.items():
                value = np.asarray(getattr(self, name))
                if value.dtype != dtype or value.shape != shape:
                    expected, found = f"{np.dtype(dtype)}{list(shape)}", f"{value.dtype}{list(value.shape)}"
                    raise BatchError(f"RolloutBatch.{name} must be {expected}, as input_ids has it, got {found}")
        within = np.arange(*width) < self.lengths[:, None]
        self._refuse("lengths", (self.lengths < 0) | (self.lengths > width[0]), f"must be in [0, {width[0]}]")
        self._refuse("attention_mask", self.attention_mask != within, "must be True up to the row's length")
        self._refuse("action_mask", self.action_mask & ~within, "must be False behind the row's length")
        for name in ("rewards", "old_logprobs", "model_logprobs", "advantages"):
            self._refuse(name, ~np.isfinite(getattr(self, name)), "must be a finite number")
        for name in ("old_logprobs", "model_logprobs", "advantages"):
            self._refuse(name, (getattr(self, name) != 0) & ~self.action_mask, "must be 0.0 off the action mask")

    def _refuse(self, name: str, bad: NDArray[np.bool_], rule: str) -> None:
        if bad.any():
            at = np.unravel_index(int(np.argmax(bad)), bad.shape)
            where = ", id ".join(map(str, at))
            raise BatchError(f"RolloutBatch.{name} of row {where} {rule}, got {getattr(self, name)[at]}")

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        rewards: Sequence[ArrayLike] | NDArray[Any] | None = None,
        estimator: Estimator = "grpo",
        credit: Literal["episode", "turn"] = "episode",
        pad_id: int = 0,
        max_length: int | None = None,
        overlong: Literal["drop", "cut"] = "drop",
    ) -> RolloutBatch:
        """Pad and align `trajectories`, and compute their advantages by `group_advantages(..., estimator)`.

        Those are relative to the group's usable members: status "ok" and not dropped.  A row with another status stays
        in the batch with an all-zero mask.  Rows longer than `max_length` ids are dropped, or cut from the right and
        flagged (never from the left: that would take the context away from under scored tokens).

        rewards: in place of the trajectories' own: one number for each, or, for credit "turn", one for each turn.
        credit: "episode" gives each sampled id the advantage of the episode's total reward; "turn" gives each the
            advantage of what the episode earns from the id's own turn on (`turn_returns`).

        Raises `BatchError` for no trajectories, for one without token ids and for rewards of the wrong shape or not
        finite; `GroupPromptError` for a group whose members start from different prompts.
        """
        if not trajectories:
            raise BatchError("RolloutBatch: no trajectories")
        for n, t in enumerate(trajectories):
            if t.context == 0 and t.turns > 0:
                raise BatchError(
                    f"RolloutBatch: trajectory {n} (task {t.task_id!r}) has no token ids; collect it "
                    f"with an agent that samples tokens, in an env with view='tokens'"
                )
        check_prompts(trajectories)
        for name, value, known in (("overlong", overlong, ("drop", "cut")), ("credit", credit, ("episode", "turn"))):
            if value not in known:
                raise BatchError(f"RolloutBatch: {name} must be '{known[0]}' or '{known[1]}', got {value!r}")
        limit = max_length if max_length is not None else max(t.context for t in trajectories)
        if limit < 0:
            raise BatchError(f"RolloutBatch: max_length must be >= 0, got {limit}")
        earned = _earned(trajectories, rewards, credit)
        # An episode is compared once, however many segments (rows) it has.
        fits = [overlong == "cut" or max(map(_length, t.segments)) <= limit for t in trajectories]
        kept = [t for t, fit in zip(trajectories, fits, strict=True) if fit]
        returns = turn_returns([e for e, fit in zip(earned, fits, strict=True) if fit])
        # An episode without a group is compared with nobody: each gets a number of its own, below all real ones.
        groups = np.array([-1 - n if t.group_id is None else t.group_id for n, t in enumerate(kept)], int)
        usable_episodes = np.array([t.status == OK for t in kept], dtype=np.bool_)
        compared = group_advantages(returns, groups, usable_episodes, estimator)

        rows = [(n, t, s) for n, t in enumerate(kept) for s in t.segments]
        episode = np.array([n for n, _, _ in rows], dtype=np.int64)
        usable = usable_episodes[episode]
        full_lengths = np.array([_length(s) for _, _, s in rows], dtype=np.int64)
        lengths = np.minimum(full_lengths, limit)
        shape = (len(rows), int(lengths.max(initial=0)))
        filler = {"input_ids": pad_id, "weight_versions": -1}
        tokens = {name: np.full(shape, filler.get(name, 0), dtype) for name, dtype in _TOKENS.items()}
        for b, ((e, t, s), n) in enumerate(zip(rows, lengths, strict=True)):
            tokens["input_ids"][b, :n] = t.token_ids[s][:n]
            tokens["attention_mask"][b, :n] = True
            if usable[b]:
                mask = tokens["action_mask"][b, :n] = t.action_mask[s][:n]
                tokens["old_logprobs"][b, :n] = t.logprobs[s][:n]
                tokens["model_logprobs"][b, :n] = t.model_logprobs[s][:n]
                tokens["weight_versions"][b, :n] = t.weight_versions[s][:n]
                turn = t.turn[s][:n][mask] if credit == "turn" else 0
                tokens["advantages"][b, :n][mask] = compared.values[e][turn]
        cut = full_lengths > limit
        return cls(
            **tokens,
            rewards=returns[episode, 0].astype(np.float32) if returns.size else np.zeros(len(rows), np.float32),
            group_ids=np.array([-1 if t.group_id is None else t.group_id for _, t, _ in rows], dtype=np.int64),
            episodes=np.flatnonzero(fits)[episode],
            lengths=lengths,
            cut=cut,
            counts=BatchCounts(
                compared.groups,
                compared.single_member,
                compared.zero_variance,
                unusable_rows=int(np.count_nonzero(~usable)),
                dropped_rows=sum(len(t.segments) for t in trajectories) - len(rows),
                cut_rows=int(np.count_nonzero(cut)),
                rows_without_logprobs=sum(not t.has_logprobs for _, t, _ in rows),
            ),
        )

    def shifted(self) -> ShiftedBatch:
        """Targets, mask, log-probs and advantages lined up with `logits[:, :-1]`."""
        return ShiftedBatch(
            targets=self.input_ids[:, 1:],
            action_mask=self.action_mask[:, 1:],
            old_logprobs=self.old_logprobs[:, 1:],
            model_logprobs=self.model_logprobs[:, 1:],
            advantages=self.advantages[:, 1:],
        )

    def packed(self) -> PackedBatch:
        """The rows one behind the other, without padding."""
        ends = np.cumsum(self.lengths, dtype=np.int32)
        return PackedBatch(
            position_ids=np.nonzero(self.attention_mask)[1],
            cu_seqlens=np.append(np.int32(0), ends),
            max_seqlen=int(self.lengths.max(initial=0)),
            **{name: getattr(self, name)[self.attention_mask] for name in _PACKED},
        )

    def select(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> RolloutBatch:
        """The rows with these numbers as a batch of their own, padded to its longest row; `counts` stay the whole's."""
        index = np.asarray(rows, dtype=np.int64)
        width = int(self.lengths[index].max(initial=0))
        return replace(
            self,
            **{name: getattr(self, name)[index, :width] for name in _TOKENS},
            **{name: getattr(self, name)[index] for name in _ROWS},
        )

    def require_actions(self) -> None:
        """Raise `BatchError` if no row has an id to learn from."""
        if not self.action_mask[:, 1:].any():
            raise BatchError(
                f"RolloutBatch.action_mask: all {len(self.lengths)} rows are masked, there is nothing to learn from "
                f"({self.counts.unusable_rows} rows failed, {self.counts.dropped_rows} were dropped as too long)"
            )

    def require_logprobs(self) -> None:
        """Raise `BatchError` if the old log-prob of a sampled id is not known: it can be imitated, not reinforced."""
        rule = "is unknown, so it has no old log-prob; collect with an agent that samples, not with a script"
        self._refuse("weight_versions", self.action_mask & (self.weight_versions < 0), rule)


def _length(segment: slice) -> int:
    return int(segment.stop - segment.start)


def _earned(
    trajectories: Sequence[Trajectory], rewards: Sequence[ArrayLike] | NDArray[Any] | None, credit: str
) -> list[NDArray[np.float64]]:
    """What each episode earned: [1], its total, or [turns]."""
    if rewards is None and credit == "turn":
        return [t.turn_rewards.astype(np.float64) for t in trajectories]
    if rewards is None:
        return [np.array([t.total_reward]) for t in trajectories]
    if len(rewards) != len(trajectories):
        raise BatchError(
            f"RolloutBatch: rewards must have {len(trajectories)} entries, one a trajectory, got {len(rewards)}"
        )
    out = []
    for n, (t, given) in enumerate(zip(trajectories, rewards, strict=True)):
        where = f"RolloutBatch: rewards[{n}] (task {t.task_id!r}, seed {t.seed})"
        try:
            value = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise BatchError(f"{where} must be numbers, got {given!r}") from error
        shape = (t.turns,) if credit == "turn" else ()
        if value.shape != shape:
            expected = f"one for each of its {t.turns} turns" if credit == "turn" else "one number"
            raise BatchError(f"{where} must be {expected}, shape {list(shape)}, got shape {list(value.shape)}")
        if not np.isfinite(value).all():
            raise BatchError(f"{where} must be finite, got {given!r}")
        out.append(value.reshape(-1))
    return out


def check_prompts(trajectories: Sequence[Trajectory]) -> None:
    first: dict[int, Trajectory] = {}
    for t in trajectories:
        if t.group_id is None or t.status != OK:  # a row that failed may not even have got a prompt
            continue
        other = first.setdefault(t.group_id, t)
        a, b = other.token_ids[: other.prompt_length], t.token_ids[: t.prompt_length]
        if not np.array_equal(a, b):
            n = min(a.size, b.size)
            differing = np.flatnonzero(a[:n] != b[:n])
            at = int(differing[0]) if differing.size else n
            raise GroupPromptError(
                f"group {t.group_id}: its members must start from identical prompt ids, but sample "
                f"{other.sample_index} (task {other.task_id!r}, seed {other.seed}, {a.size} ids) and sample "
                f"{t.sample_index} (task {t.task_id!r}, seed {t.seed}, {b.size} ids) differ from id {at} on; "
                f"give each group one seed"
            )
