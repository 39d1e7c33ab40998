"""From logits to tokens: the distribution, its log-probabilities, and what must not change."""

from __future__ import annotations

import engine_models as em
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.agents.base import SamplingParams
from toolstep.agents.engine.sampling import NonFiniteLogits, choose, penalise, truncate, uniform_stream

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 5, 96, 97, 500]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.5]),
    penalty_window=st.sampled_from([0, 1, 4, 64]),
    min_p=st.sampled_from([0.0, 0.0, 0.03, 0.3, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.4, -1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([(), {5: 3.0}, {0: -100.0, 96: 1.5}]),
)


def logits(seed: int, rows: int, vocabulary: int = em.VOCABULARY) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2.5, (rows, vocabulary)).astype(np.float32))


@given(params=PARAMS, seed=st.integers(0, 10_000))
@settings(max_examples=150, deadline=None)
def test_both_logprobs_equal_a_slow_obvious_computation(params: SamplingParams, seed: int) -> None:
    raw = logits(seed, 3)
    rng = np.random.default_rng(seed)
    histories = [rng.integers(0, em.VOCABULARY, n).tolist() for n in (0, 3, 40)]
    uniforms = rng.random(3)
    got = choose(raw, uniforms, params, histories)
    for i in range(3):
        row = raw[i].double().numpy()
        if em.on_the_edge(row, histories[i], params):
            continue
        expected = em.slow_logprobs(row, histories[i], params)
        assert np.isfinite(expected[got.tokens[i]])  # never a token that was cut off
        assert got.logprobs[i] == pytest.approx(expected[got.tokens[i]], abs=2e-5)
        assert got.model_logprobs[i] == pytest.approx(em.log_softmax(row)[got.tokens[i]], abs=2e-5)
        if params.temperature == 0:
            assert expected[got.tokens[i]] == expected.max()
        else:
            below = np.exp(expected[: got.tokens[i]]).sum()
            assert below - 1e-5 <= uniforms[i] <= below + np.exp(expected[got.tokens[i]]) + 1e-5


@given(seed=st.integers(0, 1000), vocabulary=st.sampled_from([1, 2, 255, 256, 257, 700]))
@settings(max_examples=40, deadline=None)
def test_the_inverse_holds_at_both_ends_and_for_any_vocabulary(seed: int, vocabulary: int) -> None:
    raw = logits(seed, 2, vocabulary)
    low = choose(raw, np.array([0.0, 0.0]), SamplingParams(), [[], []])
    high = choose(raw, np.full(2, np.nextafter(1.0, 0.0)), SamplingParams(), [[], []])
    assert low.tokens.tolist() == [0, 0]
    assert high.tokens.tolist() == [vocabulary - 1] * 2


def test_a_token_without_probability_is_never_taken() -> None:
    raw = torch.full((1, 600), float("-inf"))
    raw[0, [300, 301, 599]] = 0.0
    taken = {int(choose(raw, np.array([u]), SamplingParams(), [[]]).tokens[0]) for u in np.linspace(0, 1, 200)[:-1]}
    assert taken == {300, 301, 599}
    raw[0, 599] = float("-inf")
    assert choose(raw, np.array([np.nextafter(1.0, 0.0)]), SamplingParams(), [[]]).tokens[0] == 301


def test_samples_follow_the_distribution() -> None:
    raw = logits(0, 1, 12)
    params = SamplingParams(temperature=0.7, top_k=8, top_p=0.95)
    n = 20_000
    got = choose(raw.expand(n, -1), uniform_stream(5).random(n), params, [[]] * n)
    expected = np.exp(em.slow_logprobs(raw[0].double().numpy(), [], params))
    assert np.bincount(got.tokens, minlength=12) / n == pytest.approx(expected, abs=0.015)


def test_top_p_keeps_the_token_that_crosses() -> None:
    raw = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    for top_p, kept in ((0.4, 1), (0.6, 2), (0.79, 2), (0.81, 3), (0.97, 4)):
        assert int(torch.isfinite(truncate(raw, 0, top_p)).sum()) == kept, top_p


def test_top_p_on_a_flat_distribution_looks_beyond_the_best_thousand() -> None:
    raw = torch.linspace(0, 0.01, 5000)[None]
    assert int(torch.isfinite(truncate(raw, 0, 0.9)).sum()) == pytest.approx(4500, abs=30)


def test_ties_at_the_threshold_are_all_kept() -> None:
    raw = torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    assert torch.isfinite(truncate(raw, 2, 1.0))[0].tolist() == [True, True, True, False]


