"""Trajectories of many lengths as one padded batch, and the shift that lines it up with the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from toolstep.rollout.types import OK, Trajectory

ADVANTAGE_EPSILON = 1e-4  # as in TRL's and the seed's GRPO


class BatchError(ValueError):
    """Trajectories that do not make a batch."""


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
class ShiftedBatch:
    """A batch as a learner reads it: entry [b, t] belongs to `logits[b, t]`, T - 1 entries a row.

    targets: i64[B,T-1], the id that `logits[b, t]` predicts.
    action_mask: bool[B,T-1].  old_logprobs, advantages: f32[B,T-1].
    """

    targets: NDArray[np.int64]
    action_mask: NDArray[np.bool_]
    old_logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class RolloutBatch:
    """B rows of token ids, right-padded to the longest of them, T.

    A row is a trajectory, or one of its segments where the env began a context anew; each segment carries its episode's
    reward and advantage.

    input_ids: i64[B,T], `pad_id` behind each row's end.
    attention_mask: bool[B,T], from the lengths alone (the pad id may well be a real token, such as eos).
    action_mask: bool[B,T], True at the sampled ids of usable rows.
    old_logprobs: f32[B,T], 0.0 off the mask.
    rewards: f32[B], each episode's total.
    advantages: f32[B,T], the row's group-relative advantage at its action ids, 0.0 elsewhere.
    group_ids: i64[B], -1 for a row without a group.
    lengths: i64[B], ids of each row.
    cut: bool[B], rows that lost their end to `max_length`.
    """

    input_ids: NDArray[np.int64]
    attention_mask: NDArray[np.bool_]
    action_mask: NDArray[np.bool_]
    old_logprobs: NDArray[np.float32]
    rewards: NDArray[np.float32]
    advantages: NDArray[np.float32]
    group_ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    cut: NDArray[np.bool_]
    counts: BatchCounts

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        pad_id: int = 0,
        max_length: int | None = None,
        overlong: Literal["drop", "cut"] = "drop",
    ) -> RolloutBatch:
        """Pad and align `trajectories`, and compute their GRPO advantages, (r - mean) / (std + 1e-4).

        Mean and (population) standard deviation are those of the group's usable members: status "ok" and not dropped.
        A row with another status stays in the batch with an all-zero mask.  Rows longer than `max_length` ids are
        dropped, or cut from the right and flagged (never from the left: that would take the context away from under
        scored tokens).

        Raises `BatchError` for no trajectories and for one without token ids, `GroupPromptError` for a group whose
        members start from different prompts.
        """
        if not trajectories:
            raise BatchError("RolloutBatch: no trajectories")
        for n, t in enumerate(trajectories):
            if t.context == 0 and t.turns > 0:
                raise BatchError(
                    f"RolloutBatch: trajectory {n} (task {t.task_id!r}) has no token ids; collect it "
                    f"with an agent that samples tokens, in an env with view='tokens'"
                )
        _check_prompts(trajectories)
        if overlong not in ("drop", "cut"):
            raise BatchError(f"RolloutBatch: overlong must be 'drop' or 'cut', got {overlong!r}")
        limit = max_length if max_length is not None else max(t.context for t in trajectories)
        if limit < 0:
            raise BatchError(f"RolloutBatch: max_length must be >= 0, got {limit}")
        # An episode is compared once, however many segments (rows) it has.
        kept = [t for t in trajectories if overlong == "cut" or max(map(_length, t.segments)) <= limit]
        episode_rewards = np.array([t.total_reward for t in kept], dtype=np.float32)
        # An episode without a group is compared with nobody: each gets a number of its own, below all real ones.
        groups = np.array([-1 - n if t.group_id is None else t.group_id for n, t in enumerate(kept)], int)
        usable_episodes = np.array([t.status == OK for t in kept], dtype=np.bool_)
        episode_advantages, counted = group_advantages(episode_rewards, groups, usable_episodes)

        rows = [(n, t, s) for n, t in enumerate(kept) for s in t.segments]
        episode = np.array([n for n, _, _ in rows], dtype=np.int64)
        usable = usable_episodes[episode]
        full_lengths = np.array([_length(s) for _, _, s in rows], dtype=np.int64)
        lengths = np.minimum(full_lengths, limit)
        shape = (len(rows), int(lengths.max(initial=0)))
        input_ids = np.full(shape, pad_id, dtype=np.int64)
        action_mask = np.zeros(shape, dtype=np.bool_)
        old_logprobs = np.zeros(shape, dtype=np.float32)
        for b, ((_, t, s), n) in enumerate(zip(rows, lengths, strict=True)):
            input_ids[b, :n] = t.token_ids[s][:n]
            if usable[b]:
                action_mask[b, :n] = t.action_mask[s][:n]
                old_logprobs[b, :n] = t.logprobs[s][:n]
        cut = full_lengths > limit
        return cls(
            input_ids=input_ids,
            attention_mask=np.arange(shape[1]) < lengths[:, None],
            action_mask=action_mask,
            old_logprobs=old_logprobs,
            rewards=episode_rewards[episode],
            advantages=np.where(action_mask, episode_advantages[episode][:, None], np.float32(0)),
            group_ids=np.array([-1 if t.group_id is None else t.group_id for _, t, _ in rows], dtype=np.int64),
            lengths=lengths,
            cut=cut,
            counts=BatchCounts(
                *counted,
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
            advantages=self.advantages[:, 1:],
        )

    def torch(self, device: Any = None) -> dict[str, Any]:
        """The arrays as torch tensors on `device`, by field name; copies."""
        import torch

        return {name: torch.tensor(value, device=device) for name, value in self.arrays().items()}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by field name (`counts` is not one)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "counts"}


def group_advantages(
    rewards: NDArray[np.float32], group_ids: NDArray[np.int64], usable: NDArray[np.bool_]
) -> tuple[NDArray[np.float32], tuple[int, int, int]]:
    """GRPO advantages f32[B] and (groups, single-member groups, zero-variance groups).

    Only usable rows count in a group's mean and standard deviation; all others get 0.
    """
    out = np.zeros(len(rewards), dtype=np.float64)
    groups = singles = flat = 0
    for group in np.unique(group_ids[usable]):
        rows = np.flatnonzero((group_ids == group) & usable)
        members = rewards[rows].astype(np.float64)
        groups += 1
        if rows.size == 1:
            singles += 1
        elif np.all(members == members[0]):
            flat += 1
        else:
            out[rows] = (members - members.mean()) / (members.std() + ADVANTAGE_EPSILON)
    return out.astype(np.float32), (groups, singles, flat)


def _length(segment: slice) -> int:
    return int(segment.stop - segment.start)


def _check_prompts(trajectories: Sequence[Trajectory]) -> None:
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
