"""The picture of a trend: a panel a series, levels and steps where they are, labels that do not touch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from trend.made import commit, samples, values

from glqprof.errors import InputError
from glqprof.reports.trend_figure import MAX_PANELS, draw_trend
from glqprof.trend import Store, check
from support.cli import glqprof


def report(tmp_path, count, steps, **more):
    store = Store(tmp_path / "t.sqlite")
    store.add(samples(values(count, steps, **more)))
    store.add(samples(np.full(count, 162.0), metric="syncs", unit="calls"))
    return check(store.samples())


def texts(axes):
    return [t.get_text() for t in axes.texts]


def test_panels_have_names_units_and_the_newest_commit(tmp_path):
    figure = draw_trend(report(tmp_path, 200, {120: 1.05}))
    top, bottom = figure.axes
    assert top.get_title(loc="left") == "eager_us · v3b, lower is better"
    assert (top.get_ylabel(), bottom.get_ylabel()) == ("µs", "calls")
    labels = [t.get_text() for t in top.get_xticklabels()]
    assert labels[-1] == commit(199)[:8]
    assert len(labels) <= 14
    assert any(t.startswith(commit(120)[:10]) for t in texts(top))
    assert not any(commit(n)[:10] in t for t in texts(bottom) for n in range(200))


@pytest.mark.parametrize(("count", "steps"), [(5, {}), (12, {6: 1.2}), (200, {20: 1.1, 26: 0.9, 32: 1.1, 38: 0.9}),
                                              (200, {190: 1.1, 195: 1.1}), (200, {5: 1.1})])  # fmt: skip
def test_no_two_labels_touch_and_none_is_cut(tmp_path, count, steps):
    made = report(tmp_path, count, steps)
    figure = draw_trend(made)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    for axes in figure.axes:
        boxes = [t.get_window_extent(renderer) for t in axes.texts if "%" in t.get_text()]
        for a, b in itertools.combinations(boxes, 2):
            assert not a.overlaps(b)
        ticks = [t.get_window_extent(renderer) for t in axes.get_xticklabels()]
        for a, b in itertools.pairwise(ticks):
            assert a.x1 < b.x0
        for box in [*boxes, *ticks, axes.title.get_window_extent(renderer)]:
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
    found = [s for f in made.findings for s in f.steps]
    assert len([t for t in texts(figure.axes[0]) if "%" in t]) == len(found) == len(steps)


def test_an_outlier_is_marked_at_the_edge_and_does_not_flatten_the_rest(tmp_path):
    numbers = values(100, {})
    numbers[30] = 5000.0
    store = Store(tmp_path / "t.sqlite")
    store.add(samples(numbers))
    (axes,) = draw_trend(check(store.samples())).axes
    _, high = axes.get_ylim()
    assert high < 200
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "^"] == [[30]]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_files(tmp_path, kind):
    report(tmp_path, 30, {20: 1.1})
    out = tmp_path / f"p.{kind}"
    assert glqprof("trend", "plot", "--store", tmp_path / "t.sqlite", "-o", out, "--last", "15").status == 0
    assert out.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")


def test_too_many_panels_and_unknown_types_are_refused(tmp_path):
    store = Store(tmp_path / "t.sqlite")
    for n in range(MAX_PANELS + 1):
        store.add(samples([1.0], metric=f"m{n}"))
    with pytest.raises(InputError, match="41 series are too many for one picture"):
        draw_trend(check(store.samples()))
    ran = glqprof("trend", "plot", "--store", tmp_path / "t.sqlite", "-o", tmp_path / "p.gif")
    assert (ran.status, "is no figure type" in ran.err) == (2, True)
    assert not (tmp_path / "p.gif").exists()
