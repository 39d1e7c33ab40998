"""Tables: parquet by pyarrow, and Hugging Face datasets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolstep.rollout.batch import check_prompts
from toolstep.rollout.export.rows import ExportError
from toolstep.rollout.types import OK, Trajectory

if TYPE_CHECKING:
    import datasets
    import pyarrow


def to_table(trajectories: Sequence[Trajectory]) -> pyarrow.Table:
    """An Arrow table with one row for each context of each trajectory.

    Lists of one length a row, empty for an episode that was played as text: input_ids (list<int32>); assistant_masks
        (list<int8>), 1 at sampled ids, all 0 where the episode failed; logprobs and model_logprobs (list<float32>), of
        the distribution that was sampled from and of the plain model, 0.0 off the mask; source (list<uint8>),
        `toolstep.envs.types.Source`, which tells what was sampled in failed episodes too; turn and weight_versions
        (list<int32>), of each id.  Nothing is shifted.
    prompt_length (int32): ids before the first turn of the context.  segment, segments (int32): which context of the
        episode this is, and how many it has.
    reward (float32): the episode's total, null where it failed, so that a mean over a group leaves it out.
        turn_rewards (list<float32>): of the whole episode, by turn.
    messages: the conversation; the arguments of a call are JSON text, as in OpenAI's API (calls have not the same
        arguments, and a table has one type a column).  metrics, tags: lists of (name, value).
    group_id (int64, null: none), sample_index, seed, task_id, status, stop_reason, error, terminated, truncated,
        success, history_policy: as the trajectory has them.

    Names and types fit TRL's SFTTrainer, which reads input_ids and assistant_masks.
    Raises `ExportError` for no trajectories, `GroupPromptError` for a group of different prompts.
    """
    import pyarrow as pa

    if not trajectories:
        raise ExportError("there is nothing to export: no trajectories")
    check_prompts(trajectories)
    return pa.Table.from_pylist([row for t in trajectories for row in _rows(t)], schema=_schema())


def to_dataset(trajectories: Sequence[Trajectory]) -> datasets.Dataset:
    """The same rows as a `datasets.Dataset`."""
    from datasets import Dataset

    return Dataset(to_table(trajectories))


def _rows(t: Trajectory) -> Iterator[dict[str, Any]]:
    mask = t.action_mask if t.status == OK else np.zeros(t.context, np.bool_)
    segments = t.segments
    for n, s in enumerate(segments):
        turn, sampled = t.turn[s], t.action_mask[s]
        yield {
            "input_ids": t.token_ids[s],
            "assistant_masks": mask[s].astype(np.int8),
            "logprobs": np.where(mask[s], t.logprobs[s], np.float32(0)),
            "model_logprobs": np.where(mask[s], t.model_logprobs[s], np.float32(0)),
            "source": t.source[s],
            "turn": turn,
            "weight_versions": t.weight_versions[s],
            "prompt_length": t.prompt_length if n == 0 else int(np.count_nonzero((turn == turn[:1]) & ~sampled)),
            "segment": n,
            "segments": len(segments),
            "reward": t.total_reward if t.status == OK else None,
            "turn_rewards": t.turn_rewards,
            "messages": [_message(m) for m in t.messages],
            "metrics": [{"name": k, "value": v} for k, v in t.metrics.items()],
            "tags": [{"name": _text(k), "value": _text(v)} for k, v in t.tags.items()],
            "group_id": t.group_id,
            "sample_index": t.sample_index,
            "seed": t.seed,
            "task_id": _text(t.task_id),
            "status": t.status,
            "stop_reason": t.stop_reason,
            "error": _text(t.error),
            "terminated": t.terminated,
            "truncated": t.truncated,
            "success": t.status == OK and t.metrics.get("success", 0.0) == 1.0,
            "history_policy": t.history_policy,
        }


def _message(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": _text(call.get("id")),
            "type": "function",
            "function": {
                "name": _text(call["function"]["name"]),
                "arguments": json.dumps(call["function"]["arguments"]),
            },
        }
        for call in message.get("tool_calls", ())
    ]
    names = ("role", "content", "tool_call_id", "name", "reasoning_content")
    return {**{name: _text(message.get(name)) for name in names}, "tool_calls": calls or None}


def _text(value: str | None) -> str | None:
    """Arrow's text is UTF-8; what a model wrote may hold a lone surrogate."""
    return None if value is None else value.encode("utf-8", "replace").decode("utf-8")


def _schema() -> pyarrow.Schema:
    import pyarrow as pa

    call = pa.struct(
        {
            "id": pa.string(),
            "type": pa.string(),
            "function": pa.struct({"name": pa.string(), "arguments": pa.string()}),
        }
    )
    texts = ("role", "content", "tool_call_id", "name", "reasoning_content")
    message = pa.struct({**dict.fromkeys(texts, pa.string()), "tool_calls": pa.list_(call)})
    ids, floats = pa.list_(pa.int32()), pa.list_(pa.float32())

    def named(kind: pyarrow.DataType) -> pyarrow.DataType:  # Hugging Face datasets have no map type
        return pa.list_(pa.struct({"name": pa.string(), "value": kind}))

    return pa.schema(
        {
            "input_ids": ids,
            "assistant_masks": pa.list_(pa.int8()),
            "logprobs": floats,
            "model_logprobs": floats,
            "source": pa.list_(pa.uint8()),
            "turn": ids,
            "weight_versions": ids,
            **dict.fromkeys(("prompt_length", "segment", "segments"), pa.int32()),
            "reward": pa.float32(),
            "turn_rewards": floats,
            "messages": pa.list_(message),
            "metrics": named(pa.float64()),
            "tags": named(pa.string()),
            **dict.fromkeys(("group_id", "sample_index", "seed"), pa.int64()),
            **dict.fromkeys(("task_id", "status", "stop_reason", "error"), pa.string()),
            **dict.fromkeys(("terminated", "truncated", "success"), pa.bool_()),
            "history_policy": pa.string(),
        }
    )
