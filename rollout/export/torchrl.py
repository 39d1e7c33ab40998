"""TorchRL: the TensorDict that `GRPOLoss` and its kin read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from toolstep.rollout.batch import RolloutBatch
from toolstep.rollout.export.rows import ExportError

if TYPE_CHECKING:
    from tensordict import TensorDict


def to_torchrl(batch: RolloutBatch, *, device: Any = None) -> TensorDict:
    """A TensorDict of batch size [B] from the rows of `batch`, padded on the left instead of on the right.

    See `torchrl_tensors` for its entries.  Use `GRPOLoss(policy, masking_strategy="rlhf")`, with the policy
    `TransformersWrapper(model, tokenizer=..., generate=False, input_mode="tokens", return_log_probs=True,
    pad_output=True)`: only the assistant mask leaves the tool results of an episode out.
    """
    from tensordict import TensorDict

    return TensorDict(torchrl_tensors(batch, device=device), batch_size=[len(batch.lengths)])


def torchrl_tensors(batch: RolloutBatch, *, device: Any = None) -> dict[str, Any]:
    """The entries of that TensorDict as nested dicts of plain torch tensors.

    tokens/full i64[B,T]; masks/all_attention_mask and masks/all_assistant_mask bool[B,T], the latter True at the
    sampled ids of usable rows; log_probs/full f32[B,T], of the distribution that was sampled from, entry i that of id
    i, 0.0 off the mask; advantage f32[B,T,1].

    Advantages are those of the batch: relative to the usable members of a group, so a row that failed is masked and in
    no baseline, and each context of an episode is a row with its episode's advantage.

    Raises `ExportError` for a batch without ids, and `BatchError` for one that a script sampled (it has no log-probs).
    """
    import torch

    batch.require_logprobs()
    if not batch.input_ids.size:
        raise ExportError("there is nothing to export: the batch has no ids")
    width = batch.input_ids.shape[1]
    # Where each id goes: its row's padding moves from behind it to before it.
    source = (np.arange(width) + batch.lengths[:, None]) % width

    def left(array: NDArray[Any]) -> Any:
        return torch.tensor(np.take_along_axis(array, source, axis=1), device=device)

    return {
        "tokens": {"full": left(batch.input_ids)},
        "masks": {
            "all_attention_mask": left(batch.attention_mask),
            "all_assistant_mask": left(batch.action_mask),
        },
        "log_probs": {"full": left(batch.old_logprobs)},
        "advantage": left(batch.advantages)[..., None],
    }
