"""Decoding in fixed shapes: what a CUDA graph would hold, run on a CPU.

`Tape` stands for a graph: it records the operations of one forward on the tensors that they touch, and runs those again
without a line of the model's Python.  What came from the host at capture would come again at each replay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_engine_schedule import run
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine import Engine, RowFailed
from toolstep.agents.engine import attention as attention_module
from toolstep.agents.engine.blocks import BlockPool
from toolstep.agents.engine.decode import StaticDecode
from toolstep.agents.engine.graphs import Waits
from toolstep.agents.engine.packed import PackedModel
from toolstep.agents.engine.plan import Feed
from toolstep.agents.engine.spans import SpanTree
from toolstep.agents.engine.static import StaticPlan, bucket, numbers

LLAMA = em.model()
LONG = SamplingParams(max_new_tokens=40)


class Tape(TorchDispatchMode):
    def __init__(self, compute: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        with self:
            self.out = compute()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, out))
        return out

    def __call__(self) -> torch.Tensor:
        now: dict[int, Any] = {}

        def at(x: Any) -> Any:
            return now.get(id(x), x)

        for func, args, kwargs, out in self.operations:
            again = func(*tree_map(at, args), **tree_map(at, kwargs))
            now.update((id(old), new) for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True))
        result: torch.Tensor = at(self.out)
        return result


class Watched:
    """A static path that is switched on, compared with the general one at each step."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.packed, PackedModel)
        self.packed, self.static = engine.packed, engine.packed.static
        self.worst, self.steps, self.captured, self.tried = 0.0, 0, 0, 0
        self.sizes: set[tuple[int, int]] = set()
        self.static.on = True
        self._forward, self._try = self.static.forward, self.static._try
        self.static.capture = self.capture
        self.static.forward = self.forward  # type: ignore[method-assign]
        self.static._try = self.trial  # type: ignore[method-assign]

    def capture(self, compute: Callable[[], torch.Tensor]) -> Tape:
        self.captured += 1
        return Tape(compute)

    def trial(self, size: int) -> None:
        self.tried += 1
        self._try(size)

    def forward(self, pool: BlockPool, feeds: Any, wanted: Any) -> torch.Tensor | None:
        logits = self._forward(pool, feeds, wanted)
        if logits is None:
            return None
        logits = logits.clone()
        self.steps += 1
        self.sizes |= set(self.static._steps)
        general = self.packed.general(pool, feeds, wanted)
        assert logits.shape == general.shape
        if logits.numel():
            self.worst = max(self.worst, float((logits - general).abs().max()))
        return logits


def begin(engine: Engine, contexts: list[np.ndarray]) -> list[int]:
    for row, context in enumerate(contexts):
        engine.start(row, row)
        engine.extend(row, context)
    return list(range(len(contexts)))


@pytest.mark.parametrize("family", em.FAMILIES)
def test_logits_equal_those_of_the_general_path_while_rows_share_and_grow(family: str) -> None:
    """Five ragged rows behind one prefix, three turns with observations, tables that outgrow their size."""
    engine = Engine(em.model(family), share_min=8, verify=False)
    watched = Watched(engine)
    rows = begin(engine, [np.concatenate([em.ids(99, 23), em.ids(i, 2 + 9 * i)]) for i in range(5)])
    for turn in range(3):
        engine.generate(rows, LONG)
        for row in rows:
            engine.extend(row, em.ids(row + turn, 3))
    assert watched.worst <= 1e-5
    assert watched.steps == 3 * 39  # all but the steps with prompts and observations
    assert watched.sizes >= {(6, 4), (6, 6), (6, 8)}
    assert watched.captured < 20  # the rest was replayed


@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_schedule_decoded_in_fixed_shapes_samples_what_a_row_alone_would(data: st.DataObject) -> None:
    """Forks, cancels, and a budget that preempts, with blocks of four cells."""
    model = em.model(data.draw(st.sampled_from(["llama", "mistral"])), num_hidden_layers=1)
    budget = data.draw(st.sampled_from([None, 120]))
    engine = Engine(model, verify=False, share_min=4, block=4, chunk=16, kv_tokens=budget, max_context=100)
    watched = Watched(engine)
    run(engine, model, data)
    assert watched.worst <= 1e-5
    assert not watched.static._refused


def test_preempted_rows_go_on_in_fixed_shapes() -> None:
    contexts = [em.ids(i, 20) for i in range(6)]
    free = Engine(LLAMA, verify=False, block=4)
    tight = Engine(LLAMA, verify=False, block=4, kv_tokens=200)
    watched = Watched(tight)
    expected = free.generate(begin(free, contexts), LONG)
    for turn, other in zip(tight.generate(begin(tight, contexts), LONG), expected, strict=True):
        assert turn.token_ids.tolist() == other.token_ids.tolist()
    assert tight.stats.preemptions > 0
    assert watched.steps > 20
    assert watched.worst <= 1e-5