def test_the_window_of_the_penalty_is_the_last_sampled_ids() -> None:
    raw = torch.zeros(1, 4)
    history = [[0, 1, 1, 2]]
    for window, expected in ((0, [-1, -2, -1, 0]), (1, [0, 0, -1, 0]), (2, [0, -1, -1, 0]), (9, [-1, -2, -1, 0])):
        got = penalise(raw, history, SamplingParams(frequency_penalty=1.0, penalty_window=window))
        assert got[0].tolist() == expected, window


@given(params=PARAMS)
@settings(max_examples=60, deadline=None)
def test_the_callers_logits_are_untouched(params: SamplingParams) -> None:
    raw = logits(1, 2)
    before = raw.clone()
    choose(raw, np.array([0.3, 0.9]), params, [[1, 1, 5], []])
    assert torch.equal(raw, before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_name_the_row(bad: float) -> None:
    raw = logits(0, 3)
    raw[1, 7] = bad
    with pytest.raises(NonFiniteLogits, match="row 1") as caught:
        choose(raw, np.array([0.1, 0.1, 0.1]), SamplingParams(), [[]] * 3)
    assert caught.value.index == 1
    with pytest.raises(NonFiniteLogits, match="row 0"):
        choose(torch.full((1, 5), float("-inf")), np.array([0.1]), SamplingParams(), [[]])


def test_half_precision_logits_are_computed_in_fp32() -> None:
    raw = logits(3, 1).bfloat16()
    got = choose(raw, np.array([0.5]), SamplingParams(temperature=0.7), [[]])
    expected = em.slow_logprobs(raw[0].double().numpy(), [], SamplingParams(temperature=0.7))
    assert got.logprobs[0] == pytest.approx(expected[got.tokens[0]], abs=1e-5)


def test_a_constraint_leaves_the_allowed_tokens_and_the_plain_logprob() -> None:
    raw = logits(2, 2)
    mask = np.zeros(em.VOCABULARY, np.bool_)
    mask[[4, 9]] = True
    for u in np.linspace(0, 0.999, 20):
        got = choose(raw, np.array([u, u]), SamplingParams(), [[], []], [mask, None])
        free = choose(raw, np.array([u, u]), SamplingParams(), [[], []])
        assert got.tokens[0] in (4, 9)
        assert got.tokens[1] == free.tokens[1]
        assert np.exp(got.logprobs[0]) == pytest.approx(
            float(torch.softmax(raw[0, [4, 9]], -1)[[4, 9].index(got.tokens[0])]), abs=1e-6
        )
        assert got.model_logprobs[0] == pytest.approx(em.log_softmax(raw[0].double().numpy())[got.tokens[0]], abs=1e-5)


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="id 97 is outside"):
        choose(logits(0, 1), np.array([0.5]), SamplingParams(logit_bias={97: 1.0}), [[]])


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_k": 1.5},
        {"top_k": True},
        {"top_k": -1},
        {"max_new_tokens": 1.5},
        {"penalty_window": 2.5},
        {"temperature": "a"},
        {"temperature": 1e-38},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.5},
        {"frequency_penalty": -1e39},
        {"presence_penalty": float("inf")},
        {"repetition_penalty": 0},
        {"min_p": 2},
    ],
)
def test_parameters_that_cannot_work_are_refused_by_name(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"SamplingParams\.{name} must be"):
        SamplingParams(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("vocabulary", [97, 256, 1000, 49152])
def test_the_compiled_pass_over_a_vocabulary_equals_the_plain_one(vocabulary: int) -> None:
    from toolstep.agents.engine.passes import passes

    over = passes()
    if over is None:
        pytest.skip("no C++ compiler")
    scores = torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(0)) * 7
    scores[1, 3::2] = float("-inf")
    scores[2] += 80
    best, sums = over.exponential_sums(scores, 256)
    assert torch.equal(best, scores.amax(-1, keepdim=True))
    weights = torch.nn.functional.pad((scores - best).double().exp(), (0, -vocabulary % 256)).view(5, -1, 256)
    assert torch.allclose(sums, weights.sum(-1), rtol=2e-6, atol=1e-12)
    for place in (0, vocabulary - 1):
        for bad in (float("nan"), float("inf")):
            broken = scores.clone()
            broken[3, place] = bad
            assert torch.isfinite(over.exponential_sums(broken, 256)[1].sum(-1)).tolist() == [1, 1, 1, 0, 1]
