"""From logits to a token and its two log-probabilities.

Pure functions: nothing writes to the logits that are passed in, and row i of the result depends on row i of the
arguments only.  A token is found by inverting the cumulative distribution, in the order of token ids, at one uniform
number; the row's own generator makes those numbers, so batch mates cannot change what a row samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine.passes import passes

_HEAD = 1024  # top-p looks at this many best tokens before it sorts the whole vocabulary
_BLOCK = 256  # tokens


class Choice(NamedTuple):
    """tokens i64[n]; logprobs f32[n] of the distribution sampled from; model_logprobs f32[n] at T=1, untruncated;
    top: for each row its most probable tokens and their logprobs (none unless asked for).
    """

    tokens: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    model_logprobs: NDArray[np.float32]
    top: list[list[tuple[int, float]]]


class NonFiniteLogits(ValueError):
    """Logits of a row hold NaN or +inf, or nothing but -inf; `index` is its place in the batch."""

    def __init__(self, index: int) -> None:
        super().__init__(f"logits of row {index} of the batch are not finite: no token can be sampled from them")
        self.index = index


def uniform_stream(seed: int) -> np.random.Generator:
    """The uniform numbers of one episode.  Philox is counter based: the same on every platform and numpy version."""
    return np.random.Generator(np.random.Philox(seed))


def penalise(logits: torch.Tensor, histories: Sequence[Sequence[int]], params: SamplingParams) -> torch.Tensor:
    """Repetition, frequency and presence penalty for the tokens in each row's window, then the bias.

    logits f32[n, V] -> f32[n, V].
    """
    out = logits
    if params.penalised and any(len(h) for h in histories):
        out = logits.clone()
        for i, history in enumerate(histories):
            counts = Counter(history[-params.penalty_window :] if params.penalty_window else history)
            if not counts:
                continue
            ids = torch.tensor(list(counts), device=logits.device)
            values = out[i, ids]
            if params.repetition_penalty != 1:
                r = params.repetition_penalty
                values = torch.where(values > 0, values / r, values * r)
            times = torch.tensor(list(counts.values()), device=logits.device, dtype=out.dtype)
            out[i, ids] = values - params.frequency_penalty * times - params.presence_penalty
    if params.logit_bias:
        pairs = params.logit_bias.items() if isinstance(params.logit_bias, Mapping) else params.logit_bias
        if bad := [token for token, _ in pairs if not 0 <= token < logits.shape[1]]:
            raise ValueError(f"logit_bias: id {bad[0]} is outside the model's vocabulary of {logits.shape[1]}")
        ids = torch.tensor([token for token, _ in pairs], device=logits.device)
        bias = torch.tensor([value for _, value in pairs], device=logits.device, dtype=out.dtype)
        out = out.index_add(1, ids, bias.expand(len(out), -1))
    return out


def truncate(scores: torch.Tensor, top_k: int, top_p: float, min_p: float = 0.0) -> torch.Tensor:
    """Set the scores outside top-k, outside top-p of what is left, and below min-p to -inf.  f32[n, V] -> f32[n, V].

    All are thresholds: tokens that tie with the last one kept are kept, so the result does not depend on the order in
    which a sort returns equal values.  top-p keeps the token at which the cumulative probability reaches `top_p`.
    """
    vocabulary = scores.shape[-1]
    if 0 < top_k < vocabulary:
        kth = torch.topk(scores, top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, float("-inf"))
    if top_p < 1.0:
        total = torch.logsumexp(scores, -1, keepdim=True)
        best = torch.topk(scores, min(_HEAD, vocabulary), dim=-1).values
        mass = torch.exp(best - total).double().cumsum(-1)
        if best.shape[1] < vocabulary and bool((mass[:, -1] < top_p).any()):
            best = torch.sort(scores, dim=-1, descending=True).values
            mass = torch.exp(best - total).double().cumsum(-1)
        crossing = (mass < top_p).sum(-1, keepdim=True).clamp_(max=best.shape[1] - 1)
        scores = scores.masked_fill(scores < best.gather(-1, crossing), float("-inf"))
    if min_p:
        scores = scores.masked_fill(scores < scores.amax(-1, keepdim=True) + math.log(min_p), float("-inf"))
    return scores


def choose(
    logits: torch.Tensor,
    uniforms: NDArray[np.float64],
    params: SamplingParams,
    histories: Sequence[Sequence[int]],
    allowed: Sequence[NDArray[np.bool_] | None] | None = None,
) -> Choice:
    """Sample one token for each row.

    logits [n, V] of any float dtype (computed in fp32); uniforms f64[n] in [0, 1) (not read when greedy);
    histories: the ids that each row has sampled in its episode so far.  allowed: bool[V] for the rows that may take
    some tokens only (a constraint), one at least.

    The order is penalties, bias, constraint, temperature, top-k, top-p, min-p.  `logprobs` are those of the resulting
    distribution.  Greedy (`temperature == 0`) takes the best token after the penalties and reports its log-probability
    under the penalised distribution at temperature 1; truncation cannot change the best token and is left out.

    Raises NonFiniteLogits.
    """
    raw = logits.float()
    best, sums, raw_total = _exponentials(raw)
    scores = _constrain(penalise(raw, histories, params), allowed)
    greedy = params.temperature == 0
    if not greedy:
        if params.temperature != 1:
            scores = scores / params.temperature
        scores = truncate(scores, params.top_k, params.top_p, params.min_p)
    total = raw_total
    if scores is not raw:
        best, sums, total = _exponentials(scores)
    if greedy:
        tokens = scores.argmax(-1, keepdim=True)
    else:
        tokens = _invert(scores, best, sums, torch.from_numpy(uniforms).to(raw.device))
        tokens = tokens.clamp_(max=raw.shape[1] - 1)  # where all is NaN
    logprobs = scores.gather(-1, tokens) - total
    model_logprobs = raw.gather(-1, tokens) - raw_total
    # The one place where the host waits for the device; logits that are not finite are found out here as well.
    packed = torch.cat([x.double() for x in (tokens, logprobs, model_logprobs, raw_total)], -1).cpu().numpy()
    chosen, of_choice, of_model, totals = packed.T
    if not np.isfinite(totals).all():
        raise NonFiniteLogits(int(np.flatnonzero(~np.isfinite(totals))[0]))
    top: list[list[tuple[int, float]]] = [[] for _ in packed]
    if params.top_logprobs:
        most = torch.topk(scores - total, min(params.top_logprobs, scores.shape[1]), dim=-1)
        top = [list(zip(*row, strict=True)) for row in zip(most.indices.tolist(), most.values.tolist(), strict=True)]
    return Choice(chosen.astype(np.int64), of_choice.astype(np.float32), of_model.astype(np.float32), top)


def _constrain(scores: torch.Tensor, allowed: Sequence[NDArray[np.bool_] | None] | None) -> torch.Tensor:
    if allowed is None or all(mask is None for mask in allowed):
        return scores
    masks = np.ones(scores.shape, np.bool_)
    for i, mask in enumerate(allowed):
        if mask is not None:
            masks[i] = mask
    return scores.masked_fill(~torch.from_numpy(masks).to(scores.device), float("-inf"))


def _exponentials(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Largest score f32[n, 1]; sums of exp(score - largest) by _BLOCK tokens f64[n, B]; log-sum-exp f32[n, 1].

    A vocabulary is large: one such pass serves the log-probabilities and the draw.
    """
    over = passes() if scores.device.type == "cpu" else None
    if over is not None:
        best, sums = over.exponential_sums(scores.contiguous(), _BLOCK)
    else:
        best = scores.amax(-1, keepdim=True)
        weights = F.pad((scores - best).exp_(), (0, -scores.shape[1] % _BLOCK))
        sums = weights.view(len(scores), -1, _BLOCK).sum(-1).double()
    return best, sums, (best.double() + sums.sum(-1, keepdim=True).log()).float()


