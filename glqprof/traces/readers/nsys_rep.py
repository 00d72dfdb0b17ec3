"""Export an ``.nsys-rep`` to SQLite with the nsys that is on the PATH, once."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glqprof.errors import InputError


@contextmanager
def export_nsys_rep(path: Path) -> Iterator[Path]:
    """The SQLite export of a report, made when there is none newer than it beside it.

    Where the folder cannot be written, the export is temporary. Raises InputError when nsys is absent or fails.
    """
    cached = path.with_suffix(".sqlite")
    if cached.exists() and cached.stat().st_mtime >= path.stat().st_mtime:
        yield cached
        return
    nsys = shutil.which("nsys")
    if nsys is None:
        raise InputError(
            path, "needs nsys on the PATH to be exported; export it where nsys is: `nsys export --type sqlite`"
        )
    keep = os.access(path.parent, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="glqprof-", dir=path.parent if keep else None) as folder:
        exported = Path(folder) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--lazy", "true", "--output", str(exported), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0 or not exported.exists():
            lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            why = lines[-1].strip() if lines else f"status {done.returncode}"
            raise InputError(path, f"nsys could not export it ({why}); is this nsys at least as new as the report's?")
        if keep:
            exported.replace(cached)
            yield cached
        else:
            yield exported
