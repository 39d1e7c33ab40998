"""An episode as the data of a page: a row of the list, and what is shown when it is opened."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from toolstep.rollout.evaluate import call_counts, succeeded
from toolstep.rollout.types import OK, Trajectory
from toolstep.rollout.viewer.vocabulary import Vocabulary

_PREVIEW = 140  # characters


def row(number: int, trajectory: Trajectory) -> dict[str, Any]:
    """What the list shows, and what it is searched and filtered by."""
    t = trajectory
    return {
        "number": number,
        "task": t.task_id,
        "tags": t.tags,
        "group": t.group_id,
        "sample": t.sample_index,
        "seed": t.seed,
        "outcome": "error" if t.status != OK else "success" if succeeded(t) else "failure",
        "status": t.status,
        "stop": t.stop_reason,
        "ended": "terminated" if t.terminated else "truncated",
        "reward": round(t.total_reward, 6),
        "turns": t.turns,
        "sampled": int(t.metrics.get("sampled_tokens", t.sampled)),
        "context": int(t.metrics.get("context_tokens", t.context)),
        "preview": _preview(t),
    }


def detail(trajectory: Trajectory, vocabulary: Vocabulary) -> dict[str, Any]:
    """What is shown of an opened episode.  `opening`: messages in front of the agent's first turn."""
    t = trajectory
    return {
        "messages": t.messages,
        "opening": opening(t),
        "rewards": [round(float(r), 6) for r in t.turn_rewards],
        "calls": call_counts(t),
        "metrics": {k: v for k, v in t.metrics.items() if not k.startswith("calls/")},
        "error": t.error,
        "history": t.history_policy,
        "tokens": tokens(t, vocabulary) if t.context else None,
    }


def opening(trajectory: Trajectory) -> int:
    """How many messages there were before the agent's first turn (examples that the prompt holds among them).

    Each turn has one assistant message, but for the last one where it failed for another reason than the agent.
    """
    turns = trajectory.turns - (trajectory.status != OK)
    said = [i for i, m in enumerate(trajectory.messages) if m.get("role") == "assistant"]
    own = said[-turns:] if turns > 0 else []
    return own[0] if own else len(trajectory.messages)


def tokens(trajectory: Trajectory, vocabulary: Vocabulary) -> dict[str, Any]:
    """The flat record, small: base64 of little-endian arrays, and runs of what changes seldom.

    places: of each id in the vocabulary, u2 or u4[T].  runs: [start, source, turn, weight version] each time that one
    of the three changes.  logprobs: f4, of the sampled ids alone; None where a script wrote them.  model_logprobs: the
    same under the plain model; None where it is equal.  segments: where each context begins.
    """
    t = trajectory
    columns = np.stack([t.source.astype(np.int64), t.turn, t.weight_versions], axis=1)  # [T, 3]
    starts = np.flatnonzero(np.append(True, (columns[1:] != columns[:-1]).any(axis=1)))
    mask = t.action_mask
    sampled, model = t.logprobs[mask], t.model_logprobs[mask]
    known = bool(mask.any()) and t.has_logprobs
    return {
        "places": _base64(vocabulary.places(t.token_ids)),
        "runs": [[int(i), *columns[i].tolist()] for i in starts],
        "logprobs": _base64(sampled.astype("<f4").tobytes()) if known else None,
        "model_logprobs": _base64(model.astype("<f4").tobytes()) if known and (sampled != model).any() else None,
        "segments": t.segment_starts,
    }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _preview(trajectory: Trajectory) -> str:
    """The question: the last user message before the agent's first turn, on one line."""
    asked = [m for m in trajectory.messages[: opening(trajectory)] if m.get("role") == "user"]
    text = asked[-1].get("content") if asked else ""
    line = " ".join(text.split()) if isinstance(text, str) else ""
    return line if len(line) <= _PREVIEW else line[: _PREVIEW - 1] + "…"
