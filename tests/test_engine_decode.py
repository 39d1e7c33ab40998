"""What the engine samples and reports, against a plain full forward of the same model."""

from __future__ import annotations

from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.agents.base import Completion, SamplingParams
from toolstep.agents.engine import Engine, RowFailed, UnsupportedModel

LLAMA = em.model()


def check(engine: Engine, model: Any, row: int, completion: Completion, sampled: list[int], p: SamplingParams) -> None:
    """The row's last turn against one forward over its whole context; `sampled`: ids of its earlier turns."""
    context = engine.context(row)
    n = len(completion.token_ids)
    assert n > 0
    assert completion.token_ids.tolist() == context[-n:].tolist()
    plain = em.full_forward(model, context)[len(context) - n - 1 : -1]
    for k in range(n):
        token = context[len(context) - n + k]
        expected = em.slow_logprobs(plain[k], [*sampled, *completion.token_ids[:k].tolist()], p)
        assert completion.logprobs[k] == pytest.approx(expected[token], abs=1e-4)
        assert completion.model_logprobs[k] == pytest.approx(em.log_softmax(plain[k])[token], abs=1e-4)


@pytest.mark.parametrize("family", em.FAMILIES)
def test_every_logprob_equals_a_full_forward_over_turns_of_ragged_rows(family: str) -> None:
    """Rows of different lengths, a shared prefix, three turns with observations, rows that end at different times."""
    model = em.model(family)
    engine = Engine(model, share_min=8, chunk=50)
    prefix = em.ids(99, 23)
    plain = SamplingParams(max_new_tokens=7)
    shaped = SamplingParams(
        temperature=0.7, top_k=40, top_p=0.9, frequency_penalty=0.6, penalty_window=5, max_new_tokens=4
    )
    params = [plain, shaped, SamplingParams(max_new_tokens=11), shaped, plain]
    rows = [3, 0, 7, 1, 4]
    stops = set(range(0, em.VOCABULARY, 6))
    sampled: dict[int, list[int]] = {row: [] for row in rows}
    for i, row in enumerate(rows):
        engine.start(row, seed=i)
        engine.extend(row, np.concatenate([prefix, em.ids(i, 2 + 9 * i)]))
    lengths = set()
    for turn in range(3):
        who = rows if turn != 1 else rows[1:4]  # the second turn leaves two rows out
        which = [rows.index(row) for row in who]
        for row, i, completion in zip(who, which, engine.generate(who, [params[i] for i in which], stops)):
            check(engine, model, row, completion, sampled[row], params[i])
            sampled[row] += completion.token_ids.tolist()
            lengths.add(len(completion.token_ids))
            assert completion.finish_reason == ("stop" if completion.token_ids[-1] in stops else "length")
            engine.extend(row, em.ids(100 + 10 * turn + i, 1 + 3 * i))
    assert len(lengths) > 3  # rows did end at different times


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_the_seed_alone_decides_what_a_row_samples(data: st.DataObject) -> None:
    """Any subset, order and row numbers, in one batch or one by one: the same ids."""
    seeds = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True))
    order = data.draw(st.permutations(range(len(seeds))))
    temperature = data.draw(st.sampled_from([0.6, 1.0]))
    params = SamplingParams(temperature=temperature, max_new_tokens=6, top_p=data.draw(st.sampled_from([0.9, 1.0])))

    def play(engine: Engine, rows: list[int], seeds: list[int]) -> dict[int, list[int]]:
        out: dict[int, list[int]] = {s: [] for s in seeds}
        for row, seed in zip(rows, seeds):
            engine.start(row, seed)
            engine.extend(row, em.ids(seed, 3 + seed % 20))
        for turn in range(2):
            for row, seed, c in zip(rows, seeds, engine.generate(rows, params, [5, 6])):
                out[seed] += c.token_ids.tolist()
                engine.extend(row, em.ids(seed + turn, 1 + seed % 3))
        return out

    together = play(Engine(LLAMA, verify=False, share_min=4), list(range(len(seeds))), seeds)
    shuffled = play(Engine(LLAMA, verify=False), [2 * i for i in order], [seeds[i] for i in order])
    alone: dict[int, list[int]] = {}
    for seed in seeds:
        alone |= play(Engine(LLAMA, verify=False), [0], [seed])
    assert together == shuffled == alone


def test_another_seed_samples_something_else() -> None:
    engine = Engine(LLAMA)
    for row in range(4):
        engine.start(row, seed=row)
        engine.extend(row, em.ids(0, 10))
    turns = engine.generate(range(4), SamplingParams(max_new_tokens=12))
    assert len({tuple(c.token_ids.tolist()) for c in turns}) == 4


