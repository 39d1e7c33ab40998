"""Intervals against known values and their own coverage."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.rollout.stats import bootstrap_mean, clustered_wilson, pass_all, pass_at, wilson


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    # Newcombe 1998, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_interval_of_published_examples(successes, total, low, high):
    found = wilson(successes, total)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


@given(st.integers(1, 500), st.data())
def test_wilson_interval_holds_the_rate_and_mirrors(total, data):
    k = data.draw(st.integers(0, total))
    found = wilson(k, total)
    assert 0 <= found.low <= k / total <= found.high <= 1
    assert found.low < found.high
    mirrored = wilson(total - k, total)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found.low, found.high))


def test_no_observations_have_no_interval():
    assert wilson(0, 0) is None
    assert bootstrap_mean([]) is None
    assert bootstrap_mean([1.0]) is None
    assert bootstrap_mean([1.0, 0.0], clusters=["a", "a"]) is None
    with pytest.raises(ValueError, match=r"in \[0, total=2\], got 3"):
        wilson(3, 2)


def test_equal_values_have_no_interval():
    assert bootstrap_mean([0.5] * 9) is None
    assert bootstrap_mean([1.0, 0.0, 1.0, 0.0], clusters=[1, 1, 2, 2]) is None


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.1, 1.0]), min_size=2, max_size=40), st.integers(0, 5))
def test_bootstrap_is_reproducible_finite_and_inside_the_data(values, seed):
    found = bootstrap_mean(values, seed=seed)
    assert found == bootstrap_mean(values, seed=seed)
    assert (found is None) == (len(set(values)) == 1)
    if found is None:
        return
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9


def test_bootstrap_is_close_to_the_normal_interval_of_a_large_sample():
    values = np.random.default_rng(0).normal(3, 2, size=400)
    found = bootstrap_mean(values.tolist())
    half = 1.96 * values.std(ddof=1) / np.sqrt(values.size)
    assert found.low == pytest.approx(values.mean() - half, abs=0.03)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03)


def test_samples_of_one_task_do_not_narrow_the_interval():
    values = np.random.default_rng(1).normal(size=30)
    once = bootstrap_mean(values.tolist())
    repeated = bootstrap_mean(np.repeat(values, 8).tolist(), clusters=np.repeat(np.arange(30), 8).tolist())
    naive = bootstrap_mean(np.repeat(values, 8).tolist())
    assert (repeated.low, repeated.high) == pytest.approx((once.low, once.high))
    assert naive.high - naive.low < 0.5 * (once.high - once.low)


# ------------------------------------------------------------------------------------------- several samples of a task
@pytest.mark.parametrize("n", [1, 3, 6])
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples(n):
    for good in range(n + 1):
        samples = [True] * good + [False] * (n - good)
        for k in range(1, n + 1):
            choices = list(itertools.combinations(samples, k))
            assert pass_at(good, n, k) == pytest.approx(sum(map(any, choices)) / len(choices))
            assert pass_all(good, n, k) == pytest.approx(sum(map(all, choices)) / len(choices))


def test_there_is_no_k_beyond_the_samples():
    for wrong in ((0, 3, 4), (4, 3, 1), (-1, 3, 1), (1, 3, 0)):
        with pytest.raises(ValueError, match="there is no k"):
            pass_at(*wrong)


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert pass_at(1, 10_000, 5_000) == pytest.approx(0.5)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_one_sample_a_task_is_wilsons_interval(successes):
    assert clustered_wilson(successes, range(len(successes))) == wilson(sum(successes), len(successes))


def test_samples_of_a_task_that_are_all_alike_count_once():
    once = [True, False, True, True, False, False, True, True]
    repeated = np.repeat(once, 5).tolist()
    assert clustered_wilson(repeated, np.repeat(np.arange(8), 5).tolist()) == wilson(5, 8)
    assert clustered_wilson([True] * 12, np.repeat(np.arange(3), 4).tolist()) == wilson(3, 3)
    assert clustered_wilson([], []) is None


def test_independent_samples_of_a_task_count_nearly_all():
    rng = np.random.default_rng(0)
    found = clustered_wilson((rng.random(4000) < 0.3).tolist(), np.repeat(np.arange(1000), 4).tolist())
    alone = wilson(1200, 4000)
    assert (found.high - found.low) / (alone.high - alone.low) == pytest.approx(1, abs=0.06)


def test_interval_of_clustered_rates_covers_the_truth():
    """Tasks of very different difficulty, 5 samples each: the plain interval is far too narrow, this one is not."""
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 5).tolist()
    covered = plain = 0
    for _ in range(400):
        rates = rng.beta(0.4, 0.4, size=40)
        successes = (rng.random(200) < np.repeat(rates, 5)).tolist()
        found, alone = clustered_wilson(successes, clusters), wilson(sum(successes), 200)
        covered += found.low <= 0.5 <= found.high
        plain += alone.low <= 0.5 <= alone.high
    assert covered / 400 > 0.92
    assert plain / 400 < 0.8
