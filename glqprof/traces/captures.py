"""Open a capture: a folder with ``capture.json``, or a bare file that a profiler wrote."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glqprof.errors import InputError
from glqprof.traces.schema.manifest import MANIFEST_NAME, Manifest, read_manifest
from glqprof.traces.schema.trace import Trace

SQLITE_MAGIC = b"SQLite format 3\x00"
LFS_MAGIC = b"version https://git-lfs"
GZIP_MAGIC = b"\x1f\x8b"
NCU_MAGIC = b"NVR\x00"


@dataclass(repr=False)
class Capture:
    """A trace and, when it came from a capture folder, the manifest beside it."""

    name: str
    path: Path
    trace: Trace
    manifest: Manifest | None = None

    def __repr__(self) -> str:
        return f"<Capture {self.name}: {self.trace!r}>"

    def _repr_html_(self) -> str:
        return self.trace._repr_html_()


def load(path: str | Path, *, launch_config: bool = True) -> Capture:
    """Open a capture folder or a bare trace file.

    ``path``: a folder with ``capture.json``, or an nsys export (``.sqlite``, ``.sqlite.gz``), an ``.nsys-rep`` (needs
    nsys on the PATH), or a torch.profiler Chrome trace (``.json``, ``.json.gz``). The format is read off the content,
    not the name. ``launch_config`` also reads each kernel's grid, block, registers and shared memory (a third more
    time on a large capture). Raises InputError for anything that cannot be used.
    """
    path = Path(path)
    if path.is_dir():
        manifest = read_manifest(path)
        if not manifest.files:
            raise InputError(path / MANIFEST_NAME, "names no file; capture again")
        if manifest.tool == "ncu":
            raise InputError(path, "is an Nsight Compute capture, which has no timeline; see `glqprof ncu`")
        trace = load_trace(path / manifest.files[0], launch_config=launch_config)
        return Capture(manifest.name, path, trace, manifest)
    trace = load_trace(path, launch_config=launch_config)
    return Capture(trace.info.name, path, trace)


def load_trace(path: Path, *, launch_config: bool = True) -> Trace:
    """Read one trace file of any supported format; raises InputError when it cannot be used."""
    head = _head(path)
    if head.startswith(LFS_MAGIC):
        raise InputError(path, "is a Git LFS pointer, not the file itself; run `git lfs pull`")
    with _unpacked(path, head) as plain, _damage_reported(path):
        head = _head(plain, path) if plain != path else head
        if head.startswith(SQLITE_MAGIC):
            from glqprof.traces.readers.nsys_sqlite import read_nsys_sqlite

            return read_nsys_sqlite(plain, shown_as=path, launch_config=launch_config)
        if head.lstrip()[:1] in (b"{", b"["):
            from glqprof.traces.readers.chrome import read_chrome_trace

            return read_chrome_trace(plain, shown_as=path)
        if path.name.endswith((".nsys-rep", ".qdrep")):
            from glqprof.traces.readers.nsys_rep import export_nsys_rep
            from glqprof.traces.readers.nsys_sqlite import read_nsys_sqlite

            with export_nsys_rep(path) as exported:
                return read_nsys_sqlite(exported, shown_as=path, launch_config=launch_config)
    raise InputError(path, _why_unknown(path, head))


def _head(path: Path, shown_as: Path | None = None) -> bytes:
    shown_as = shown_as or path
    try:
        with path.open("rb") as file:
            head = file.read(256)
    except FileNotFoundError:
        raise InputError(shown_as, "no such file or folder; check the path") from None
    except OSError as error:
        raise InputError(shown_as, f"cannot be read ({error.strerror}); check its permissions") from None
    if not head:
        raise InputError(shown_as, "is empty; the profiler wrote nothing, capture again")
    return head


@contextmanager
def _unpacked(path: Path, head: bytes) -> Iterator[Path]:
    """The file itself, or an unpacked copy of a gzipped one for as long as it is read."""
    if not head.startswith(GZIP_MAGIC):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="glqprof-") as folder:
        plain = Path(folder) / path.name.removesuffix(".gz")
        try:
            with gzip.open(path, "rb") as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(path, f"is a damaged gzip file ({error}); copy it again") from None
        except OSError as error:
            raise InputError(
                path, f"cannot be unpacked into {folder} ({error.strerror}); free space or set TMPDIR"
            ) from None
        yield plain


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    """Values that no such file holds (text or a list for a number, 2^64, 1e30 µs) mean a damaged file, not a bug."""
    try:
        with np.errstate(invalid="raise"):
            yield
    except (ValueError, TypeError, ArithmeticError) as error:
        raise InputError(path, f"holds values that cannot be right ({error}); export or copy it again") from error


def _why_unknown(path: Path, head: bytes) -> str:
    if head.startswith(NCU_MAGIC) or path.name.endswith(".ncu-rep"):
        return "is an Nsight Compute report, which has no timeline; give an nsys or torch.profiler capture"
    if path.name.endswith(".qdstrm"):
        return "is an unprocessed nsys stream; import it with nsys (QdstrmImporter), then give the .nsys-rep"
    return "is no nsys export (SQLite), .nsys-rep or Chrome trace (JSON); export it with `nsys export --type sqlite`"


def bundled_capture(name: str) -> Path:
    """The folder of a capture that comes with the package; raises InputError when this install lacks it."""
    package = Path(__file__).resolve().parents[1]
    for root in (package / "data" / "captures", package.parent / "captures"):
        if (root / name / MANIFEST_NAME).exists():
            return root / name
    raise InputError(name, "is not bundled with this install; clone the repository or reinstall glqprof")
