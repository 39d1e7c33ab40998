"""What a learner reads: a batch lined up with the logits, and the form without padding."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Arrays:
    """Arrays by field name, for numpy and torch."""

    __slots__ = ()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays by field name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def torch(self, device: Any = None) -> dict[str, Any]:
        """The arrays as torch tensors on `device`, by field name; copies."""
        import torch

        return {name: torch.tensor(value, device=device) for name, value in self.arrays().items()}


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedBatch(Arrays):
    """Ids as targets: entry [b, t] belongs to `logits[b, t]`, T - 1 entries a row (packed: [n], N - 1 entries).

    targets: i64[B,T-1], the id that `logits[b, t]` predicts.
    action_mask: bool[B,T-1].  old_logprobs, model_logprobs, advantages: f32[B,T-1], 0.0 off the mask.

    The padded and the packed form of one batch have the same entries on their masks, in the same order: what was
    computed from packed logits is put in its place by `padded[shifted.action_mask] = values`.
    """

    targets: NDArray[np.int64]
    action_mask: NDArray[np.bool_]
    old_logprobs: NDArray[np.float32]
    model_logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class PackedBatch(Arrays):
    """The B rows of a batch one behind the other, N ids without padding.

    input_ids, position_ids: i64[N]; positions begin at 0 in each row, by which transformers tells the rows apart:
    `model(input_ids[None], position_ids=position_ids[None], use_cache=False)`, without an attention mask.  With a cache
    (the default) the rows see one another; models with linear attention need `cu_seqlens` besides.
    cu_seqlens: i32[B+1], where each row begins, and N: `cu_seq_lens_q` and `cu_seq_lens_k` of varlen attention.
    max_seqlen: ids of the longest row.
    action_mask: bool[N].  old_logprobs, model_logprobs, advantages: f32[N].
    """

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32]
    max_seqlen: int
    action_mask: NDArray[np.bool_]
    old_logprobs: NDArray[np.float32]
    model_logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32]

    def shifted(self) -> ShiftedBatch:
        """Lined up with `logits[:-1]`.

        The first id of a row is no target: the logits before it are those of another row.
        """
        follows = self.position_ids[1:] > 0
        return ShiftedBatch(
            targets=self.input_ids[1:],
            action_mask=self.action_mask[1:] & follows,
            **{
                name: np.where(follows, getattr(self, name)[1:], np.float32(0))
                for name in ("old_logprobs", "model_logprobs", "advantages")
            },
        )
