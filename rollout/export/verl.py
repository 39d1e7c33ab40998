"""verl: an `AgentLoopOutput` for each episode, and the padded batch that its trainer makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.rollout.export.rows import ExportError, Row, whole_rows
from toolstep.rollout.types import Trajectory


def to_verl(trajectories: Sequence[Trajectory], *, pad_id: int = 0) -> list[dict[str, Any]]:
    """One dict of plain, JSON-able values for each trajectory: the fields of verl's `AgentLoopOutput`.

    `AgentLoopOutput(**to_verl([trajectory])[0])` is what an agent loop's `run` returns.  The arrays of one length are
    response_ids, response_mask (1 sampled, 0 not) and response_logprobs (0.0 off the mask; None where a script wrote
    the turns).  reward_score is the episode's total reward, turn_scores in extra_fields has it by turn.  num_turns
    counts as verl does: the prompt, the agent's turns, and the answers between them.

    An episode that failed (status other than "ok") has an all-zero mask and reward 0.0, and its status in extra_fields.
    verl's trainer groups rows by a `uid` of its own, so in its baseline that 0.0 counts: see `to_verl_batch`.

    pad_id: stands for a response in which nothing was sampled, off the mask.
    Raises `ExportError` for an episode of several contexts, and what `segment_rows` raises.
    """
    return [_output(row) for row in whole_rows(trajectories, pad_id, "verl")]


def to_verl_batch(
    trajectories: Sequence[Trajectory],
    *,
    pad_id: int = 0,
    prompt_length: int | None = None,
    response_length: int | None = None,
) -> dict[str, Any]:
    """The keywords of `verl.DataProto.from_dict`: the batch that verl's trainer computes advantages from.

    tensors, B rows: prompts i64[B,P] padded on the left, responses i64[B,R] on the right, input_ids, attention_mask and
        position_ids i64[B,P+R], response_mask i64[B,R], rollout_log_probs f32[B,R] (left out unless each sampled id has
        one) and rm_scores f32[B,R], the reward at the last id of the response.  Log-probs are those of the ids in the
        same place: nothing is shifted.  Attention is told by lengths, so the pad id may be a real token.
    non_tensors, object arrays [B]: uid, the group that GRPO compares a row with; __num_turns__; status, stop_reason,
        task_id.
    prompt_length, response_length: P and R; default: those of the longest rows.

    An episode that failed has a uid of its own, mask 0 and reward 0.0: verl's GRPO gives it advantage 0, and the
    baseline of its group is that of the others.

    Raises `ExportError` where a row is longer than P or R, and what `to_verl` raises.
    """
    import torch

    rows = whole_rows(trajectories, pad_id, "verl")
    width = _width("prompt", [row.prompt_ids for row in rows], prompt_length, rows)
    height = _width("response", [row.response_ids for row in rows], response_length, rows)
    shape = (len(rows), width + height)
    input_ids, attention = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    mask, logprobs, scores = (np.zeros((len(rows), height), t) for t in (np.int64, np.float32, np.float32))
    for b, row in enumerate(rows):
        start, end, n = width - row.prompt_ids.size, width + row.response_ids.size, row.response_ids.size
        input_ids[b, start:end] = np.concatenate([row.prompt_ids, row.response_ids])
        attention[b, start:end] = 1
        mask[b, :n] = row.mask
        logprobs[b, :n] = row.logprobs
        scores[b, n - 1] = _reward(row)
    tensors = {
        "prompts": input_ids[:, :width],
        "responses": input_ids[:, width:],
        "response_mask": mask,
        "input_ids": input_ids,
        "attention_mask": attention,
        "position_ids": np.clip(np.cumsum(attention, axis=1) - 1, 0, None),
        "rollout_log_probs": logprobs,
        "rm_scores": scores,
    }
    if not all(row.trajectory.has_logprobs for row in rows):
        del tensors["rollout_log_probs"]
    return {
        "tensors": {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors.items()},
        "non_tensors": {
            "uid": _objects([_group(n, row) for n, row in enumerate(rows)]),
            "__num_turns__": np.array([_num_turns(row.trajectory) for row in rows], np.int32),
            **{k: _objects([getattr(row.trajectory, k) for row in rows]) for k in ("status", "stop_reason", "task_id")},
        },
        "meta_info": {},
    }


def _output(row: Row) -> dict[str, Any]:
    t = row.trajectory
    return {
        "prompt_ids": row.prompt_ids.tolist(),
        "response_ids": row.response_ids.tolist(),
        "response_mask": row.mask.astype(int).tolist(),
        "response_logprobs": row.logprobs.tolist() if t.has_logprobs else None,
        "reward_score": _reward(row),
        "num_turns": _num_turns(t),
        "metrics": {},
        "extra_fields": {
            "turn_scores": t.turn_rewards.tolist() if row.usable else [0.0] * t.turns,
            "reward_extra_info": {"success": t.metrics.get("success", 0.0)},
            "status": t.status,
            "stop_reason": t.stop_reason,
            "task_id": t.task_id,
        },
    }


def _reward(row: Row) -> float:
    return row.trajectory.total_reward if row.usable else 0.0


def _num_turns(t: Trajectory) -> int:
    return max(1, 2 * t.turns)


def _group(number: int, row: Row) -> str:
    t = row.trajectory
    if not row.usable or t.group_id is None:
        return f"row-{number}"
    return f"group-{t.group_id}-{t.seed}"


def _objects(values: list[Any]) -> NDArray[np.object_]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def _width(part: str, ids: Sequence[NDArray[np.int32]], limit: int | None, rows: Sequence[Row]) -> int:
    longest = max(range(len(ids)), key=lambda n: ids[n].size)
    size = ids[longest].size
    if limit is not None and size > limit:
        t = rows[longest].trajectory
        raise ExportError(
            f"the {part} of task {t.task_id!r} (seed {t.seed}, sample {t.sample_index}) has {size} ids, more than "
            f"{part}_length={limit}; raise it, or leave the episode out"
        )
    return size if limit is None else limit
