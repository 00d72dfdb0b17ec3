"""Samples of a trend store as a file for another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from glqprof.errors import InputError
from glqprof.reports.output import write_atomically, write_text

if TYPE_CHECKING:
    import pandas as pd

FORMATS = (".csv", ".parquet", ".json")


def check_export_path(path: Path) -> None:
    """Raise InputError for a file type that is not written."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(path, f"is no file type that can be written; end it in {', '.join(FORMATS)}")


def export_samples(samples: pd.DataFrame, path: Path) -> None:
    """Write `Store.samples` whole or not at all. ``environment`` becomes a JSON text, in a JSON file an object."""
    check_export_path(path)
    kind = path.suffix.lower()
    if kind == ".json":
        frame = samples.astype({"commit_time_s": object})
        rows = [
            {name: None if name == "commit_time_s" and value != value else value for name, value in row.items()}
            for row in frame.where(frame.notna(), None).to_dict("records")
        ]
        content = {"schema": "glqprof.trend/1", "verb": "export", "samples": rows}
        write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        return
    flat = samples.assign(environment=[json.dumps(e, sort_keys=True) for e in samples["environment"]])
    if kind == ".csv":
        write_text(path, flat.to_csv(index=False, lineterminator="\n"))
    else:
        write_atomically(path, lambda file: flat.to_parquet(file, index=False))
