"""Intervals against known values and their own coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolstep.rollout.stats import bootstrap_mean, wilson


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
