"""How often `glqprof trend check` finds a step, and how often it cries wolf: made series, seeded, no GPU.

    python benchmarks/trend_detector.py -o benchmarks/results/trend-detector.json    # some minutes on two cores
    python benchmarks/trend_detector.py --others -o benchmarks/results/trend-detectors.json # beside asv's and Otava's

A *false alarm* is a regression reported in a series without a step. *At the end*: one check of all 200 commits.
*Ever*: a check after each commit from the tenth on, as CI does it; one alarm among the 191 checks counts.
*Found within k*: a check after one of the first k commits on the new level reports a regression, and places the step
at most `PLACE` commits from where it was put.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

import numpy as np

from glqprof.trend.regressions import LAST, MAX_REGRESSION, MIN_SAMPLES, check
from glqprof.trend.sample import SeriesKey
from glqprof.trend.series import Series
from glqprof.trend.steps import MAX_P, MIN_SIZE, PENALTY, fit_levels

COMMITS = 200
LEVEL = 100.0
PLACE = 3
NAMES = tuple(f"{i:07x}" for i in range(2 * COMMITS))
KEY = SeriesKey("synthetic", "", "ms_per_token", "none")
KINDS = ("normal", "heavy tails", "outliers", "rounded", "drift", "correlated 0.3", "correlated 0.6")


def noise(kind: str, sigma: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Relative deviations from the level, of standard deviation ``sigma`` before what ``kind`` adds."""
    normal = rng.standard_normal(count)
    if kind == "heavy tails":  # Student's t with 3 degrees of freedom, scaled to variance 1
        return sigma * rng.standard_t(3, count) / np.sqrt(3)
    if kind == "outliers":  # one value in twenty is 10 to 50 % slower: a neighbour on the machine
        return sigma * normal + (rng.random(count) < 0.05) * rng.uniform(0.1, 0.5, count)
    if kind == "rounded":  # a clock that ticks at twice the noise
        return np.round(normal / 2) * 2 * sigma
    if kind == "drift":  # 1 % in 200 commits, in no single one
        return sigma * normal + np.linspace(0, 0.01, count)
    if kind.startswith("correlated"):  # AR(1): the machine remembers the run before
        phi = float(kind.split()[1])
        values = np.empty(count)
        state = normal[0]
        for i in range(count):
            state = state if i == 0 else phi * state + np.sqrt(1 - phi**2) * normal[i]
            values[i] = state
        return sigma * values
    return sigma * normal


def series(values: np.ndarray) -> Series:
    n = len(values)
    return Series(KEY, "ms", "lower", NAMES[:n], np.arange(n), values, np.ones(n, dtype=int), ({},) * n)


def alarm(values: np.ndarray) -> int | None:
    """The place of the step that a check calls a regression, or None."""
    finding = check([series(values)]).findings[0]
    return finding.step.index if finding.status == "regression" and finding.step else None


def without_step(kind: str, sigma: float, seed: int, each_commit: bool) -> dict[str, bool]:
    values = LEVEL * (1 + noise(kind, sigma, COMMITS, np.random.default_rng(seed)))
    found = {"end": alarm(values) is not None, "end_any_step": len(fit_levels(values).levels) > 1}
    if each_commit:
        found["ever"] = any(alarm(values[:n]) is not None for n in range(MIN_SAMPLES, COMMITS + 1))
    return found


def with_step(kind: str, sigma: float, step: float, before: int, seed: int, most: int = 10) -> int | None:
    """After how many commits on the new level the step was found; None: not within ``most``."""
    values = LEVEL * (1 + noise(kind, sigma, before + most, np.random.default_rng(seed)))
    values[before:] *= 1 + step
    for k in range(1, most + 1):
        place = alarm(values[: before + k])
        if place is not None and abs(place - before) <= PLACE:
            return k
    return None


def false_alarms(pool: ProcessPoolExecutor, kind: str, sigma: float, count: int, watched: int) -> dict[str, object]:
    each_commit = [i < watched for i in range(count)]
    runs = list(pool.map(without_step, [kind] * count, [sigma] * count, range(count), each_commit, chunksize=5))
    return {
        "noise": kind,
        "sigma": sigma,
        "series": count,
        "end": sum(r["end"] for r in runs),
        "end_any_step": sum(r["end_any_step"] for r in runs),
        "watched": watched,
        "ever": sum(r.get("ever", False) for r in runs),
    }