def test_temperature_zero_is_greedy_and_reports_its_logprob() -> None:
    engine = Engine(LLAMA)
    engine.start(0, 0)
    engine.extend(0, em.ids(1, 9))
    turn = engine.generate([0], SamplingParams(temperature=0, max_new_tokens=6))[0]
    plain = em.full_forward(LLAMA, engine.context(0))[8:-1]
    assert turn.token_ids.tolist() == plain.argmax(-1).tolist()
    expected = [em.log_softmax(plain[k])[turn.token_ids[k]] for k in range(6)]
    assert turn.logprobs == pytest.approx(expected, abs=1e-4)


def test_the_sampled_stop_token_is_part_of_the_turn() -> None:
    engine = Engine(LLAMA)
    engine.start(0, 3)
    engine.extend(0, em.ids(1, 9))
    free = engine.generate([0], SamplingParams(max_new_tokens=8))[0]
    stop = int(free.token_ids[4])
    first = free.token_ids.tolist().index(stop)
    engine.start(0, 3)
    engine.extend(0, em.ids(1, 9))
    turn = engine.generate([0], SamplingParams(max_new_tokens=8), [stop])[0]
    assert turn.finish_reason == "stop"
    assert turn.token_ids.tolist() == free.token_ids[: first + 1].tolist()
    assert turn.logprobs[-1] < 0
    check(engine, LLAMA, 0, turn, [], SamplingParams())


def test_a_stop_token_as_the_last_allowed_one_is_a_stop() -> None:
    engine = Engine(LLAMA)
    for row in (0, 1):
        engine.start(row, 3)
        engine.extend(row, em.ids(1, 9))
    token = int(engine.generate([0], SamplingParams(max_new_tokens=1))[0].token_ids[0])
    assert engine.generate([1], SamplingParams(max_new_tokens=1), [token])[0].finish_reason == "stop"


def test_no_new_tokens_is_a_legal_empty_turn() -> None:
    engine = Engine(LLAMA)
    for row in (0, 1):
        engine.start(row, 1)
        engine.extend(row, em.ids(2, 6))
    params = [SamplingParams(max_new_tokens=0), SamplingParams(max_new_tokens=4)]
    empty, other = engine.generate([0, 1], params)
    assert (len(empty.token_ids), empty.finish_reason, len(other.token_ids)) == (0, "length", 4)
    assert empty.logprobs.dtype == np.float32
    assert empty.token_ids.dtype == np.int32
    # It used up nothing: the row goes on as if nothing had happened, and so does a turn without an observation.
    later = engine.generate([0], SamplingParams(max_new_tokens=4))[0]
    assert later.token_ids.tolist() == other.token_ids.tolist()
    engine.generate([0], SamplingParams(max_new_tokens=0))
    more = engine.generate([0], SamplingParams(max_new_tokens=3))[0]
    check(engine, LLAMA, 0, more, later.token_ids.tolist(), SamplingParams())


def test_the_context_limit_cuts_and_never_crashes() -> None:
    engine = Engine(LLAMA, max_context=20)
    for row, length in enumerate((15, 20, 21, 0)):
        engine.start(row, 1)
        engine.extend(row, em.ids(row, length))
    turns = engine.generate(range(4), SamplingParams(max_new_tokens=50))
    assert [(len(t.token_ids), t.finish_reason) for t in turns] == [
        (5, "length"),
        (0, "length"),
        (0, "length"),
        (0, "abort"),
    ]
    check(engine, LLAMA, 0, turns[0], [], SamplingParams())
    engine.extend(0, em.ids(0, 1))
    turn = engine.generate([0], SamplingParams())[0]  # the observation does not fit
    assert (len(turn.token_ids), turn.finish_reason) == (0, "length")
    assert len(engine.context(0)) == 21  # and nothing was cut off


def test_the_models_own_context_limit_is_the_default() -> None:
    assert Engine(LLAMA).max_context == 512
    assert Engine(LLAMA, max_context=10_000).max_context == 512
    longrope = {
        "rope_type": "dynamic",
        "factor": 4.0,
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 64,
    }
    assert Engine(em.model(rope_parameters=longrope)).max_context == 64  # beyond, its tables depend on the batch