def test_forks_read_the_cells_of_the_row_that_they_came_from() -> None:
    engine = Engine(LLAMA, verify=False)
    watched = Watched(engine)
    engine.generate(begin(engine, [em.ids(0, 40)]), LONG)
    engine.fork(0, [1, 2], [7, 8])
    for row in range(3):
        engine.extend(row, em.ids(row, 2))
    turns = engine.generate(range(3), LONG)
    for row, turn in enumerate(turns):
        plain = em.full_forward(engine.packed.model, engine.context(row))[-41:-1]
        expected = [em.log_softmax(p)[t] for p, t in zip(plain, turn.token_ids, strict=True)]
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)
    assert watched.steps == 39 + 39
    assert watched.worst <= 1e-5


def decoding(packed: PackedModel, lengths: list[int]) -> tuple[SpanTree, list[Feed]]:
    """Contexts behind a common one of 20 ids, and feeds of each one's last id."""
    tree = SpanTree(BlockPool(8))
    trunk = tree.hold(tree.add(None, 0, em.ids(5, 20)))
    rows = [tree.hold(tree.add(trunk, 20, em.ids(i, n))) for i, n in enumerate(lengths)]
    for span in (trunk, *rows):
        tree.grow(span, len(span.ids))
    packed.general(tree.pool, [Feed(trunk, 0, 20), *(Feed(r, 0, len(r.ids) - 1) for r in rows)], [])
    return tree, [Feed(r, len(r.ids) - 1, 1) for r in rows]


def test_rows_and_blocks_that_only_pad_change_nothing() -> None:
    packed = PackedModel(LLAMA)
    static = StaticDecode(packed)
    with packed.rollout_mode():
        tree, feeds = decoding(packed, [3, 30, 11])
        tables, longest = numbers(tree.pool, feeds)
        plain = packed.general(tree.pool, feeds, [0, 1, 2])
        cells = [[t.clone() for t in pair] for pair in tree.pool._layers.values()]
        for rows, width in ((3, longest), (4, longest), (16, longest), (4, 24), (16, 24)):
            plan = StaticPlan(tree.pool, rows, width, packed.device)
            plan.fill(feeds, tables)
            logits = static._compute(plan)
            assert logits.shape == (rows, em.VOCABULARY)
            assert torch.allclose(logits[:3], plain, atol=1e-5)
            now = tree.pool._layers.values()
            assert all(torch.allclose(a, b, atol=1e-5) for x, y in zip(cells, now) for a, b in zip(x, y))


def test_a_plan_that_is_filled_again_forgets_the_longer_rows_before() -> None:
    packed = PackedModel(LLAMA)
    static = StaticDecode(packed)
    with packed.rollout_mode():
        tree, feeds = decoding(packed, [40, 3, 11])
        plan = StaticPlan(tree.pool, 4, 12, packed.device)
        for some in (feeds, feeds[1:], feeds[:0:-1], feeds[:1]):
            plan.fill(some, numbers(tree.pool, some)[0])
            plain = packed.general(tree.pool, some, list(range(len(some))))
            assert torch.allclose(static._compute(plan)[: len(some)], plain, atol=1e-5)


def test_sizes_are_few_and_waste_less_than_half() -> None:
    sizes = {count: bucket(count) for count in range(1, 1000)}
    assert all(count <= size and (size <= 4 or size < 1.5 * count) for count, size in sizes.items())
    assert sorted(set(sizes.values()))[:8] == [4, 6, 8, 12, 16, 24, 32, 48]


def test_a_step_reads_nothing_from_the_device_but_the_drawn_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(LLAMA, verify=False)
    watched = Watched(engine)
    rows = begin(engine, [em.ids(i, 30 + i) for i in range(3)])
    tickets = [engine.submit(row, [], LONG) for row in rows]
    for _ in range(6):
        engine.step()
    engine.packed.static.forward = watched._forward  # type: ignore[union-attr,method-assign]
    reads: list[str] = []
    for name in ("item", "tolist", "cpu", "nonzero", "__bool__", "__int__", "__float__", "numpy"):
        real = getattr(torch.Tensor, name)

        def noted(self: torch.Tensor, *args: Any, _real: Any = real, _name: str = name) -> Any:
            reads.append(_name)
            return _real(self, *args)

        monkeypatch.setattr(torch.Tensor, name, noted)
    with Waits() as waits:
        for _ in range(5):
            engine.step()
    assert reads == ["cpu", "numpy"] * 5
    assert waits.found == []
    assert len(engine.partial(tickets[0]).token_ids) == 11


def test_steps_with_a_prompt_take_the_general_path() -> None:
    engine = Engine(LLAMA, verify=False)
    watched = Watched(engine)
    begin(engine, [em.ids(0, 30), em.ids(1, 30)])
    engine.submit(0, [], LONG)
    for _ in range(4):
        engine.step()
    engine.submit(1, [], LONG)
    engine.step()
    assert (watched.steps, engine.stats.forwards) == (3, 5)
    engine.step()
    assert (watched.steps, engine.stats.forwards) == (4, 6)


