"""`run_batch` against plain forwards: any number of prompts, in order, each on its own."""

from __future__ import annotations

from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch

from toolstep.agents import Engine, SamplingParams, run_batch
from toolstep.agents.engine import RowFailed

MODEL = em.model()
PROMPTS = [em.ids(i, 3 + 5 * i % 40) for i in range(9)]
STOP = {3, 50}


def engine(**options: Any) -> Engine:
    return Engine(MODEL, verify=False, **options)


def test_more_prompts_than_slots_come_back_in_order_with_exact_logprobs():
    limits = [1 + i % 4 for i in range(9)]
    settings = [(0.0, 0, 1.0), (0.7, 5, 1.0), (1.0, 0, 0.8)]
    temperature, top_k, top_p = ([settings[i % 3][j] for i in range(9)] for j in range(3))
    slots = engine(max_running=2, kv_tokens=128)
    done = run_batch(
        slots,
        PROMPTS,
        limits,
        temperature,
        top_p,
        top_k,
        frequency_penalty=0.5,
        rep_window=2,
        return_logprobs=True,
        stop_ids=STOP,
        seed=range(9),
    )
    for i, (sampled, prompt) in enumerate(zip(done, PROMPTS, strict=True)):
        assert sampled.logprobs is not None
        assert 1 <= len(sampled.token_ids) <= limits[i]
        assert sampled.finish_reason == ("stop" if sampled.token_ids[-1] in STOP else "length")
        assert sampled.finish_reason == "stop" or len(sampled.token_ids) == limits[i]
        params = SamplingParams(temperature[i], top_k[i], top_p[i], frequency_penalty=0.5, penalty_window=2)
        context = np.concatenate([prompt, sampled.token_ids])
        logits = em.full_forward(MODEL, context)
        for t, (token, logprob) in enumerate(zip(sampled.token_ids, sampled.logprobs, strict=True)):
            expected = em.slow_logprobs(logits[len(prompt) + t - 1], sampled.token_ids[:t], params)
            assert logprob == pytest.approx(expected[token], abs=1e-4)
    # Alone, with all the room there is, each prompt gets the same.
    for i in (0, 4, 7):
        alone = run_batch(
            engine(),
            [PROMPTS[i]],
            limits[i],
            temperature[i],
            top_p[i],
            top_k[i],
            frequency_penalty=0.5,
            rep_window=2,
            stop_ids=STOP,
            seed=[i],
        )
        assert alone[0] == done[i]._replace(logprobs=None)
    assert slots.live_tokens == 0


def test_one_seed_gives_equal_prompts_different_samples_and_the_same_again():
    same = [PROMPTS[3]] * 4
    first = run_batch(engine(), same, 8, stop_ids=(), seed=7)
    assert len({tuple(s.token_ids) for s in first}) == 4
    assert run_batch(engine(max_running=1), same, 8, stop_ids=(), seed=7) == first
    # Prompt i has the same seed whatever stands behind it.
    assert run_batch(engine(), same[:2], 8, stop_ids=(), seed=7) == first[:2]
    assert run_batch(engine(), same, 8, stop_ids=()) != run_batch(engine(), same, 8, stop_ids=())


def test_nothing_to_do():
    assert run_batch(engine(), [], stop_ids=()) == []
    assert run_batch(engine(), [], [], [], stop_ids=(), seed=[]) == []
    assert run_batch(engine(), PROMPTS[:2], 0, stop_ids=(), return_logprobs=True) == [([], [], "length")] * 2


def test_without_a_limit_the_context_is_filled_and_the_row_says_so():
    small = engine(max_context=20)
    (done,) = run_batch(small, [em.ids(0, 12)], stop_ids=())
    assert (len(done.token_ids), done.finish_reason) == (8, "length")


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[1], []], {}, "prompt 1 has 0 ids; expected 1 to 19"),
        ([[1], list(range(20))], {}, "prompt 1 has 20 ids; expected 1 to 19"),
        ([[1], [2]], {"temperature": [1.0]}, "temperature has 1 values for 2 prompts"),
        ([[1], [2]], {"seed": [1, 2, 3]}, "seed has 3 values for 2 prompts"),
        ([[1], [2]], {"top_p": [0.5, 0.0]}, r"top_p must be a number in \(0, 1\]"),
        ([[1], [97]], {}, "id 97 is outside the model's vocabulary of 97"),
        ([[1], [[2]]], {}, "expected a 1-D array of integer ids"),
    ],
)
def test_bad_input_is_refused_and_the_engine_stays_as_it_was(prompts, options, message):
    small = engine(max_context=20)
    small.start(0, 0)
    small.extend(0, [5, 6])
    with pytest.raises(ValueError, match=message):
        run_batch(small, prompts, **{"max_tokens": 4, "stop_ids": (), **options})
    assert not small.busy
    assert list(small.scheduler.rows) == [0]
    assert small.context(0).tolist() == [5, 6]


def test_episodes_of_the_caller_go_on_as_if_nothing_had_been():
    shared = engine()
    shared.start(0, 11)
    shared.extend(0, PROMPTS[5])
    run_batch(shared, PROMPTS, 3, stop_ids=(), seed=0)
    (after,) = shared.generate([0], SamplingParams(max_new_tokens=6))
    (alone,) = run_batch(engine(), [PROMPTS[5]], 6, stop_ids=(), seed=[11])
    assert after.token_ids.tolist() == alone.token_ids


def test_turns_under_way_are_not_lost_but_named():
    busy = engine()
    busy.start(0, 0)
    ticket = busy.submit(0, PROMPTS[4], SamplingParams(max_new_tokens=2))
    with pytest.raises(RuntimeError, match="turns under way"):
        run_batch(busy, PROMPTS, 1, stop_ids=())
    done = [finished for _ in range(8) for finished in busy.step()]
    assert [finished.ticket for finished in done] == [ticket]


def test_broken_weights_raise_and_nothing_stays_behind():
    model = em.model(seed=1)
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    broken = Engine(model, verify=False)
    with pytest.raises(RowFailed, match="logits are not finite"):
        run_batch(broken, PROMPTS, 4, stop_ids=())
    assert not broken.busy
    assert not broken.scheduler.rows
