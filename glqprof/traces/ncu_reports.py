"""Open what Nsight Compute wrote: an ``.ncu-rep`` or a CSV page, gzipped or not, told apart by content."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

from glqprof.errors import InputError
from glqprof.traces.readers.ncu_csv import read_ncu_csv
from glqprof.traces.schema.manifest import read_manifest
from glqprof.traces.schema.ncu import Launch, NcuReport

NCU_MAGIC = b"NVR\x00"
OTHER_TOOLS = (
    (b"SQLite format 3\x00", "is a SQLite export of nsys, not an ncu report; see `glqprof breakdown`"),
    (b"version https://git-lfs", "is a Git LFS pointer, not the file itself; run `git lfs pull`"),
    (b"{", "is JSON (a Chrome trace?), not an ncu report; see `glqprof breakdown`"),
    (b"PK\x03\x04", "is a zip archive; unpack it and give the .ncu-rep or CSV inside"),
)


def load_ncu_report(path: str | Path) -> NcuReport:
    """Read an ``.ncu-rep`` (needs the extra ``[ncu]``) or the CSV of ``ncu --page raw`` or ``--page details``.

    A capture folder of `glqprof capture ncu` stands for both its pages, joined. Raises InputError for anything else,
    and for reports that are cut, empty, without values or of a European locale.
    """
    path = Path(path)
    if path.is_dir():
        return _capture(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(path, "no such file; check the path") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); give an .ncu-rep or ncu's CSV") from None
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(path, f"is a damaged gzip file ({error}); copy it again") from None
        return _read(data, path, packed=True)
    return _read(data, path, packed=False)


def _capture(folder: Path) -> NcuReport:
    manifest = read_manifest(folder)
    if manifest.tool != "ncu":
        raise InputError(folder, f"is a capture by {manifest.tool}, not by ncu; see `glqprof breakdown`")
    pages = [load_ncu_report(folder / name) for name in manifest.files if ".csv" in name]
    if not pages:
        pages = [load_ncu_report(folder / name) for name in manifest.files]
    joined = join_pages(*pages[:2]) if len(pages) > 1 and is_same_session(*pages[:2]) else pages[0]
    return replace(joined, name=manifest.name)


def _read(data: bytes, path: Path, *, packed: bool) -> NcuReport:
    if not data.strip():
        raise InputError(path, "is empty; ncu wrote nothing, profile again")
    if data.startswith(NCU_MAGIC):
        from glqprof.traces.readers.ncu_rep import read_ncu_rep

        if not packed:
            return read_ncu_rep(path)
        with tempfile.TemporaryDirectory(prefix="glqprof-") as folder:
            plain = Path(folder) / "report.ncu-rep"
            plain.write_bytes(data)
            return read_ncu_rep(plain, shown_as=path)
    for mark, why in OTHER_TOOLS:
        if data.lstrip()[: len(mark)] == mark:
            raise InputError(path, why)
    if path.name.endswith((".nsys-rep", ".qdrep", ".qdstrm")):
        raise InputError(path, "is a report of nsys, not of ncu; see `glqprof breakdown`")
    return read_ncu_csv(_decoded(data), path)


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # what PowerShell's > writes
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def is_same_session(one: NcuReport, other: NcuReport) -> bool:
    """Whether two files are the raw and the details page of one report: same launches of one process, each as long."""
    if {one.source, other.source} != {"raw", "details"} or len(one.launches) != len(other.launches):
        return False
    return all(_same_launch(a, b) for a, b in zip(one.launches, other.launches, strict=True))


def _same_launch(a: Launch, b: Launch) -> bool:
    if (a.id, a.process, a.name, a.grid) != (b.id, b.process, b.name, b.grid):
        return False
    durations = [launch.metrics.get("gpu__time_duration.sum") for launch in (a, b)]
    if durations[0] is None or durations[1] is None:
        return durations[0] is durations[1]
    return abs(durations[0] - durations[1]) <= 0.01 * durations[0]  # the details page rounds


def join_pages(one: NcuReport, other: NcuReport) -> NcuReport:
    """The raw page's metrics with the details page's rules and what only it holds; for two pages of one session."""
    raw, details = (one, other) if one.source == "raw" else (other, one)
    launches = tuple(
        replace(a, metrics={**b.metrics, **a.metrics}, texts={**b.texts, **a.texts}, rules=b.rules)
        for a, b in zip(raw.launches, details.launches, strict=True)
    )
    note = f"{raw.name} and {details.name} are two pages of one session: joined, not compared"
    return NcuReport(raw.name, "raw", launches, {**details.units, **raw.units}, (*raw.notes, note))
