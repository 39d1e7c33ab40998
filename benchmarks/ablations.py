"""GRPO with one thing wrong, as other rollout loops have it: what token-exactness is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolstep.envs.types import Source
from toolstep.rollout import RolloutBatch, RolloutResult, Trajectory
from toolstep.rollout.learn import GRPO

Damage = Callable[[RolloutResult, Any], RolloutBatch]


class DamagedGRPO(GRPO):
    """Learns from a batch that `damage` made of the rollout.

    The check of the first ratio is off: it would stop each of these runs at its first step.  Ratios are those to the
    log-probabilities that the sampler told, as in loops that do not compute them again; without a fault that is the
    same to 1e-4 (`first_ratio_max` of an exact run).
    """

    def __init__(self, *args: Any, damage: Damage, **options: Any) -> None:
        super().__init__(*args, **options)
        self._damage = damage

    def update(self, result: RolloutResult, is_fresh: bool, remaining: float) -> dict[str, float]:
        if is_fresh:
            self._damaged = self._damage(result, self.agent)
        return super().update(replace(result, batch=self._damaged), is_fresh, remaining)

    def _compared(self, logprobs: Tensor, sampler: Tensor, mask: Tensor, rows: Any) -> dict[str, float]:
        self._old[torch.from_numpy(rows), : mask.shape[1]] = sampler
        ratio = (logprobs - sampler).exp()[mask]
        return {"first_ratio_mean": float(ratio.mean()), "first_ratio_max": float(ratio.max())}


def mask_one_off(result: RolloutResult, agent: Any) -> RolloutBatch:
    """The mask of ids is taken for that of logits: each turn loses its first id and gains the one behind its last."""
    b = result.batch
    ends = np.arange(b.input_ids.shape[1]) < b.lengths[:, None]
    moved = {
        name: np.roll(getattr(b, name), 1, axis=1)
        for name in ("action_mask", "old_logprobs", "model_logprobs", "advantages", "weight_versions")
    }
    mask = moved["action_mask"] & ends
    mask[:, 0] = False
    for name, filler in (("old_logprobs", 0), ("model_logprobs", 0), ("advantages", 0), ("weight_versions", -1)):
        moved[name] = np.where(mask, moved[name], np.asarray(filler, moved[name].dtype))
    return replace(b, **{**moved, "action_mask": mask})


def stop_unmasked(result: RolloutResult, agent: Any) -> RolloutBatch:
    """The stop token is not part of the action: when to stop is never trained."""
    b = result.batch
    mask = b.action_mask & ~np.isin(b.input_ids, list(agent.stop_ids))
    kept = {
        name: np.where(mask, getattr(b, name), np.float32(0))
        for name in ("old_logprobs", "model_logprobs", "advantages")
    }
    return replace(b, action_mask=mask, weight_versions=np.where(mask, b.weight_versions, np.int32(-1)), **kept)


class Retokenised:
    """Each observation is what is left of a rendering of the whole conversation behind as many ids as there are so far.

    Right as long as the rendering begins with exactly those ids; one id more or less in what was sampled moves all that
    follows.
    """

    def __init__(self, schemas: list[dict[str, Any]], seen: dict[str, int]) -> None:
        self._schemas = schemas
        self.seen = seen  # turns that came out as they were, and others

    def __call__(self, result: RolloutResult, agent: Any) -> RolloutBatch:
        from toolstep.envs.chat.tokenizer import load_tokenizer

        tokenizer = load_tokenizer(agent.tokenizer) if isinstance(agent.tokenizer, str) else agent.tokenizer
        rows = [self._rebuilt(t, tokenizer) for t in result.trajectories]
        return RolloutBatch.from_trajectories(rows, rewards=list(result.rewards.reshape(-1)))

    def _rebuilt(self, t: Trajectory, tokenizer: Any) -> Trajectory:
        pieces: list[tuple[np.ndarray, np.ndarray]] = []  # ids of a piece, where they were in the record (-1: new)
        turns: list[int] = []
        mask = t.action_mask
        heads = [i for i, m in enumerate(t.messages) if m["role"] == "assistant"]
        for turn in range(int(t.turn.max(initial=0)) + 1):
            here = np.flatnonzero(t.turn == turn)
            observed, sampled = here[~mask[here]], here[mask[here]]
            if turn == 0 or not observed.size:
                pieces.append((t.token_ids[observed], observed))
            else:
                upto = heads[turn] if turn < len(heads) else len(t.messages)
                length = sum(len(p[0]) for p in pieces)
                whole = tokenizer.apply_chat_template(
                    t.messages[:upto], tools=self._schemas, add_generation_prompt=True, tokenize=False
                )
                delta = np.array(tokenizer.encode(whole, add_special_tokens=False)[length:], np.int32)
                same = np.array_equal(delta, t.token_ids[observed])
                self.seen["same" if same else "other"] = self.seen.get("same" if same else "other", 0) + 1
                pieces.append((delta, np.full(len(delta), -1)))
            turns += [turn] * len(pieces[-1][0])
            pieces.append((t.token_ids[sampled], sampled))
            turns += [turn] * len(sampled)
        ids = np.concatenate([p[0] for p in pieces]).astype(np.int32)
        at = np.concatenate([p[1] for p in pieces]).astype(np.int64)
        kept = at >= 0
        take = {"source": Source.BODY, "logprobs": 0, "model_logprobs": 0, "weight_versions": -1}
        moved = {}
        for name, filler in take.items():
            own = getattr(t, name)
            moved[name] = np.where(kept, own[np.maximum(at, 0)], np.asarray(filler, own.dtype)).astype(own.dtype)
        return replace(t, token_ids=ids, turn=np.array(turns, np.int32), segment_starts=[0], **moved)


def ablations(schemas: list[dict[str, Any]]) -> dict[str, Damage]:
    return {
        "mask one place off": mask_one_off,
        "stop token not in the mask": stop_unmasked,
        "re-tokenised observations": Retokenised(schemas, {}),
    }
