"""Compiled attention against the plain one: rows that share blocks, or parts of them, and every way to cut them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from toolstep.agents.engine.attention import Shape, _rows, _segment
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.kernels import attention_for
from toolstep.agents.engine.plan import Feed, Plan, pack_order
from toolstep.agents.engine.spans import SpanTree

SIZE, WIDTH, KV = 32, 32, 2


def feeds_of(tree: SpanTree) -> list[Feed]:
    """Rows behind one prompt, in the middle of it, behind one another, by themselves; one new token or several."""
    trunk = tree.hold(tree.add(None, 0, [0] * 70, frozen=True))
    deep = tree.hold(tree.add(trunk, 70, [0] * 40, frozen=True))
    places = [(trunk, 70, 1), (trunk, 70, 50), (trunk, 70, 33), (trunk, 70, 5), (trunk, 70, 31)]
    places += [(trunk, 40, 7), (trunk, 40, 36), (trunk, 32, 3), (trunk, 64, 1)]
    places += [(deep, 110, 2), (deep, 110, 64), (deep, 75, 9), (None, 0, 1), (None, 0, 100)]
    feeds = []
    for number, (parent, start, length) in enumerate(places):
        span = tree.hold(tree.add(parent, start, [0] * length))
        new = 1 if number % 3 else min(length, 11)
        feeds.append(Feed(span, length - new, new))
    for span in (trunk, deep, *(feed.span for feed in feeds)):
        tree.grow(span, len(span.ids))
    return [feeds[i] for i in pack_order(feeds)]


@pytest.mark.parametrize("window", [0, 20, 64])
@pytest.mark.parametrize("groups", range(1, 9))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_attention_is_the_plain_one(groups: int, window: int, dtype: torch.dtype) -> None:
    kernel = attention_for(WIDTH, groups, SIZE)
    if kernel is None:
        pytest.skip("there is no C++ compiler")
    pool = BlockPool(SIZE)
    feeds = feeds_of(SpanTree(pool))
    plan = Plan.build(pool, feeds, torch.device("cpu"))
    count = sum(feed.length for feed in feeds)
    draw = torch.Generator().manual_seed(groups)
    query, key, value = (torch.randn(n, count, WIDTH, generator=draw).to(dtype) for n in (KV * groups, KV, KV))
    keys, values = pool.tensors(0, key, value)
    for cells in (keys, values):
        cells.copy_(torch.randn(cells.shape, generator=draw))
    before = keys.clone(), values.clone()
    out = torch.full((count, KV * groups, WIDTH), torch.nan, dtype=dtype)
    kernel(plan, (query, key, value), (keys, values), WIDTH**-0.5, window, out)

    plain_keys, plain_values = before
    plain_keys[plan.blocks, :, :, plan.cells] = key.transpose(0, 1)
    plain_values[plan.blocks, :, plan.cells] = value.transpose(0, 1)
    assert torch.equal(keys, plain_keys)
    assert torch.equal(values, plain_values)
    shape = Shape(WIDTH**-0.5, window, None, None)
    wide = [x.float() for x in (query, plain_keys, plain_values)]
    expected = torch.empty(count, KV * groups, WIDTH)
    expected[: plan.singles] = _rows(plan, wide[0][:, : plan.singles].transpose(0, 1), wide[1], wide[2], shape)
    for index in range(len(plan.segments)):
        _segment(plan, index, *wide, shape, expected)
    assert np.allclose(out.float(), expected, atol=1e-5 if dtype == torch.float32 else 2e-2)
