"""The raw and the details page of one session say the same, to the digits that each prints."""

from __future__ import annotations

import csv

from ncu.reports import DETAILS, RAW, decimals

from glqprof.traces.ncu_reports import load_ncu_report
from glqprof.traces.readers.ncu_labels import metric_name
from glqprof.traces.schema.ncu import base_unit


def test_raw_and_details_pages_agree_to_the_digits_printed():
    raw = {x.id: x.metrics for x in load_ncu_report(RAW).launches}
    compared, only_details = 0, set()
    with DETAILS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if not row["Metric Name"]:
                continue
            unit, factor = base_unit(row["Metric Unit"])
            name = metric_name(row["Metric Name"], row["Section Name"], unit)
            text = row["Metric Value"].replace(",", "")
            if name not in raw[int(row["ID"])]:
                only_details.add(name)
                continue
            half_a_digit = 0.5 * 10.0 ** -decimals(text) * (1 + 1e-9)
            assert abs(raw[int(row["ID"])][name] / factor - float(text)) <= half_a_digit, (row["ID"], name, text)
            compared += 1
    assert compared >= 8 * 70
    assert all(": " in name or name.startswith("launch__") for name in only_details), only_details  # nothing misnamed


def test_both_pages_give_the_same_launches():
    raw, details = load_ncu_report(RAW), load_ncu_report(DETAILS)
    for a, b in zip(raw.launches, details.launches, strict=True):
        assert (a.id, a.name, a.grid, a.block, a.process, a.stream) == (
            b.id,
            b.name,
            b.grid,
            b.block,
            b.process,
            b.stream,
        )
    shared = set(raw.units) & set(details.units)
    assert {n: raw.units[n] for n in shared} == {n: details.units[n] for n in shared}