def detection(
    pool: ProcessPoolExecutor, kind: str, sigma: float, step: float, before: int, count: int
) -> dict[str, object]:
    seeds = range(10_000, 10_000 + count)
    parts = [kind] * count, [sigma] * count, [step] * count, [before] * count, seeds
    found = list(pool.map(with_step, *parts, chunksize=10))
    within = {k: sum(f is not None and f <= k for f in found) / count for k in (3, 5, 10)}
    return {
        "noise": kind,
        "sigma": sigma,
        "step": step,
        "before": before,
        "series": count,
        "within_3": within[3],
        "within_5": within[5],
        "within_10": within[10],
    }


def others(count: int) -> list[dict[str, object]]:
    """The detectors of asv and Otava with their defaults, and ours, on the same series: any step counts."""
    from asv.step_detect import detect_steps
    from otava.analysis import compute_change_points

    def ours(values: np.ndarray) -> list[int]:
        return [level.start for level in fit_levels(values).levels[1:]]

    def asv(values: np.ndarray) -> list[int]:
        return [left for left, *_ in detect_steps(list(values))][1:]

    def otava(values: np.ndarray) -> list[int]:
        return [point.index for point in compute_change_points(values.tolist())[0]]

    rows = []
    for name, detector in (("glqprof (ruptures)", ours), ("asv", asv), ("Otava", otava)):
        errors = false = 0
        found = {5: 0, 10: 0}
        start = time.perf_counter()
        for seed in range(count):
            rng = np.random.default_rng(seed)
            plain = LEVEL * (1 + noise("normal", 0.01, COMMITS, rng))
            stepped = LEVEL * (1 + noise("normal", 0.01, COMMITS // 2 + 10, rng))
            stepped[COMMITS // 2 :] *= 1.03
            try:
                false += bool(detector(plain))
                for k in found:
                    places = detector(stepped[: COMMITS // 2 + k])
                    found[k] += any(abs(place - COMMITS // 2) <= PLACE for place in places)
            except ValueError:
                errors += 1
        ms = 1e3 * (time.perf_counter() - start) / (3 * count)
        rows.append({"detector": name, "series": count, "false_at_end": false, "found_after_5": found[5] / count,
                     "found_after_10": found[10] / count, "errors": errors, "ms_per_series": round(ms, 2)})  # fmt: skip
    return rows


def measure(scale: float, workers: int) -> dict[str, object]:
    """All tables; ``scale`` shrinks the number of series."""
    many, some = round(1000 * scale), round(500 * scale)
    with ProcessPoolExecutor(workers) as pool:
        quiet = []
        for kind in KINDS:
            for sigma in (0.005, 0.01, 0.02) if kind == "normal" else (0.01,):
                watched = many if (kind, sigma) == ("normal", 0.01) else round(300 * scale)
                quiet.append(false_alarms(pool, kind, sigma, many, watched))
                print(quiet[-1], file=sys.stderr)
        steps = [("normal", s, d, 100) for s in (0.005, 0.01, 0.02) for d in (0.02, 0.03, 0.05, 0.10)]
        steps += [("normal", 0.01, 0.03, before) for before in (15, 30, 50, 195)]
        steps += [(kind, 0.01, d, 100) for kind in KINDS[1:] for d in (0.03, 0.05)]
        loud = [detection(pool, *step, some) for step in steps]
    settings = {"penalty": PENALTY, "max_p": MAX_P, "min_size": MIN_SIZE, "min_samples": MIN_SAMPLES, "last": LAST}
    return {"commits": COMMITS, "settings": {**settings, "max_regression": MAX_REGRESSION}, "without_step": quiet,
            "with_step": loud}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the series that are made")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--others", action="store_true", help="instead: asv's and apache-otava's beside ours")
    arguments = parser.parse_args()
    content: dict[str, object]
    if arguments.others:
        content = {"series": COMMITS, "detectors": others(round(200 * arguments.scale))}
        packages = ("numpy", "scipy", "ruptures", "asv", "apache-otava")
    else:
        content = measure(arguments.scale, arguments.workers)
        packages = ("numpy", "scipy", "ruptures")
    content["versions"] = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    arguments.output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
