"""The binary report: three kernels of a CUDA graph on a GB200, against what the package says when asked directly."""

from __future__ import annotations

import gzip
import math
import sys

import pytest
from ncu.reports import GB200

from glqprof.errors import InputError
from glqprof.traces.ncu_reports import load_ncu_report

ncu_report = pytest.importorskip("ncu_report", reason="the extra [ncu] is not installed")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("ncu") / "gb200.ncu-rep"
    path.write_bytes(gzip.decompress(GB200.read_bytes()))
    return path


@pytest.fixture(scope="module")
def report(plain):
    return load_ncu_report(plain)


def test_three_kernels_with_their_shapes(report):
    found = [(x.id, x.name, x.grid, x.block, x.compute_capability, x.workload) for x in report.launches]
    assert found == [
        (0, "kernelA(float *, int)", (4, 1, 1), (256, 1, 1), "10.0", "kernel"),
        (1, "kernelB(float *, int)", (2, 1, 1), (256, 1, 1), "10.0", "kernel"),
        (2, "kernelC(float *, int)", (2, 1, 1), (256, 1, 1), "10.0", "kernel"),
    ]
    assert report.launches[0].texts["device__attribute_display_name"] == "NVIDIA GB200"
    assert report.source == "ncu-rep"


def test_every_value_is_the_packages_and_what_has_none_is_missing(plain, report):
    whole = ncu_report.load_report(str(plain)).range_by_idx(0)
    held = missing = 0
    for number, launch in enumerate(report.launches):
        action = whole.action_by_idx(number)
        for name in action.metric_names():
            metric = action.metric_by_name(name)
            if not metric.has_value():
                assert metric.value() in (0, None)  # the trap: 0 where nothing was measured
                assert name not in launch.metrics
                missing += 1
            elif metric.kind() != metric.ValueKind_STRING and not math.isfinite(metric.as_double()):
                assert name not in launch.metrics
            elif metric.kind() != metric.ValueKind_STRING:
                assert launch.metrics[name] == pytest.approx(metric.as_double()), name
                held += 1
    assert held > 3 * 2300
    assert missing > 0


def test_rules_read_like_ncus_own_csv(report):
    rules = report.launches[1].rules
    small = next(r for r in rules if r.rule == "LaunchConfiguration")
    assert (small.kind, small.scope) == ("OPT", "global")
    assert small.speedup_pct == pytest.approx(100 * (1 - 2 / 152))  # two blocks on 152 SMs
    assert not any("@section" in r.text or "@url" in r.text for r in rules)


def test_without_the_package_the_error_names_the_extra(plain, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(InputError, match=r"needs the package ncu-report.*glqprof\[ncu\].*--csv --page raw"):
        load_ncu_report(plain)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99999])
def test_a_cut_report_is_refused_before_the_package_drops_kernels_of_it(plain, tmp_path, share):
    data = plain.read_bytes()
    cut = tmp_path / "cut.ncu-rep"
    cut.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(InputError, match="is cut or damaged"):
        load_ncu_report(cut)


def test_what_only_begins_like_a_report_is_refused(tmp_path):
    for content in (b"NVR\x00", b"NVR\x00" + b"x" * 500, b"NVR\x00\x02\x00\x00\x00\x08\x07"):
        path = tmp_path / "x.ncu-rep"
        path.write_bytes(content)
        with pytest.raises(InputError, match="cut"):
            load_ncu_report(path)


def test_a_report_overwritten_in_the_middle_is_refused(plain, tmp_path):
    data = bytearray(plain.read_bytes())
    data[400_000:403_000] = bytes(3_000)
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(data)
    with pytest.raises(InputError, match="is damaged"):
        load_ncu_report(path)