def _invert(scores: torch.Tensor, best: torch.Tensor, sums: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """First token whose cumulative weight exceeds `uniform * total`: i64[n, 1].

    best, sums: as `_exponentials` gives them for `scores`.  uniforms: f64[n].

    In two levels, sums of blocks and then the tokens of one block: a running sum in fp64 over a whole vocabulary takes
    5 % of a decode step.
    """
    cumulative = sums.cumsum(-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    block = _first_above(cumulative, target)
    before = cumulative.gather(-1, (block - 1).clamp_(min=0)).masked_fill(block == 0, 0.0)
    tokens = block * _BLOCK + torch.arange(_BLOCK, device=scores.device)
    inside = scores.gather(1, tokens.clamp(max=scores.shape[1] - 1))
    weights = (inside - best).exp_().masked_fill_(tokens >= scores.shape[1], 0.0)
    return block * _BLOCK + _first_above(weights.cumsum(-1, dtype=torch.float64), target - before)


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """First index at which `cumulative` exceeds `target`, and never one without weight.  [n, m], [n, 1] -> [n, 1]."""
    index = torch.searchsorted(cumulative, target, right=True)
    # Rounding can lift the target to the total; the answer is then the last index that adds anything.
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False)
    return torch.minimum(index, last).clamp_(max=cumulative.shape[1] - 1)
