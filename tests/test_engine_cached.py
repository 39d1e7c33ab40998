"""Models that cannot be packed run on their own caches, and give what a plain full forward gives."""

from __future__ import annotations

import logging
from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_engine_schedule import run

from toolstep.agents.base import Completion, SamplingParams
from toolstep.agents.engine import Engine, UnsupportedModel
from toolstep.agents.engine.cached import CachedModel
from toolstep.agents.engine.caches import StatePool, tensors

PLAIN = SamplingParams(max_new_tokens=5)
GREEDY = SamplingParams(max_new_tokens=5, temperature=0)
SHAPED = SamplingParams(max_new_tokens=7, temperature=0.8, top_p=0.9, frequency_penalty=0.5)


def model(family: str, **changes: Any) -> Any:
    try:
        return em.model(family, **changes)
    except (KeyError, ValueError) as error:
        pytest.skip(f"this transformers does not make a small {family}: {error}")


def engine_for(made: Any, **options: Any) -> Engine:
    return Engine(made, **{"max_context": 256, "share_min": 4, "chunk": 16, **options})


def worst(engine: Engine, made: Any, row: int, turn: Completion, params: SamplingParams, before: list[int]) -> float:
    """Largest error of the last turn's log-probs; `before`: what the row had sampled."""
    context, ids = engine.context(row), turn.token_ids.tolist()
    assert ids
    assert context[-len(ids) :].tolist() == ids
    plain = em.full_forward(made, context)[len(context) - len(ids) - 1 : -1]
    error = 0.0
    for k, token in enumerate(ids):
        expected = em.slow_logprobs(plain[k], [*before, *ids[:k]], params)
        error = max(error, abs(expected[token] - turn.logprobs[k]))
        error = max(error, abs(em.log_softmax(plain[k])[token] - turn.model_logprobs[k]))
        if params.temperature == 0:
            assert token == expected.argmax()
    return error


@pytest.mark.parametrize("family", em.CACHED)
def test_every_logprob_equals_a_full_forward(family: str, caplog: pytest.LogCaptureFixture) -> None:
    """A group with one prompt, rows of other lengths, three turns with observations, a fork, a turn taken back."""
    made = model(family)
    with caplog.at_level(logging.WARNING):
        engine = engine_for(made)
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("toolstep")]
    assert said.startswith(f"{type(made).__name__} cannot be packed: it")
    params = [PLAIN, SHAPED, GREEDY, GREEDY, PLAIN]
    sampled: dict[int, list[int]] = {row: [] for row in range(8)}
    for row in range(5):
        engine.start(row, row)
        engine.extend(row, np.concatenate([em.ids(0, 21 if row < 3 else 6), em.ids(row, max(0, row - 1))]))
    errors = []
    for turn in range(3):
        for row, done in enumerate(engine.generate(range(5), params)):
            errors.append(worst(engine, made, row, done, params[row], sampled[row]))
            sampled[row] += done.token_ids.tolist()
            engine.extend(row, em.ids(50 + row, turn + row % 3))
    assert engine.packed.replayed == 0  # nothing but new ids was computed
    engine.fork(0, [7], [9])
    ticket = engine.submit(1, em.ids(3, 4), PLAIN)
    engine.step()
    engine.step()
    engine.cancel(ticket)
    sampled[7] = list(sampled[0])
    for row, done in zip((0, 7, 1), engine.generate([0, 7, 1], [PLAIN, SHAPED, GREEDY])):
        errors.append(worst(engine, made, row, done, {0: PLAIN, 7: SHAPED, 1: GREEDY}[row], sampled[row]))
    assert max(errors) <= 1e-4
    assert engine.stats.shared == 2 * 21  # the prompt of rows 0, 1 and 2 was computed once (row 2 adds one id)


HYBRID = em.model("bamba")


@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_schedule_samples_what_a_row_alone_would(data: st.DataObject) -> None:
    engine = Engine(
        HYBRID,
        share_min=data.draw(st.sampled_from([1, 8])),
        block=data.draw(st.sampled_from([4, 8])),
        chunk=data.draw(st.sampled_from([3, 16, 512])),
        kv_tokens=data.draw(st.sampled_from([None, 256, 192])),
        max_running=data.draw(st.sampled_from([None, 1, 2])),
    )
    run(engine, HYBRID, data)
    assert isinstance(engine.pool, StatePool)
    assert not engine.pool.states


def calls(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rows, ids) of every call of the model from now on."""
    seen: list[tuple[int, int]] = []
    packed = engine.packed
    assert isinstance(packed, CachedModel)
    call = packed._call

    def watched(ids: torch.Tensor, starts: torch.Tensor, cache: Any) -> Any:
        seen.append((ids.shape[0], ids.shape[1]))
        return call(ids, starts, cache)

    monkeypatch.setattr(packed, "_call", watched)
    return seen


def fill(engine: Engine, lengths: list[int]) -> None:
    for row, length in enumerate(lengths):
        engine.start(row, row)
        engine.extend(row, em.ids(row, length))


def test_rows_run_together_where_their_caches_have_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent state has no length; keys and values have one."""
    recurrent, hybrid, alone = (engine_for(em.model(f), chunk=512) for f in ("mamba2", "bamba", "rwkv"))
    for engine, decoding in ((recurrent, [4]), (hybrid, [2, 1, 1]), (alone, [1, 1, 1, 1])):
        fill(engine, [9, 12, 12, 17])
        seen = calls(engine, monkeypatch)
        engine.generate(range(4), SamplingParams(max_new_tokens=3))
        expected = sorted([(n, 1) for n in decoding] * 2)
        assert sorted(rows for rows in seen if rows[1] == 1) == expected


