"""Steps in series: known ones found where they were put, none found where there is none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trend.made import values

from glqprof.trend.steps import MIN_SIZE, fit_levels, noise


def starts(series) -> list[int]:
    return [level.start for level in fit_levels(series).levels]


def test_levels_of_a_series_without_noise_are_exact():
    fit = fit_levels([5.0] * 10 + [7.0] * 4 + [5.0] * 6)
    assert [(lv.start, lv.stop, lv.mean) for lv in fit.levels] == [(0, 10, 5.0), (10, 14, 7.0), (14, 20, 5.0)]
    assert fit.sigma == 0


def test_counts_step_by_a_large_and_a_small_amount():
    # 1,725 launches become 1,311, and later one more: the small step must not drown in the large one.
    assert starts([1725] * 30 + [1311] * 30 + [1312] * 30) == [0, 30, 60]


@pytest.mark.parametrize("factor", [1.05, 0.95, 1.5, 10.0])
def test_a_clear_step_is_found_where_it_was_put(factor):
    fit = fit_levels(values(200, {120: factor}))
    assert [level.start for level in fit.levels] == [0, 120]
    # 100 and 100 x factor, within 4 standard errors of the shorter level.
    error = 4 * 0.01 * factor / np.sqrt(80)
    assert fit.levels[1].mean / fit.levels[0].mean == pytest.approx(factor, abs=error + 0.005 * factor)


@pytest.mark.parametrize("at", [[70], [70, 71], [199]])
def test_one_or_two_outliers_are_no_step(at):
    for seed in range(20):
        series = values(200, {}, seed=seed)
        series[at] *= 1.6
        assert starts(series) == [0], seed


@pytest.mark.parametrize("at", [[198, 199], [0, 1]])
def test_two_outliers_at_an_end_are_rarely_a_step(at):
    # Two of the last three cannot be told from the beginning of a step when the third leans the same way.
    found = 0
    for seed in range(100):
        series = values(200, {}, seed=seed)
        series[at] *= 1.6
        found += starts(series) != [0]
    assert found <= 30


@pytest.mark.parametrize("sigma", [0.0, 0.01])
def test_a_run_that_hung_does_not_hide_a_step(sigma):
    series = values(100, {60: 1.05}, sigma=sigma)
    series[20] *= 1000
    assert starts(series) == [0, 60]


def test_three_in_a_row_at_the_end_are_a_step():
    series = values(200, {197: 1.3})
    assert starts(series) == [0, 197]


def test_the_interval_covers_the_true_step_as_often_as_it_says():
    covered = 0
    for seed in range(200):
        fit = fit_levels(values(100, {50: 1.1}, seed=seed))
        assert len(fit.levels) == 2
        _, low, high = fit.difference(*fit.levels)
        covered += low <= 10.0 <= high
    # 95 % of 200, less 4 standard deviations of a binomial and what pulling outliers in narrows.
    assert covered >= 175


def test_noise_is_that_of_the_values_whatever_their_levels():
    estimates = [noise(values(400, {100: 1.2, 250: 0.7}, sigma=0.01, seed=seed)) for seed in range(20)]
    # The level is 100, 120, then 84: the root mean square of 1, 1.2 and 0.84 is 0.99; clipping takes about 1 %.
    assert np.mean(estimates) == pytest.approx(0.99, rel=0.06)


def test_few_values_have_one_level():
    for count in range(1, 2 * MIN_SIZE):
        assert len(fit_levels([1.0] * (count // 2) + [9.0] * (count - count // 2)).levels) == 1


finite = st.floats(-1e9, 1e9, allow_subnormal=False)


@settings(max_examples=200, deadline=None)
@given(st.lists(finite, min_size=1, max_size=60))
def test_levels_cover_every_value_once_and_lie_within_the_values(series):
    fit = fit_levels(series)
    assert fit.levels[0].start == 0
    assert fit.levels[-1].stop == fit.count == len(series)
    for left, right in zip(fit.levels, fit.levels[1:], strict=False):
        assert left.stop == right.start
    assert all(level.count >= min(MIN_SIZE, len(series)) for level in fit.levels)
    slack = 1e-9 * max(map(abs, series))
    assert all(min(series) - slack <= level.mean <= max(series) + slack for level in fit.levels)
    assert np.isfinite(fit.sigma)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 0.1, 7.0, 1e6]))
def test_the_unit_does_not_matter(seed, unit):
    rng = np.random.default_rng(seed)
    series = np.repeat(rng.uniform(50, 150, 4), 15) + rng.standard_normal(60)
    assert starts(series) == starts(series * unit)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_up_and_down_are_alike(seed):
    rng = np.random.default_rng(seed)
    series = np.repeat(rng.uniform(50, 150, 4), 15) + rng.standard_normal(60)
    assert starts(series) == starts(-series)
