"""The promise about steps, on made series: docs/trend.md has the full table, this is a smaller run of its script."""

from __future__ import annotations

import importlib.util
import json
import re

from support.paths import REPOSITORY

SCRIPT = REPOSITORY / "benchmarks" / "trend_detector.py"
RECORDED = json.loads((REPOSITORY / "benchmarks" / "results" / "trend-detector.json").read_text(encoding="utf-8"))
COMPARED = json.loads((REPOSITORY / "benchmarks" / "results" / "trend-detectors.json").read_text(encoding="utf-8"))
spec = importlib.util.spec_from_file_location("trend_detector", SCRIPT)
trend_detector = importlib.util.module_from_spec(spec)
spec.loader.exec_module(trend_detector)


def row(table, **wanted):
    return next(r for r in RECORDED[table] if all(r[name] == value for name, value in wanted.items()))


def test_noise_alone_gives_under_one_percent_false_alarms():
    # 1,000 series of 200 commits, none of which has a step: at most 9 may end in a regression.
    found = [trend_detector.without_step("normal", 0.01, seed, False) for seed in range(1000)]
    assert sum(f["end"] for f in found) < 10


def test_a_step_of_three_percent_is_found_within_five_commits():
    # Commit 195 of 200 is the first of the new level; `check` runs as each of the five arrives.
    found = [trend_detector.with_step("normal", 0.01, 0.03, 195, seed, most=5) for seed in range(200)]
    assert sum(f is not None for f in found) >= 0.95 * 200


def test_the_recorded_run_keeps_the_promise_and_was_made_with_these_settings():
    quiet = row("without_step", noise="normal", sigma=0.01)
    assert quiet["series"] == quiet["watched"] == 1000
    assert quiet["end"] < 10
    assert row("with_step", noise="normal", sigma=0.01, step=0.03, before=195)["within_5"] >= 0.95
    now = trend_detector
    assert RECORDED["settings"] == {
        "penalty": now.PENALTY, "max_p": now.MAX_P, "min_size": now.MIN_SIZE, "min_samples": now.MIN_SAMPLES,
        "last": now.LAST, "max_regression": now.MAX_REGRESSION,
    }  # fmt: skip


def test_the_tables_of_the_page_are_the_recorded_run():
    page = (REPOSITORY / "docs" / "trend.md").read_text(encoding="utf-8")

    def rows(heading):
        section = page.split(f"### {heading}\n")[1].split("\n#")[0]
        lines = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]
        return [[cell.strip() for cell in line.split("|")] for line in lines]

    expected = [
        [r["noise"], f"{100 * r['sigma']:g} %", f"{100 * r['step']:g} %", str(r["before"])]
        + [f"{100 * r[f'within_{k}']:.1f} %" for k in (3, 5, 10)]
        for r in RECORDED["with_step"]
    ]
    assert rows("A step is found") == expected
    expected = [
        [
            r["noise"],
            f"{100 * r['sigma']:g} %",
            f"{r['end']} of {r['series']:,}",
            f"{r['ever']} of {r['watched']:,}",
            f"{r['end_any_step']} of {r['series']:,}",
        ]
        for r in RECORDED["without_step"]
    ]
    assert rows("A step is reported where there is none") == expected
    expected = [
        [
            d["detector"],
            f"{100 * d['found_after_5']:.1f} %",
            f"{100 * d['found_after_10']:.1f} %",
            f"{d['false_at_end']} of {d['series']}",
            f"{d['ms_per_series']:g}",
        ]
        for d in COMPARED["detectors"]
    ]
    assert rows("Beside other detectors") == expected
