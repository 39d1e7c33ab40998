"""Attention of one packed forward over the KV store.

The model runs on `[1, T]` packed new tokens of all rows: no padding anywhere, and every linear layer sees one
dense matrix.  Only attention has to know which token belongs to which row, and transformers lets a caller
replace exactly that function (`AttentionInterface`).  The function registered here receives the new tokens'
q, k and v after the rotary embedding, writes k and v to the store, and attends over the store.  transformers
builds no mask for an implementation that has no mask function of the same name
(`masking_utils._preprocess_mask_arguments`), so masks are made here, from lengths alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from toolstep.agents.engine.cache import KVStore

IMPLEMENTATION = "toolstep"
_MASK_ELEMENTS = 1 << 24  # queries are taken in blocks, so that no mask is larger than this


class Feed(NamedTuple):
    """New tokens of one row: its slot, how many cells precede them, how many they are."""

    slot: int
    past: int
    new: int


class _Run(NamedTuple):
    """Rows with one new token each, in neighbouring slots: one call, and a view of the store instead of a
    copy.
    """

    start: int  # first packed index
    slot: int
    lengths: tuple[int, ...]  # cells to attend to, the new one included


@dataclass
class Plan:
    """Where the packed tokens of one forward go.

    Single-token feeds come first, ordered by slot (see `pack_order`).  Index tensors are built once and serve
    all layers; masks are cached by sliding window, of which a model has one or two.
    """

    store: KVStore
    slots: torch.Tensor  # i64[T]
    cells: torch.Tensor  # i64[T]
    runs: list[_Run]
    segments: list[tuple[int, Feed]]  # packed start, feed of more than one token
    masks: dict[tuple[int, int, int], torch.Tensor | None] = field(default_factory=dict)

    @classmethod
    def build(cls, store: KVStore, feeds: Sequence[Feed], device: torch.device) -> Plan:
        slots: list[int] = []
        cells: list[int] = []
        runs: list[_Run] = []
        segments: list[tuple[int, Feed]] = []
        for feed in feeds:
            start = len(slots)
            slots.extend([feed.slot] * feed.new)
            cells.extend(range(feed.past, feed.past + feed.new))
            if feed.new > 1:
                segments.append((start, feed))
            elif runs and feed.slot == runs[-1].slot + len(runs[-1].lengths):
                last = runs[-1]
                runs[-1] = last._replace(lengths=(*last.lengths, feed.past + 1))
            else:
                runs.append(_Run(start, feed.slot, (feed.past + 1,)))
        return cls(
            store,
            torch.tensor(slots, device=device),
            torch.tensor(cells, device=device),
            runs,
            segments,
        )

    def run_mask(self, index: int, window: int, device: torch.device) -> torch.Tensor | None:
        """bool [n, 1, 1, L], True where a row may look; None where each may look everywhere."""
        key = (0, index, window)
        if key not in self.masks:
            lengths = self.runs[index].lengths
            if len(set(lengths)) == 1 and not (window and window < lengths[0]):
                self.masks[key] = None
            else:
                last = torch.tensor(lengths, device=device)[:, None, None, None]
                cell = torch.arange(max(lengths), device=device)
                mask = cell < last
                self.masks[key] = mask & (cell >= last - window) if window else mask
        return self.masks[key]

    def segment_mask(
        self, index: int, window: int, first: int, rows: int, groups: int, device: torch.device
    ) -> torch.Tensor:
        """bool [groups * rows, L] for queries first..first+rows-1 of a segment, repeated for each query
        group.
        """
        past = self.segments[index][1].past
        query = torch.arange(past + first, past + first + rows, device=device)[:, None]
        cell = torch.arange(past + first + rows, device=device)
        mask = cell <= query
        if window:
            mask &= cell > query - window
        return mask.repeat(groups, 1)


def pack_order(feeds: Sequence[Feed]) -> list[int]:
    """Order in which feeds are packed: single tokens by slot (so that runs are long), then longer feeds."""
    return sorted(range(len(feeds)), key=lambda i: (feeds[i].new > 1, feeds[i].slot))


class _Active(threading.local):
    plan: Plan | None = None


_ACTIVE = _Active()


@contextmanager
def active(plan: Plan) -> Iterator[None]:
    """Make `plan` the one that attention calls of this thread belong to."""
    _ACTIVE.plan = plan
    try:
        yield
    finally:
        _ACTIVE.plan = None


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
    """The function registered with transformers.  query [1, H, T, D], key/value [1, Hkv, T, D] -> [1, T, H,
    Dv].
    """
    plan = _ACTIVE.plan
    if plan is None:
        raise RuntimeError(
            f"attention implementation {IMPLEMENTATION!r} works inside the rollout engine only; "
            "call model.set_attn_implementation('sdpa') to run the model by itself"
        )
    if kwargs.get("position_bias") is not None or not getattr(module, "is_causal", True):
        raise NotImplementedError(
            f"{type(module).__name__}: attention with a position bias, or without a causal mask, is not supported"
        )
    layer = getattr(module, "layer_idx", None)
    if layer is None or query.shape[0] != 1 or query.shape[2] != plan.slots.shape[0]:
        raise NotImplementedError(f"{type(module).__name__}: not a plain causal self-attention layer")
    keys, values = plan.store.write(layer, key[0], value[0], plan.slots, plan.cells)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = int(kwargs.get("sliding_window") or 0)
    sinks = kwargs.get("s_aux")
    softcap = kwargs.get("softcap")
    q = query[0]
    heads, kv_heads = q.shape[0], keys.shape[1]
    groups = heads // kv_heads
    out = q.new_empty(q.shape[1], heads, values.shape[3])
    for index, run in enumerate(plan.runs):
        # Query heads that share a kv head become extra query positions: grouped attention without repeating
        # the store.
        n, length = len(run.lengths), max(run.lengths)
        stop = run.start + n
        o = _attend(
            q[:, run.start : stop].transpose(0, 1).reshape(n, kv_heads, groups, -1),
            keys[run.slot : run.slot + n, :, :length],
            values[run.slot : run.slot + n, :, :length],
            plan.run_mask(index, window, q.device),
            scale,
            softcap,
            sinks,
        )
        out[run.start : stop] = o.reshape(n, heads, -1)
    for index, (start, feed) in enumerate(plan.segments):
        block = max(16, _MASK_ELEMENTS // (groups * (feed.past + feed.new)))
        for first in range(0, feed.new, block):
            rows = min(block, feed.new - first)
            length = feed.past + first + rows
            a = start + first
            o = _attend(
                q[:, a : a + rows].reshape(1, kv_heads, groups * rows, -1),
                keys[feed.slot : feed.slot + 1, :, :length],
                values[feed.slot : feed.slot + 1, :, :length],
                _cached_segment_mask(plan, index, window, first, rows, groups, q.device),
                scale,
                softcap,
                sinks,
            )
            out[a : a + rows] = o.reshape(heads, rows, -1).transpose(0, 1)
    return out.unsqueeze(0), None


def _cached_segment_mask(
    plan: Plan, index: int, window: int, first: int, rows: int, groups: int, device: torch.device
) -> torch.Tensor:
    if rows != plan.segments[index][1].new:  # blocks of a long segment: too large to keep
        return plan.segment_mask(index, window, first, rows, groups, device)
    key = (groups, index, window)
    mask = plan.masks.get(key)
    if mask is None:
        mask = plan.masks[key] = plan.segment_mask(index, window, first, rows, groups, device)
    return mask


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q [B, Hkv, R, D], k [B, Hkv, L, D], v [B, Hkv, L, Dv], mask broadcastable to [B, Hkv, R, L] -> [B, Hkv,
    R, Dv].

    R counts query groups first: head `g` of a kv head, then position.
    """
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = torch.matmul(q, k.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:  # one extra logit a head that takes probability and gives no value (gpt-oss)
        groups = sinks.shape[0] // q.shape[1]
        sink = sinks.float().reshape(1, q.shape[1], groups, 1, 1)
        sink = sink.expand(q.shape[0], -1, -1, q.shape[2] // groups, 1).reshape(*q.shape[:3], 1)
        scores = torch.cat((scores, sink), -1)
    weights = torch.softmax(scores, -1)[..., : k.shape[2]]
    return torch.matmul(weights.to(v.dtype), v)
