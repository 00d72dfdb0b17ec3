from __future__ import annotations

import math
import random

import pytest

from glqprof.bench.stats import (
    MIN_QUADS,
    Quad,
    compare,
    median_interval,
    noise_floor_pct,
    percentile,
    quad_order,
)


def make_quads(rng: random.Random, ratio: float, count: int, noise: float, drift: float = 0.0) -> list[Quad]:
    """Simulate quads of a candidate at ``ratio``, with lognormal noise per block and a drift per block."""
    quads, slow = [], 1.0
    for index in range(count):
        order = quad_order(index)
        times = []
        for side in order:
            times.append((ratio if side == "B" else 1.0) * slow * rng.lognormvariate(0, noise))
            slow *= 1 + drift
        quads.append(Quad(order, tuple(times)))
    return quads


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.3])
def test_the_interval_covers_the_true_ratio_at_about_its_stated_rate(ratio):
    rng = random.Random(11)
    trials = 300
    covered = 0
    for trial in range(trials):
        low, high = median_interval([q.ratio for q in make_quads(rng, ratio, 20, 0.05)], seed=trial)
        covered += low <= ratio <= high
    # 95 % nominal; the percentile interval of a median over 20 is a little narrow, and 300 trials have σ = 1.3 %.
    assert 0.90 <= covered / trials <= 0.99


def test_a_against_a_is_not_distinguishable_in_at_least_95_percent():
    rng = random.Random(12)
    trials = 300
    same = 0
    for trial in range(trials):
        floor = noise_floor_pct(make_quads(rng, 1.0, 20, 0.05), trial)
        same += compare(make_quads(rng, 1.0, 20, 0.05), floor, trial).verdict == "not distinguishable"
    assert same / trials >= 0.95


def test_a_real_difference_is_found_and_has_the_right_sign():
    rng = random.Random(13)
    for ratio, verdict in ((0.9, "faster"), (1.1, "slower")):
        found = compare(make_quads(rng, ratio, 20, 0.02), noise_floor_pct(make_quads(rng, 1.0, 20, 0.02), 0), 0)
        assert (found.verdict, found.reason) == (verdict, "interval-excludes-1")
        assert found.ratio == pytest.approx(ratio, rel=0.02)


def test_drift_that_fools_a_sequential_design_does_not_fool_the_quads():
    """The machine gets 0.2 % slower from block to block; both sides are the same code."""
    rng = random.Random(14)
    quads = make_quads(rng, 1.0, 20, 0.002, drift=0.002)
    in_order = [time for quad in quads for time in quad.seconds]
    half = len(in_order) // 2
    sequential = sorted(in_order[half:])[half // 2] / sorted(in_order[:half])[half // 2]
    assert sequential > 1.07  # all of A, then all of B: B looks 7 % slower
    found = compare(quads, noise_floor_pct(make_quads(rng, 1.0, 20, 0.002, drift=0.002), 0), 0)
    assert found.verdict == "not distinguishable"
    assert found.ratio == pytest.approx(1.0, abs=0.003)


def test_a_constant_drift_cancels_exactly_in_one_quad():
    times = [1.01**index for index in range(4)]
    for order in ("ABBA", "BAAB"):
        assert Quad(order, tuple(times)).ratio == pytest.approx(1.0, abs=1e-12)


def test_within_the_noise_floor_nothing_is_claimed():
    quads = [Quad("ABBA", (1.0, 1.01 + i * 1e-5, 1.01, 1.0)) for i in range(10)]
    assert compare(quads, floor_pct=None, seed=0).verdict == "slower"
    found = compare(quads, floor_pct=2.0, seed=0)
    assert (found.verdict, found.reason) == ("not distinguishable", "within-noise-floor")


def test_too_few_quads_give_a_ratio_but_no_verdict():
    quads = [Quad("ABBA", (1.0, 2.0, 2.0, 1.0))] * (MIN_QUADS - 1)
    found = compare(quads, None, 0)
    assert (found.ratio, found.interval) == (2.0, None)
    assert (found.verdict, found.reason) == ("not distinguishable", "too-few-quads")
    assert noise_floor_pct(quads, 0) is None


def test_the_interval_is_reproducible_and_of_constant_values_a_point():
    values = [1.0, 1.1, 0.9, 1.05, 0.97, 1.2]
    assert median_interval(values, seed=4) == median_interval(values, seed=4)
    assert median_interval([3.0, 3.0, 3.0], seed=0) == (3.0, 3.0)
    with pytest.raises(ValueError, match="two values"):
        median_interval([1.0], seed=0)


def test_the_order_alternates_so_that_no_side_is_always_first():
    assert [quad_order(i) for i in range(3)] == ["ABBA", "BAAB", "ABBA"]


def test_percentile_interpolates():
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0, 2.0], 10) == pytest.approx(1.1)
    assert math.isclose(percentile([5.0], 90), 5.0)
