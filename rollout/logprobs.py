"""Log-probs of given ids without the logits of a whole sequence: memory does not grow with vocabulary x length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 2**24  # logits held at once: 64 MiB in fp32


def token_logprobs(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, chunk: int = CHUNK, *, temperature: float = 1.0
) -> Tensor:
    """f32[...]: log softmax(hidden @ head_weight.T / temperature) at `targets`, differentiable.

    hidden: [...,H], the last hidden states at the positions that predict the targets, after the model's last norm; for
    next-token losses `hidden[:, :-1]`, or only `hidden[:, :-1][mask]`.
    head_weight: [V,H], of the output head, in which no bias and no soft cap follows; a model that scales its logits by
    s has temperature 1 / s.
    targets: i64[...], ids in [0, V).
    chunk: logits held at a time, forth and back; the backward pass computes them once more.  It changes memory, not
    results.

    Equal to `log_softmax(logits.float(), -1)` at the targets up to rounding: logits are computed in the dtype of
    `hidden` (also under autocast), everything after them in fp32, or in fp64 where `hidden` is.  Raises `ValueError`
    for shapes that disagree and for targets outside the vocabulary.
    """
    return _apply(hidden, head_weight, targets, chunk, temperature, False)[0]


def token_logprobs_and_entropy(
    hidden: Tensor, head_weight: Tensor, targets: Tensor, chunk: int = CHUNK, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """`token_logprobs`, and f32[...], the entropy of each distribution in nats, for the log: it has no gradient."""
    logprobs, entropy = _apply(hidden, head_weight, targets, chunk, temperature, True)
    return logprobs, entropy


def _apply(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor]:
    if weight.ndim != 2 or hidden.shape[-1:] != weight.shape[1:]:
        raise ValueError(
            f"token_logprobs: hidden must be [..., H] and head_weight [V, H], got {list(hidden.shape)} "
            f"and {list(weight.shape)}"
        )
    if targets.dtype != torch.int64 or targets.shape != hidden.shape[:-1]:
        raise ValueError(
            f"token_logprobs: targets must be int64{list(hidden.shape[:-1])}, one id for each hidden state, "
            f"got {targets.dtype}{list(targets.shape)}"
        )
    flat = targets.reshape(-1)
    if flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < len(weight):
        bad = (flat < 0) | (flat >= len(weight))
        at = int(bad.int().argmax())
        where = [int(i) for i in torch.unravel_index(torch.tensor(at), targets.shape)]
        raise ValueError(f"token_logprobs: targets{where} must be in [0, {len(weight)}), got {int(flat[at])}")
    if not (temperature > 0 and chunk > 0):
        raise ValueError(f"token_logprobs: temperature and chunk must be positive, got {temperature} and {chunk}")
    states = hidden.reshape(-1, hidden.shape[-1])
    rows = max(1, chunk // max(1, len(weight)))
    out: tuple[Tensor, Tensor] = _TokenLogprobs.apply(states, weight, flat, temperature, rows, entropy)  # type: ignore[no-untyped-call]
    return out[0].view(targets.shape), out[1].view(targets.shape) if entropy else out[1]


def _logits(states: Tensor, weight: Tensor, temperature: float) -> Tensor:
    """[n,V], a fresh tensor that its caller may write into."""
    logits = states @ weight.T
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return logits.div_(temperature) if temperature != 1.0 else logits


class _TokenLogprobs(torch.autograd.Function):
    """d log p(y) / d logits = onehot(y) - p, so that nothing of [N,V] has to be kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, rows: int, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, targets)
        ctx.temperature, ctx.rows = temperature, rows
        exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs = hidden.new_empty(len(hidden), dtype=exact)
        entropies = hidden.new_empty(len(hidden) if entropy else 0, dtype=exact)
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(hidden.dtype)
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                logits = _logits(hidden[part], cast, temperature)
                total = logits.logsumexp(-1, keepdim=True)
                logits -= total
                logprobs[part] = logits.gather(-1, targets[part, None])[:, 0]
                if entropy:
                    entropies[part] = torch.special.entr(logits.exp_()).sum(-1)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        hidden, weight, targets = ctx.saved_tensors
        want_hidden, want_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if want_hidden else None
        # Summed over chunks in fp32 at least, whatever the weights are in.
        grad_weight = torch.zeros_like(weight, dtype=grad.dtype) if want_weight else None
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(hidden.dtype)
            for start in range(0, len(hidden), ctx.rows):
                part = slice(start, start + ctx.rows)
                scale = grad[part, None] / ctx.temperature
                slope = torch.softmax(_logits(hidden[part], cast, ctx.temperature), -1).mul_(-scale)
                slope.scatter_add_(1, targets[part, None], scale)
                slope = slope.to(hidden.dtype)
                if grad_hidden is not None:
                    torch.mm(slope, cast, out=grad_hidden[part])
                if grad_weight is not None and grad_weight.dtype == slope.dtype:
                    grad_weight.addmm_(slope.T, hidden[part])
                elif grad_weight is not None:
                    grad_weight += slope.T @ hidden[part]
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None, None, None