@pytest.mark.parametrize("token", [0, 2, 96])
def test_no_token_value_is_special(token: int) -> None:
    """Masks and positions come from lengths: contexts full of what may be pad, bos or eos are ids like others."""
    model = em.model()
    model.config.pad_token_id = model.config.eos_token_id = model.generation_config.eos_token_id = token
    engine = Engine(model)
    for row in range(3):
        engine.start(row, row)
        engine.extend(row, np.concatenate([np.full(row + 1, token), em.ids(row, 3 + row), np.full(4, token)]))
    for row, turn in enumerate(engine.generate(range(3), SamplingParams(max_new_tokens=5))):
        check(engine, model, row, turn, [], SamplingParams())


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6), chunk=st.sampled_from([1, 7, 32, 1000]))
@settings(max_examples=25, deadline=None)
def test_lengths_chunks_and_batch_mates_do_not_change_the_logits(lengths: list[int], chunk: int) -> None:
    engine = Engine(LLAMA, verify=False, chunk=chunk, share_min=6)
    for row, length in enumerate(lengths):
        engine.start(row, row)
        engine.extend(row, em.ids(row % 2, length))
    for row, turn in enumerate(engine.generate(range(len(lengths)), SamplingParams(max_new_tokens=2))):
        check(engine, LLAMA, row, turn, [], SamplingParams())