def test_a_model_that_begins_anew_gets_prompts_whole_and_observations_id_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    makes = {"mamba": ([1, 1, 1, 1], [40]), "mamba2": ([4], [15, 15, 10])}
    for family, (observation, prompt) in makes.items():
        engine = engine_for(em.model(family))
        fill(engine, [40])
        seen = calls(engine, monkeypatch)
        engine.generate([0], SamplingParams(max_new_tokens=1))
        assert [ids for _, ids in seen] == prompt
        seen.clear()
        engine.extend(0, em.ids(1, 3))
        engine.generate([0], SamplingParams(max_new_tokens=1))
        assert [ids for _, ids in seen] == observation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_model_can_do_is_found_by_trying(dtype: torch.dtype) -> None:
    for family, continues in (
        ("mamba", False),
        ("jamba", False),
        ("minimax", False),
        ("mamba2", True),
        ("bamba", True),
    ):
        packed = engine_for(model(family).to(dtype)).packed
        assert isinstance(packed, CachedModel)
        assert packed.continues is continues, family
        assert packed.stacks, family


def test_a_budget_counts_whole_caches() -> None:
    """With a budget nothing is shared, so all caches together are never longer than it; the samples are the same."""
    params = SamplingParams(max_new_tokens=30)
    tight, free = Engine(HYBRID, kv_tokens=160, block=8), Engine(HYBRID, share_min=4)
    results = []
    longest = [0]

    def finish(engine: Engine) -> dict[int, list[int]]:
        pool, done = engine.pool, {}
        assert isinstance(pool, StatePool)
        while engine.busy:
            done |= {f.row: f.completion.token_ids.tolist() for f in engine.step()}
            if engine is tight:
                longest.append(sum(state.length for state in pool.states.values()))
        return done

    for engine in (tight, free):
        for row in range(6):
            engine.start(row, row)
            engine.submit(row, em.ids(0, 20), params)
        done = finish(engine)
        for row in range(1, 6):
            engine.release(row)
        engine.submit(0, (), SamplingParams(max_new_tokens=1))
        done |= finish(engine)
        engine.fork(0, range(10, 14), range(4))
        for row in range(10, 14):
            engine.submit(row, (), params)
        results.append(done | finish(engine))
    assert results[0] == results[1]
    assert 100 < max(longest) <= 160
    assert tight.stats.preemptions > 0
    assert (tight.stats.shared, free.stats.shared) == (0, 5 * 20)


def test_a_row_that_is_gone_takes_its_memory_along() -> None:
    engine = engine_for(em.model("mamba2"))
    pool = engine.pool
    assert isinstance(pool, StatePool)
    fill(engine, [9, 9, 12])
    engine.generate(range(3), PLAIN)
    for state in pool.states.values():  # no row's cache is a part of a larger one
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in tensors(state.cache))
    full = pool.nbytes
    engine.release(0)
    assert pool.nbytes == full * 2 // 3
    engine.release(1)
    engine.release(2)
    assert (pool.nbytes, pool.used, len(pool.states)) == (0, 0, 0)


def test_new_weights_begin_every_context_anew() -> None:
    made, other = em.model("bamba", seed=0), em.model("bamba", seed=1)
    engine = engine_for(made)
    fill(engine, [9, 30])
    first = engine.generate([0, 1], PLAIN)
    assert engine.update_weights(other.state_dict()) == 1
    for row, turn in enumerate(engine.generate([0, 1], PLAIN)):
        assert turn.weight_version == 1
        assert worst(engine, other, row, turn, PLAIN, first[row].token_ids.tolist()) <= 1e-4


def test_constraints_and_stop_conditions_are_the_engines_own() -> None:
    engine = engine_for(em.model("mamba2"))
    fill(engine, [9])
    mask = np.zeros(em.VOCABULARY, np.bool_)
    mask[[4, 9]] = True
    engine.submit(0, (), PLAIN, allow=lambda _: mask, until=lambda ids: len(ids) == 3)
    turn = next(f for _ in range(6) for f in engine.step()).completion
    assert set(turn.token_ids.tolist()) <= {4, 9}
    assert (len(turn.token_ids), turn.finish_reason) == (3, "stop")


def test_a_model_that_can_neither_be_packed_nor_kept_is_refused_with_both_reasons() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM, BartConfig, BartForConditionalGeneration

    sizes = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3, "lru_width": 48, "vocab_size": 50}
    griffin = AutoModelForCausalLM.from_config(AutoConfig.for_model("recurrent_gemma", **sizes))
    with pytest.raises(UnsupportedModel, match=r"layers of type linear_attention; and without packing its forward"):
        Engine(griffin, max_context=32)  # the state is in its modules
    mixing = em.model("bloom")
    plain = mixing.transformer.h[0].mlp.forward
    mixing.transformer.h[0].mlp.forward = lambda x, y: plain(x.cumsum(1), y)  # mixes positions and forgets it
    with pytest.raises(UnsupportedModel, match="differ from the model's own forward"):
        Engine(mixing, max_context=32)
    small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 50}
    with pytest.raises(UnsupportedModel, match="cannot run in the rollout engine: it is an encoder-decoder"):
        Engine(BartForConditionalGeneration(BartConfig(**small)))
