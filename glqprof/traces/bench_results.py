"""Read back what `glqprof bench --format json` printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from glqprof.errors import InputError
from glqprof.traces.schema.bench import BENCH_SCHEMA, BenchResult

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    "name", "rows", "timing", "median_us", "p10_us", "p90_us", "ratio", "ratio_low", "ratio_high", "verdict", "ok",
    "identical", "max_abs_err", "bytes", "gb_s", "floor_us", "launches", "syncs",
]  # fmt: skip


def read_bench(path: str | Path) -> pd.DataFrame:
    """A bench result (``glqprof.bench/1``) as one row per variant, number of rows and timing (eager, graph).

    Columns as in docs/api.md; times in µs, ``ratio`` is candidate time ÷ baseline time with its 95 % interval. The
    frame's ``attrs`` hold group, geometry, baseline, device, noise_floor_pct and warnings. Raises InputError for a
    file that is absent, no JSON or of another schema.
    """
    import pandas as pd

    document = _document(Path(path))
    try:
        rows = [row for variant in document["variants"] for row in _rows(variant)]
    except (KeyError, TypeError) as error:
        raise InputError(path, f"does not follow {BENCH_SCHEMA} ({error!r}); run the bench again") from None
    frame = pd.DataFrame(rows, columns=COLUMNS)
    kept = ("group", "geometry", "baseline", "device", "noise_floor_pct", "warnings")
    frame.attrs.update({key: document.get(key) for key in kept})
    return frame


def read_bench_result(path: str | Path) -> BenchResult:
    """A bench result whole, as `glqprof bench` had it. Raises InputError as `read_bench` does."""
    document = _document(Path(path))
    try:
        return msgspec.convert(document, BenchResult)
    except msgspec.ValidationError as error:
        raise InputError(path, f"does not follow {BENCH_SCHEMA} ({error}); run the bench again") from None


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(path, "no such file; check the path") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); give a result of glqprof bench") from None
    except ValueError as error:
        raise InputError(path, f"is not JSON ({error}); give what glqprof bench --format json printed") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != BENCH_SCHEMA:
        raise InputError(path, f"has schema {schema!r}, this reads {BENCH_SCHEMA!r}; give a result of glqprof bench")
    return document


def _rows(variant: dict[str, Any]) -> list[list[Any]]:
    found = []
    for timing in ("eager", "graph"):
        t = variant["timings"][timing]
        if t is not None:
            low, high = t["ratio_ci"] or (None, None)
            times = [t["median_us"], t["p10_us"], t["p90_us"], t["ratio"], low, high, t["verdict"]]
            head = [variant["name"], variant["rows"], timing]
            rest = [variant[key] for key in COLUMNS[10:]]
            found.append([*head, *times, *rest])
    return found
