"""Attention of one packed forward over the block pool.

The model runs on `[1, T]` packed new tokens of all rows: no padding anywhere, and every linear layer sees one dense
matrix.  Only attention has to know which token belongs to which context, and transformers lets a caller replace exactly
that function (`AttentionInterface`).  The function registered here receives the new tokens' q, k and v after the rotary
embedding, writes k and v to the pool, and attends over the pool.  transformers builds no mask for an implementation
that has no mask function of the same name (`masking_utils._preprocess_mask_arguments`), so masks are made here, from
lengths alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from toolstep.agents.engine.kernels import attention_kernel
from toolstep.agents.engine.plan import Plan
from toolstep.agents.engine.static import StaticPlan

IMPLEMENTATION = "toolstep"
_MASK_ELEMENTS = 1 << 24  # queries of a segment are taken in parts, so that no mask is larger than this


class UnsupportedModel(ValueError):
    """The model keeps state, or attends, in a way that the engine cannot reproduce."""


class Shape(NamedTuple):
    """What the scores of a layer are made with."""

    scale: float
    window: int
    softcap: float | None
    sinks: torch.Tensor | None  # [H]: one extra logit a head that takes probability and gives no value (gpt-oss)


class _Active(threading.local):
    plan: Plan | None = None
    static: StaticPlan | None = None
    shapes: dict[int, Shape] | None = None


_ACTIVE = _Active()


def active_plan() -> Plan | None:
    """The plan of the forward that this thread is in."""
    return _ACTIVE.plan


@contextmanager
def noted() -> Iterator[dict[int, Shape]]:
    """Note how each layer that attends meanwhile does it, by its number."""
    out: dict[int, Shape] = {}
    _ACTIVE.shapes = out
    try:
        yield out
    finally:
        _ACTIVE.shapes = None


@contextmanager
def active(plan: Plan) -> Iterator[None]:
    """Make `plan` the one that attention calls of this thread belong to."""
    _ACTIVE.plan = plan
    try:
        yield
    finally:
        _ACTIVE.plan = None


@contextmanager
def active_static(plan: StaticPlan) -> Iterator[None]:
    """As `active`, for a step of fixed shape; the layers run by the model's own code."""
    _ACTIVE.static = plan
    try:
        yield
    finally:
        _ACTIVE.static = None


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function registered with transformers.  query [1, H, T, D], key/value [1, Hkv, T, D] -> [1, T, H, Dv]."""
    plan: Plan | StaticPlan | None = _ACTIVE.plan or _ACTIVE.static
    if plan is None:
        raise RuntimeError(
            f"attention implementation {IMPLEMENTATION!r} works inside the rollout engine only; "
            "call model.set_attn_implementation('sdpa') to run the model by itself"
        )
    if kwargs.get("position_bias") is not None or not getattr(module, "is_causal", True):
        raise UnsupportedModel(
            f"{type(module).__name__}: attention with a position bias, or without a causal mask, is not supported"
        )
    layer = getattr(module, "layer_idx", None)
    if layer is None or query.shape[0] != 1 or query.shape[2] != plan.blocks.shape[0]:
        raise UnsupportedModel(f"{type(module).__name__}: not a plain causal self-attention layer")
    keys, values = plan.pool.tensors(layer, key[0], value[0])
    shape = Shape(
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        int(kwargs.get("sliding_window") or 0),
        kwargs.get("softcap"),
        kwargs.get("s_aux"),
    )
    if _ACTIVE.shapes is not None:
        _ACTIVE.shapes[layer] = shape
    q, k, v = query[0], key[0], value[0]
    if isinstance(plan, StaticPlan):
        return _static(plan, (q, k, v), keys, values, shape).unsqueeze(0), None
    out = q.new_empty(q.shape[1], q.shape[0], values.shape[3])
    plain = shape.softcap is None and shape.sinks is None
    kernel = attention_kernel(q, keys, values) if plain else None
    if kernel is not None:
        kernel(plan, (q, k, v), (keys, values), shape.scale, shape.window, out)
    else:
        keys[plan.blocks, :, :, plan.cells] = k.transpose(0, 1)
        values[plan.blocks, :, plan.cells] = v.transpose(0, 1)
        if n := plan.singles:
            out[:n] = _rows(plan, q[:, :n].transpose(0, 1), keys, values, shape)
        for index in range(len(plan.segments)):
            _segment(plan, index, q, keys, values, shape, out)
    return out.unsqueeze(0), None


def _rows(plan: Plan, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, shape: Shape) -> torch.Tensor:
    """One query a row.  q [n, H, D] -> [n, H, Dv].

    Two products over blocks, not over rows: no row is padded to the longest one, and a block that several contexts
    share is read once, for the queries of all of them.  The softmax of a row is put together from its blocks' parts.
    """
    n, heads, width = q.shape
    kv = keys.shape[1]
    groups = heads // kv
    q = F.pad(q.reshape(n, kv, groups, width), (0, 0, 0, 0, 0, 0, 0, 1))  # a row of zeros for nobody
    top = q.new_full((n + 1, kv, groups), -1e30, dtype=torch.float32)
    if shape.sinks is not None:
        top[:] = shape.sinks.float().view(kv, groups)
    scores: list[torch.Tensor] = []
    for index, readers in enumerate(plan.readers()):
        blocks, readers_of = readers.queries.shape
        stacked = q[readers.queries].transpose(1, 2).reshape(blocks, kv, readers_of * groups, width)
        part = torch.matmul(stacked, keys[readers.blocks]).float() * shape.scale
        if shape.softcap is not None:
            part = torch.tanh(part / shape.softcap) * shape.softcap
        part = part.view(blocks, kv, readers_of, groups, -1)
        part = part.masked_fill_(~plan.readers_mask(index, shape.window), float("-inf"))
        best = part.amax(-1).transpose(1, 2).reshape(-1, kv, groups)
        top.scatter_reduce_(0, readers.queries.view(-1, 1, 1).expand_as(best), best, "amax")
        scores.append(part)
    total = torch.zeros_like(top)
    if shape.sinks is not None:
        total += torch.exp(shape.sinks.float().view(kv, groups) - top)
    out = q.new_zeros(n + 1, kv, groups, values.shape[3], dtype=torch.float32)
    for part, readers in zip(scores, plan.readers(), strict=True):
        blocks, readers_of = readers.queries.shape
        weights = part.sub_(top[readers.queries].transpose(1, 2)[..., None]).exp_()
        owner = readers.queries.view(-1)
        total.index_add_(0, owner, weights.sum(-1).transpose(1, 2).reshape(-1, kv, groups))
        mixed = torch.matmul(weights.view(blocks, kv, readers_of * groups, -1).to(q.dtype), values[readers.blocks])
        mixed = mixed.view(blocks, kv, readers_of, groups, -1).transpose(1, 2).reshape(-1, kv, groups, mixed.shape[-1])
        out.index_add_(0, owner, mixed.float())
    return (out[:n] / total[:n, ..., None]).to(q.dtype).view(n, heads, -1)


def _static(
    plan: StaticPlan, new: tuple[torch.Tensor, ...], keys: torch.Tensor, values: torch.Tensor, shape: Shape
) -> torch.Tensor:
    """One query a row, all shapes known beforehand.  new: q [H, R, D], k, v [Hkv, R, ..] -> [R, H, Dv].

    Each row's blocks are gathered, and multiplied block by block: the keys' layout needs no second copy.
    """
    q, k, v = (x.transpose(0, 1) for x in new)
    keys[plan.blocks, :, :, plan.cells] = k
    values[plan.blocks, :, plan.cells] = v
    rows, heads, width = q.shape
    kv = keys.shape[1]
    groups = heads // kv
    scores = torch.matmul(q.reshape(rows, 1, kv, groups, width), keys[plan.tables]).float() * shape.scale
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.masked_fill(plan.hidden(shape.window)[:, :, None, None], float("-inf"))
    top = scores.amax((1, 4), keepdim=True)  # a row looks at its own cell at least: never -inf
    if shape.sinks is not None:
        sinks = shape.sinks.float().view(1, 1, kv, groups, 1)
        top = torch.maximum(top, sinks)
    weights = torch.exp(scores - top)
    total = weights.sum((1, 4), keepdim=True)
    if shape.sinks is not None:
        total = total + torch.exp(sinks - top)
    mixed = torch.matmul(weights.to(q.dtype), values[plan.tables]).float().sum(1)  # [R, Hkv, G, Dv]
    return (mixed / total.squeeze(1)).to(q.dtype).reshape(rows, heads, -1)


def _segment(
    plan: Plan,
    index: int,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    shape: Shape,
    out: torch.Tensor,
) -> None:
    """Several new tokens of one context.  q [H, T, D]; writes out[T, H, Dv] at the segment's packed indices."""
    segment = plan.segments[index]
    heads, kv = q.shape[0], keys.shape[1]
    groups = heads // kv
    # Query heads that share a kv head become extra query positions: grouped attention without repeating the keys.
    k = keys[segment.blocks].permute(1, 0, 3, 2).reshape(1, kv, -1, keys.shape[2])
    v = values[segment.blocks].permute(1, 0, 2, 3).reshape(1, kv, -1, values.shape[3])
    size = plan.pool.size
    part = max(16, _MASK_ELEMENTS // (groups * k.shape[2]))
    for first in range(0, segment.length, part):
        rows = min(part, segment.length - first)
        # Blocks that begin behind the last query of the part hold nothing for it.
        used = int((segment.table.base <= segment.first + first + rows - 1).sum())
        mask = plan.segment_mask(index, shape.window, first, rows, used)
        start = segment.start + first
        o = _attend(
            q[:, start : start + rows].reshape(1, kv, groups * rows, -1),
            k[:, :, : used * size],
            v[:, :, : used * size],
            mask.repeat(groups, 1) if groups > 1 else mask,
            shape,
        )
        out[start : start + rows] = o.reshape(heads, rows, -1).transpose(0, 1)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, shape: Shape) -> torch.Tensor:
    """q [1, Hkv, R, D], k [1, Hkv, L, D], v [1, Hkv, L, Dv], mask bool [R, L] -> [1, Hkv, R, Dv].

    R counts query groups first: head `g` of a kv head, then position.
    """
    if shape.softcap is None and shape.sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=shape.scale)
    scores = torch.matmul(q, k.transpose(2, 3)).float() * shape.scale
    if shape.softcap is not None:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    if shape.sinks is not None:
        groups = shape.sinks.shape[0] // q.shape[1]
        sink = shape.sinks.float().reshape(1, q.shape[1], groups, 1, 1)
        sink = sink.expand(q.shape[0], -1, -1, q.shape[2] // groups, 1).reshape(*q.shape[:3], 1)
        scores = torch.cat((scores, sink), -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]]
    return torch.matmul(weights.to(v.dtype), v)
