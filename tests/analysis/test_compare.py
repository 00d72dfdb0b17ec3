"""Verdicts: from untraced runs or repeats only, with an interval where there are enough."""

from __future__ import annotations

import numpy as np
import pytest

import glqprof
from analysis.by_hand import Recording
from analysis.make_trace import make_trace
from analysis.test_windows import CALLS, KERNELS, FakeCapture, manifest, steps
from glqprof.analysis.breakdown import Breakdown
from glqprof.traces.schema.manifest import Gpu, Untraced, UntracedRun

TRACE = make_trace(Recording(KERNELS, CALLS), steps())


def side(ms: float | list[float] | None, sha: str | None = None) -> Breakdown:
    untraced = None
    if isinstance(ms, list):
        mean = sum(ms) / len(ms)
        untraced = Untraced(1000 / mean, mean, runs=[UntracedRun(m) for m in ms])
    elif ms is not None:
        untraced = Untraced(1000 / ms, ms)
    return glqprof.breakdown(FakeCapture("x", TRACE, manifest(untraced=untraced, token_sha=sha)))


def test_traced_once_is_no_evidence() -> None:
    (c,) = glqprof.compare(side(None), side(None))
    assert (c.verdict, c.reason) == ("not distinguishable", "traced once")


def test_one_traced_and_one_untraced_side_is_no_evidence() -> None:
    (c,) = glqprof.compare(side(10.0), side(None))
    assert c.verdict == "not distinguishable"


@pytest.mark.parametrize(("cand", "verdict"), [(8.0, "faster"), (12.0, "slower"), (10.2, "not distinguishable")])
def test_one_untraced_run_a_side_says_that_it_has_no_interval(cand: float, verdict: str) -> None:
    (c,) = glqprof.compare(side(10.0), side(cand))
    assert c.verdict == verdict
    assert c.interval is None
    assert "one untraced run a side" in c.reason


def test_repeats_give_an_interval_that_holds_the_true_ratio() -> None:
    """Runs drawn around 10 and 9 ms with 1 % noise: the ratio 0.9 lies in the interval and the verdict is faster."""
    generator = np.random.default_rng(7)
    base = (10 * (1 + 0.01 * generator.standard_normal(12))).tolist()
    cand = (9 * (1 + 0.01 * generator.standard_normal(12))).tolist()
    (c,) = glqprof.compare(side(base), side(cand))
    assert c.interval is not None
    assert c.interval.low < 0.9 < c.interval.high
    assert c.interval.high - c.interval.low < 0.03
    assert c.verdict == "faster"


def test_same_distribution_is_not_distinguishable_at_the_stated_rate() -> None:
    """A against A: a 95 % interval excludes 1 about once in twenty; a bootstrap over 10 runs a little more often."""
    generator = np.random.default_rng(11)
    wrong = 0
    for _ in range(60):
        a, b = (10 * (1 + 0.02 * generator.standard_normal((2, 10)))).tolist()
        (c,) = glqprof.compare(side(a), side(b))
        wrong += c.verdict != "not distinguishable"
    assert wrong <= 9


def test_token_sha_is_compared_only_when_both_have_one() -> None:
    assert glqprof.compare(side(10.0, "a"), side(10.0, "a"))[0].token_sha_equal is True
    assert glqprof.compare(side(10.0, "a"), side(10.0, "b"))[0].token_sha_equal is False
    assert glqprof.compare(side(10.0, "a"), side(10.0))[0].token_sha_equal is None


def test_deltas_sum_to_the_wall_delta() -> None:
    shorter = make_trace(Recording(KERNELS[:5], CALLS[:5]), steps()[:1])
    base = glqprof.breakdown(FakeCapture("base", TRACE))
    cand = glqprof.breakdown(FakeCapture("cand", shorter))
    (c,) = glqprof.compare(base, cand)
    assert c.rows["delta_ms"].sum() == pytest.approx(c.wall.delta, abs=1e-12)
    assert c.wall.base == pytest.approx(990 / 2 / 1e6)
    assert c.wall.cand == pytest.approx(490 / 1e6)
    assert c.totals["launches"].delta == -5


def test_different_workloads_or_gpus_get_no_verdict() -> None:
    """Half the milliseconds of another model is no speed-up."""

    def of(ms: float, workload: str = "", gpu: str = "") -> Breakdown:
        gpus = [Gpu(gpu)] if gpu else []
        written = manifest(untraced=Untraced(1000 / ms, ms), workload=workload, gpus=gpus)
        return glqprof.breakdown(FakeCapture("x", TRACE, written))

    (c,) = glqprof.compare(of(10.0, workload="tiny"), of(5.0, workload="large"))
    assert (c.verdict, c.reason) == ("not distinguishable", "different workloads: tiny and large")
    (c,) = glqprof.compare(of(10.0, gpu="NVIDIA A100"), of(5.0, gpu="NVIDIA H200"))
    assert (c.verdict, c.reason) == ("not distinguishable", "different GPUs: NVIDIA A100 and NVIDIA H200")
    (c,) = glqprof.compare(of(10.0, workload="tiny"), of(5.0))
    assert c.verdict == "faster"
