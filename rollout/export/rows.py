"""Row: one context of an episode as trainers take it, a prompt and what followed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from toolstep.rollout.batch import BatchError, check_prompts
from toolstep.rollout.types import OK, Trajectory


class ExportError(BatchError):
    """Trajectories that a consumer cannot be given; the message says which one, and what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A segment of `trajectory` (see `Trajectory.segments`).

    prompt_ids: i32[P], what the agent read before its first turn of this segment.
    response_ids: i32[R], everything after it up to the last sampled id.  What the env appended behind that is left
        out: nothing can be learned from it, and a reward at the end of the row would stand at an id that nobody chose.
    mask: bool[R], True at sampled ids; all False in a row whose status is not "ok".
    logprobs: f32[R], of the distribution that was sampled from; 0.0 off the mask.
    turns: i32[R], the turn of each id.
    segment: number of the segment.  last: no later segment of the episode has sampled ids.
    """

    trajectory: Trajectory
    prompt_ids: NDArray[np.int32]
    response_ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    turns: NDArray[np.int32]
    segment: int = 0
    last: bool = True

    @property
    def usable(self) -> bool:
        """Whether the episode is a fair sample of the agent."""
        return self.trajectory.status == OK

    def turn_rewards(self) -> NDArray[np.float32]:
        """f32[R]: each turn's reward at its last sampled id, one of a turn without any at the nearest sampled id.

        Of a row that is a whole episode they sum up to the episode's reward, 0 where the episode failed.
        """
        out = np.zeros(self.response_ids.size, np.float32)
        if not self.usable:
            return out
        at = np.flatnonzero(self.mask) if self.mask.any() else np.zeros(1, np.int64)
        turns = self.turns[at]
        ends = at[np.append(turns[1:] != turns[:-1], True)]
        for turn, reward in enumerate(self.trajectory.turn_rewards):
            nearest = int(np.searchsorted(self.turns[ends], turn, side="right")) - 1
            out[ends[max(nearest, 0)]] += reward
        return out


def segment_rows(trajectories: Sequence[Trajectory], pad_id: int = 0) -> list[Row]:
    """A row for each segment, in order; segments without a sampled id are left out where their episode has others.

    An episode in which nothing was sampled is one row of which nothing is learned: its response is a single `pad_id`
    off the mask, and so is its prompt where it did not even get one, because no consumer takes empty lists.

    Raises `ExportError` for no trajectories and for one without token ids, `GroupPromptError` for a group whose members
    start from different prompts.
    """
    if not trajectories:
        raise ExportError("there is nothing to export: no trajectories")
    for n, t in enumerate(trajectories):
        if t.context == 0 and t.turns > 0:
            raise ExportError(
                f"trajectory {n} (task {t.task_id!r}) has no token ids; collect it with an agent that samples tokens, "
                "in an env with view='tokens'"
            )
    check_prompts(trajectories)
    return [row for t in trajectories for row in _rows(t, pad_id)]


def whole_rows(trajectories: Sequence[Trajectory], pad_id: int, consumer: str) -> list[Row]:
    """The same for a consumer that takes one row an episode; `ExportError` names an episode that has more."""
    rows = segment_rows(trajectories, pad_id)
    for row in rows:
        if not row.last:
            t = row.trajectory
            raise ExportError(
                f"{consumer} takes one row an episode, but task {t.task_id!r} (seed {t.seed}, sample {t.sample_index}) "
                f"has {len(t.segments)} contexts; collect with history='keep', or export to torchrl, skyrl or parquet"
            )
    return rows


def _rows(t: Trajectory, pad_id: int) -> Iterator[Row]:
    found = [_row(t, n, s) for n, s in enumerate(t.segments)]
    sampled = [row for row in found if row.response_ids.size]
    if sampled:
        yield from (replace(row, last=row is sampled[-1]) for row in sampled)
        return
    one = np.array([pad_id], np.int32)
    yield Row(
        t,
        prompt_ids=found[0].prompt_ids if found[0].prompt_ids.size else one,
        response_ids=one,
        mask=np.zeros(1, np.bool_),
        logprobs=np.zeros(1, np.float32),
        turns=np.zeros(1, np.int32),
    )


def _row(t: Trajectory, number: int, segment: slice) -> Row:
    ids, sampled = t.token_ids[segment], t.action_mask[segment]
    turn, logprobs = t.turn[segment], t.logprobs[segment]
    if number == 0:
        start = t.prompt_length
    else:  # a whole prompt: all that stands before the turn that it was given for
        start = int(np.count_nonzero((turn == turn[:1]) & ~sampled))
    end = max(start, int(np.flatnonzero(sampled)[-1]) + 1 if sampled.any() else 0)
    mask = sampled[start:end] if t.status == OK else np.zeros(end - start, np.bool_)
    return Row(
        t,
        prompt_ids=ids[:start],
        response_ids=ids[start:end],
        mask=mask,
        logprobs=np.where(mask, logprobs[start:end], np.float32(0)),
        turns=turn[start:end],
        segment=number,
    )