def two_turns(model: Any) -> tuple[Engine, list[Completion]]:
    """Second turns of five rows behind one prompt, longer than a sliding window."""
    engine = Engine(model)
    for row in range(5):
        engine.start(row, row)
        engine.extend(row, np.concatenate([em.ids(0, 50), em.ids(row, 3 * row)]))
    engine.generate(range(5), SamplingParams(max_new_tokens=9))
    return engine, engine.generate(range(5), SamplingParams(max_new_tokens=40))


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_the_compiled_attention_equals_the_plain_one(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head and block sizes that the kernel takes; shared prompts, windows, several turns."""
    from toolstep.agents.engine import kernels

    if kernels.attention_for(16, 2, 32) is None:
        pytest.skip("no C++ compiler")
    model = em.model(family, head_dim=16)
    turns = {}
    for name in ("compiled", "plain"):
        if name == "plain":
            monkeypatch.setattr("toolstep.agents.engine.attention.attention_kernel", lambda *_: None)
        engine, turns[name] = two_turns(model)
    for one, other in zip(turns["compiled"], turns["plain"]):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    check(engine, model, 4, turns["compiled"][4], [], SamplingParams())


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_fused_layers_equal_the_models_own_code(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared prompts, windows, biases, head norms, several turns."""
    from toolstep.agents.engine import kernels, layers

    if kernels.attention_for(16, 2, 32) is None:
        pytest.skip("no C++ compiler")
    turns = {}
    for name in ("fused", "own"):
        if name == "own":
            monkeypatch.setattr(layers.FusedLayers, "can_run", lambda *_: False)
        model = em.model(family, head_dim=16)
        engine, turns[name] = two_turns(model)
        used = [layer.shape is not None for layer in engine.packed.layers._layers]
        assert used
        assert all(used) == (name == "fused")
        check(engine, model, 4, turns[name][4], [], SamplingParams())
    for one, other in zip(turns["fused"], turns["own"], strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_layers_are_fused_in_half_precision_too() -> None:
    """They are used only where their logits were found to agree with those of the model's own code."""
    from toolstep.agents.engine import kernels
    from toolstep.agents.engine.linears import can_pack

    model = em.model("llama", head_dim=16).bfloat16()
    if kernels.attention_for(16, 2, 32) is None or not can_pack(model):
        pytest.skip("no C++ compiler, or no packed products in bf16")
    engine = Engine(model)
    engine.start(0, 0)
    engine.extend(0, em.ids(0, 50))
    engine.generate([0], SamplingParams(max_new_tokens=3))
    assert all(layer.shape is not None for layer in engine.packed.layers._layers)


def test_fused_layers_follow_linear_layers_that_change_their_kind() -> None:
    """A hook, or an adapter, on one of them: the products are packed anew, and nothing of the old ones may be left."""
    model = em.model("llama", head_dim=16)
    engine = Engine(model)
    engine.start(0, 0)
    engine.extend(0, em.ids(0, 50))
    engine.generate([0], SamplingParams(max_new_tokens=3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    model.model.layers[0].mlp.down_proj.register_forward_hook(lambda _module, _input, output: output * 1.5)
    engine.update_weights()
    engine.start(1, 1)
    engine.extend(1, em.ids(1, 40))
    [turn] = engine.generate([1], SamplingParams(max_new_tokens=9))
    check(engine, model, 1, turn, [], SamplingParams())


def test_a_layer_that_computes_otherwise_is_not_fused(caplog: pytest.LogCaptureFixture) -> None:
    """What a class is called is not believed: logits decide, and the model's own code runs."""
    model = em.model("llama", head_dim=16)

    class SiLU(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.silu(x) * 1.01

    model.model.layers[1].mlp.act_fn = SiLU()
    engine = Engine(model)
    engine.start(0, 0)
    engine.extend(0, em.ids(0, 50))
    with caplog.at_level("INFO", "toolstep"):
        [turn] = engine.generate([0], SamplingParams(max_new_tokens=20))
    assert not any(layer.shape for layer in engine.packed.layers._layers)
    assert "differ" in caplog.text or engine.packed.layers.untried  # no compiler: never tried
    check(engine, model, 0, turn, [], SamplingParams())


def test_long_segments_are_attended_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolstep.agents.engine.attention._MASK_ELEMENTS", 64)
    for family in ("llama", "mistral"):
        model = em.model(family)
        engine = Engine(model)
        engine.start(0, 0)
        engine.extend(0, em.ids(0, 75))
        check(engine, model, 0, engine.generate([0], SamplingParams(max_new_tokens=3))[0], [], SamplingParams())


def test_the_model_is_left_as_it_was() -> None:
    model = em.model(attention_dropout=0.5)
    model.train()
    model.model.layers[0].eval()
    modes = [m.training for m in model.modules()]
    implementation = model.config._attn_implementation
    engine = Engine(model)
    engine.start(0, 0)
    engine.extend(0, em.ids(0, 5))
    turn = engine.generate([0], SamplingParams(max_new_tokens=4))[0]
    assert [m.training for m in model.modules()] == modes
    assert model.config._attn_implementation == implementation
    assert all(p.requires_grad and not p.is_inference() for p in model.parameters())
    model(input_ids=torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()  # it still trains
    check(engine, model.eval(), 0, turn, [], SamplingParams())  # no dropout while it sampled


def test_a_model_with_a_hidden_state_is_found_out() -> None:
    model = em.model()
    plain = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda x: plain(x).cumsum(1)  # mixes positions outside attention
    with pytest.raises(UnsupportedModel, match="differ from the model's own forward"):
        Engine(model)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.array([1, 97]), "row 0: id 97 is outside the model's vocabulary of 97"),
        (np.array([-1]), "row 0: id -1 is outside"),
        (np.array([[1]]), "expected a 1-D array"),
        (np.array([0.5]), "integer ids"),
    ],
)
def test_wrong_ids_are_refused(wrong: Any, message: str) -> None:
    engine = Engine(LLAMA, verify=False)
    engine.start(0, 0)
    with pytest.raises(ValueError, match=message):
        engine.extend(0, wrong)


def test_rows_must_be_started_and_distinct() -> None:
    engine = Engine(LLAMA, verify=False)
    with pytest.raises(ValueError, match=r"row 5 has no episode: call start\(5, seed\) first"):
        engine.extend(5, [1])
    engine.start(5, 0)
    engine.extend(5, [1])
    with pytest.raises(ValueError, match="distinct rows"):
        engine.generate([5, 5], SamplingParams())


def test_an_interrupted_turn_can_be_sampled_again() -> None:
    """Context, random numbers and the history that the penalty looks at are those of before the call."""
    params = SamplingParams(max_new_tokens=8, frequency_penalty=1.0)
    model = em.model()
    engines = [Engine(model), Engine(model)]
    for engine in engines:
        engine.start(0, 0)
        engine.extend(0, em.ids(0, 9))
        engine.generate([0], params)
        engine.extend(0, em.ids(1, 3))
    calls = 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt

    hook = model.lm_head.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engines[0].generate([0], params)
    hook.remove()
    again, right = (engine.generate([0], params)[0] for engine in engines)
    assert again.token_ids.tolist() == right.token_ids.tolist()
    assert again.logprobs == pytest.approx(right.logprobs, abs=1e-5)


def test_broken_weights_name_the_row_and_change_nothing() -> None:
    model = em.model()
    engine = Engine(model)
    for row in (2, 6):
        engine.start(row, row)
        engine.extend(row, em.ids(row, 8) % 50 + 1)
    first = engine.generate([2, 6], SamplingParams(max_new_tokens=3))
    contexts = [engine.context(2), engine.context(6)]
    engine.extend(6, [60])
    with torch.no_grad():
        good = model.model.embed_tokens.weight[60].clone()
        model.model.embed_tokens.weight[60] = float("nan")
    with pytest.raises(RowFailed, match="row 6: the model's logits are not finite"):
        engine.generate([2, 6], SamplingParams(max_new_tokens=3))
    assert engine.context(2).tolist() == contexts[0].tolist()
    with torch.no_grad():
        model.model.embed_tokens.weight[60] = good
    for row, before, turn in zip((2, 6), first, engine.generate([2, 6], SamplingParams(max_new_tokens=3))):
        check(engine, model, row, turn, before.token_ids.tolist(), SamplingParams())


def test_a_layer_that_attends_otherwise_is_refused_as_a_model_that_cannot_run() -> None:
    model = em.model()
    model.model.layers[0].self_attn.is_causal = False
    with pytest.raises(UnsupportedModel, match="without a causal mask"):
        Engine(model)