@pytest.mark.parametrize("way", ["waits", "differs", "fails"])
def test_what_cannot_be_believed_or_captured_is_left_to_the_general_path_and_said_once(
    way: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = em.model("mixtral")
    engine = Engine(model, verify=False)
    watched = Watched(engine)
    if way == "waits":
        model.set_experts_implementation("eager")  # looks for the experts that were hit
    elif way == "differs":
        real = attention_module._static
        monkeypatch.setattr(attention_module, "_static", lambda *args: 1.01 * real(*args))
    else:

        def capture(compute: Callable[[], torch.Tensor]) -> Any:
            raise torch.cuda.OutOfMemoryError("no memory for a graph\nand more")

        engine.packed.static.capture = capture  # type: ignore[union-attr]
    with caplog.at_level(logging.INFO, "toolstep"):
        rows = begin(engine, [em.ids(i, 9) for i in range(2)])
        engine.generate(rows, LONG)
        engine.update_weights()
        turns = engine.generate(rows, SamplingParams(max_new_tokens=6))
    said = [r.getMessage() for r in caplog.records if "general path" in r.getMessage()]
    assert len(said) == 1
    assert {"waits": "cannot be captured (aten.", "differs": "logits differ", "fails": "no memory for a graph"}[
        way
    ] in said[0]
    assert watched.steps == 0
    for row, turn in enumerate(turns):
        plain = em.full_forward(model, engine.context(row))[-7:-1]
        expected = [em.log_softmax(p)[t] for p, t in zip(plain, turn.token_ids, strict=True)]
        assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def test_new_weights_in_the_same_place_are_not_tried_again_and_are_in_the_next_samples() -> None:
    model = em.model()
    engine = Engine(model, verify=False)
    watched = Watched(engine)
    rows = begin(engine, [em.ids(i, 9) for i in range(2)])
    engine.generate(rows, LONG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    engine.update_weights()
    engine.generate(rows, LONG)
    assert (watched.tried, watched.static._refused) == (1, "")
    assert watched.worst <= 1e-5
    engine.update_weights({name: 0.9 * tensor for name, tensor in model.state_dict().items()})
    engine.generate(rows, LONG)
    assert watched.tried == 1
    assert watched.worst <= 1e-5


def test_what_broken_weights_made_look_wrong_is_tried_again_with_the_next_ones() -> None:
    model = em.model()
    engine = Engine(model, verify=False)
    watched = Watched(engine)
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine.update_weights({name: tensor * float("nan") for name, tensor in good.items()})
    rows = begin(engine, [em.ids(0, 9)])
    with pytest.raises(RowFailed):
        engine.generate(rows, LONG)
    with engine.packed.rollout_mode():
        tree, feeds = decoding(watched.packed, [3])
        assert watched.static.forward(tree.pool, feeds, [0]) is None
    engine.update_weights(good)
    engine.generate(rows, LONG)
    assert (watched.static._refused, watched.steps) == ("", 39)


def test_weights_of_another_dtype_are_tried_again() -> None:
    model = em.model()
    engine = Engine(model, verify=False)
    watched = Watched(engine)
    rows = begin(engine, [em.ids(i, 9) for i in range(2)])
    engine.generate(rows, LONG)
    model.to(torch.bfloat16)
    engine.update_weights()
    engine.generate(rows, LONG)
    assert (watched.tried, watched.static._refused, watched.steps) == (2, "", 2 * 39)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_adapter_that_is_switched_off_is_not_in_a_captured_step() -> None:
    peft = pytest.importorskip("peft", reason="needs the extra `lora` (pip install 'toolstep[lora]')")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(em.model(), config).eval()
    engine = Engine(model, verify=False, pack=False)  # packed layers would be what a graph has on a CPU alone
    watched = Watched(engine)
    rows = begin(engine, [em.ids(i, 9) for i in range(2)])
    engine.generate(rows, LONG)
    engine.update_weights()
    engine.generate(rows, LONG)
    assert watched.tried == 1
    with model.disable_adapter():
        engine.update_weights()
        engine.generate(rows, LONG)
    assert watched.tried == 2
    assert watched.steps == 3 * 39
    assert watched.worst <= 1e-5


def test_off_the_cpu_new_weights_leave_keys_and_values_where_they_were() -> None:
    """Captured graphs know addresses; `meta` stands for such a device."""
    pool = BlockPool(4)

    def tensors(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        new = torch.empty(2, 3, 8, device="meta", dtype=dtype)
        return pool.tensors(0, new, new)[0]

    pool.take(3)
    with torch.inference_mode():
        first = tensors()
    version = pool.version
    pool.clear(keep=True)
    assert not pool.covers
    pool.take(2)
    assert tensors() is first
    assert (pool.version, pool.covers) == (version, True)
    pool.clear(keep=True)
    pool.clear(keep=True)  # nothing was computed in between
    pool.take(1)
    assert tensors() is first
    pool.clear(keep=True)
    pool.take(65)
    assert tensors() is not first  # there was no room
    assert pool.version != version
    version, second = pool.version, tensors()
    pool.clear(keep=True)
    assert tensors(torch.bfloat16) is not second
    assert pool.version != version
    version = pool.version
    pool.clear()
    assert pool.version != version
    assert BlockPool(4).version != BlockPool(4).version
