"""What `check` compares, and what it says where there is more than one step."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from trend.made import commit, samples, values

from glqprof.trend import Store, all_series, check


def found(tmp_path, numbers, **options):
    store = Store(tmp_path / "t.sqlite")
    store.add(samples(numbers))
    (finding,) = check(store.samples(), **options).findings
    return finding


def test_small_steps_add_up(tmp_path):
    # 1.5 % and 1.5 % within the last 20 commits: neither is 2 %, the series is.
    finding = found(tmp_path, values(80, {65: 1.015, 72: 1.015}, sigma=0.001))
    assert [s.index for s in finding.steps] == [65, 72]
    assert finding.status == "regression"
    assert finding.change == pytest.approx(0.0302, abs=0.002)


def test_a_regression_that_was_mended_is_none(tmp_path):
    finding = found(tmp_path, values(80, {65: 1.1, 72: 1 / 1.1}, sigma=0.001))
    assert [s.worse for s in finding.steps] == [True, False]
    assert finding.status in ("steady", "changed")
    assert abs(finding.change) < 0.005


def test_the_named_step_is_the_one_that_did_it(tmp_path):
    finding = found(tmp_path, values(80, {62: 1.01, 68: 1.2, 74: 1.01}, sigma=0.001))
    assert (finding.step.index, finding.step.commit, finding.step.previous) == (68, commit(68), commit(67))


def test_a_mended_series_is_not_held_to_its_worst_level(tmp_path):
    # Slow for 10 commits, which is what the series was 20 commits ago; then mended: better, no regression.
    finding = found(tmp_path, values(80, {50: 1.1, 65: 1 / 1.1}, sigma=0.001))
    assert finding.status == "improvement"


def test_an_accepted_step_does_not_excuse_a_later_one(tmp_path):
    numbers = values(80, {62: 1.1, 72: 1.05}, sigma=0.001)
    finding = found(tmp_path, numbers, accept=[commit(62)])
    assert (finding.status, finding.step.index) == ("regression", 72)
    assert finding.change == pytest.approx(0.05, abs=0.003)
    assert found(tmp_path, numbers, accept=[commit(62), commit(72)]).status == "steady"


def test_the_older_the_step_the_less_it_counts(tmp_path):
    for last, status in ((9, "steady"), (10, "regression"), (50, "regression")):
        assert found(tmp_path, values(80, {70: 1.1}), last=last).status == status


def test_negative_values_have_directions_too(tmp_path):
    # A difference to a base, from -50 to -45: higher, and lower is better, so worse by 10 % of its size.
    finding = found(tmp_path, values(60, {50: 0.9}, level=-50.0, sigma=0.001))
    assert (finding.status, finding.change) == ("regression", pytest.approx(0.1, abs=0.005))


def test_series_are_ordered_and_their_values_are_medians(tmp_path):
    store = Store(tmp_path / "t.sqlite")
    for run, factor in (("a", 1.0), ("b", 1.2), ("c", 9.0)):
        store.add(samples(np.arange(1.0, 6.0) * factor, run=run))
    (series,) = all_series(store.samples())
    assert series.commits == tuple(commit(i) for i in range(5))
    assert series.values == pytest.approx(1.2 * np.arange(1.0, 6.0))
    assert list(series.samples) == [3] * 5
    assert np.all(np.diff(series.times) == 3600)


def test_the_frame_has_a_row_a_series_and_shows_itself(tmp_path):
    store = Store(tmp_path / "t.sqlite")
    store.add([*samples(values(60, {50: 1.1})), *samples([1.0, 2.0], metric="other")])
    report = check(store.samples())
    frame = report.frame
    assert isinstance(frame, pd.DataFrame)
    assert list(frame["status"]) == ["regression", "not enough data"]
    assert next(iter(frame["commit"])) == commit(50)
    assert "regression" in report._repr_html_()
    assert (report.ok, len(report.undecided)) == (False, 1)


def test_nothing_is_nothing(tmp_path):
    store = tmp_path / "t.sqlite"
    store.touch()
    report = check(Store(store).samples())
    assert (report.ok, report.findings, len(report.frame)) == (True, (), 0)
