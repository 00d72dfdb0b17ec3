"""Raw page, details page and .ncu-rep of one H200 session of our own kernels: the same numbers, to the last digit."""

from __future__ import annotations

import csv
import re

import pytest
from ncu.reports import DATA, decimals

from glqprof.analysis.ncu_analysis import analyse
from glqprof.traces.ncu_reports import load_ncu_report
from glqprof.traces.readers.ncu_labels import metric_name
from glqprof.traces.schema.ncu import base_unit

REP, RAW, DETAILS = (DATA / name for name in ("session.ncu-rep.gz", "session-raw.csv", "session-details.csv"))
pytestmark = pytest.mark.skipif(
    not all(p.exists() for p in (REP, RAW, DETAILS)),
    reason="no recorded session yet: run benchmarks/ncu_device.sh on the H200 and put session* into tests/data/ncu",
)


@pytest.fixture(scope="module")
def rep():
    pytest.importorskip("ncu_report", reason="the extra [ncu] is not installed")
    return load_ncu_report(REP)


def test_the_raw_page_prints_what_the_report_holds(rep):
    with RAW.open(encoding="utf-8", newline="") as file:
        header, units, *rows = list(csv.reader(file))
    assert len(rows) == len(rep.launches)
    compared = 0
    for launch, row in zip(rep.launches, rows, strict=True):
        # The report holds the name with namespaces, and casts before template arguments, the page without and with.
        function = re.compile(r"glq_\w+")
        assert function.search(launch.name)[0] == function.search(row[header.index("Kernel Name")])[0]
        for name, unit, text in zip(header, units, row, strict=True):
            if name in launch.metrics and text not in ("", "n/a", "nan"):
                _, factor = base_unit(unit)
                close(launch.metrics[name] / factor, text, name)
                compared += 1
    assert compared > 50 * len(rows)


def test_the_details_page_prints_what_the_report_holds(rep):
    metrics = {x.id: x.metrics for x in rep.launches}
    compared = 0
    with DETAILS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["Metric Name"]:
                unit, factor = base_unit(row["Metric Unit"])
                name = metric_name(row["Metric Name"], row["Section Name"], unit)
                if name in metrics[int(row["ID"])]:
                    close(metrics[int(row["ID"])][name] / factor, row["Metric Value"], name)
                    compared += 1
    assert compared > 25 * len(metrics)


def test_all_three_are_diagnosed_alike_where_they_hold_the_same(rep):
    from_rep, from_raw = analyse(rep), analyse(load_ncu_report(RAW))
    assert [k.diagnosis.code for k in from_rep.kernels] == [k.diagnosis.code for k in from_raw.kernels]
    for a, b in zip(from_rep.kernels, from_raw.kernels, strict=True):
        assert a.numbers.duration_us == pytest.approx(b.numbers.duration_us, rel=1e-6)
        assert a.numbers.occupancy.limiter == b.numbers.occupancy.limiter


def close(value: float, text: str, name: str) -> None:
    half_a_digit = 0.5 * 10.0 ** -decimals(text) * (1 + 1e-6)
    assert abs(value - float(text.replace(",", ""))) <= half_a_digit + 1e-9 * abs(value), (name, value, text)
