"""Scrub a capture folder or a bare file, in place or into another place."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from glqprof.errors import InputError
from glqprof.reports.output import write_atomically
from glqprof.scrub.chrome_trace import scrub_chrome_trace
from glqprof.scrub.ncu_page import scrub_ncu_csv
from glqprof.scrub.nsys_export import scrub_nsys_export
from glqprof.scrub.patterns import find, redact
from glqprof.traces.schema.manifest import MANIFEST_NAME, Manifest, encode_manifest, read_manifest
from glqprof.traces.schema.scrubbed import Removed, Scrubbed

GZIP_MAGIC, SQLITE_MAGIC, NCU_MAGIC = b"\x1f\x8b", b"SQLite format 3\x00", b"NVR\x00"
BINARY_REPORTS = (".nsys-rep", ".ncu-rep", ".qdrep", ".qdstrm")
WHY_BINARY = "is a report in a closed format that holds the environment and the program's code"


@dataclass(frozen=True)
class _Done:
    data: Path
    removed: list[Removed]


def scrub(source: Path, output: Path | None = None) -> Scrubbed:
    """Scrub ``source``, a capture folder or a file that a profiler wrote, into ``output`` or in place.

    Nothing is written unless every file is safe. Raises InputError for closed formats (``.nsys-rep``, ``.ncu-rep``;
    in a folder they are left out instead), for what is no capture, for an ``output`` that exists, and, naming it, for
    anything kept that still looks like a secret or a path.
    """
    if not source.exists():
        raise InputError(source, "no such file or folder; check the path")
    if output is not None and output.resolve() == source.resolve():
        output = None
    if output is not None and output.exists():
        raise InputError(output, "exists already; choose another place with -o, or remove it")
    with tempfile.TemporaryDirectory(prefix="glqprof-scrub-") as scratch:
        if source.is_dir():
            return _folder(source, output, Path(scratch))
        return _file(source, output, Path(scratch))


def scrub_file(source: Path, scratch: Path, shown_as: Path | None = None) -> tuple[Path, list[Removed]]:
    """Scrub one file of any known format into ``scratch``: the new file (packed as ``source`` was), what is gone."""
    done = _scrub_one(source, scratch, shown_as or source)
    return done.data, done.removed


def _file(source: Path, output: Path | None, scratch: Path) -> Scrubbed:
    done = _scrub_one(source, scratch, source)
    result = Scrubbed(output or source, [source.name], done.removed, source.stat().st_size)
    _copy(done.data, output or source)
    result.bytes_after = (output or source).stat().st_size
    return result


def _folder(source: Path, output: Path | None, scratch: Path) -> Scrubbed:
    manifest = read_manifest(source)
    result = Scrubbed(output or source)
    done: dict[str, _Done] = {}
    for name in manifest.files:
        path = source / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise InputError(source / MANIFEST_NAME, f"names a file outside the folder ({name}); mend it")
        if not path.exists():
            raise InputError(path, f"is named in {MANIFEST_NAME} but absent; copy the whole folder")
        if name.endswith(BINARY_REPORTS):
            result.removed.append(Removed(name, "closed report", f"left out: it {WHY_BINARY}", 1))
        else:
            (scratch / str(len(done))).mkdir()
            done[name] = _scrub_one(path, scratch / str(len(done)), path)
            result.removed += done[name].removed
        result.bytes_before += path.stat().st_size
    if not done:
        raise InputError(source, f"holds only closed reports, of which each {WHY_BINARY}; capture or export it again")
    cleaned = scrub_manifest(manifest, list(done), result.removed)
    others = [p for p in sorted(source.iterdir()) if p.name != MANIFEST_NAME and p.name not in done]
    for path in others:
        if not path.name.endswith(BINARY_REPORTS) or path.name not in manifest.files:
            result.removed.append(Removed(path.name, "files that the capture does not name", path.name, 1))
    target = output or source
    if output is not None:
        _make(output)
    for name, one in done.items():
        _copy(one.data, target / name)
    write_atomically(target / MANIFEST_NAME, lambda file: file.write(encode_manifest(cleaned)))
    if output is None:
        for path in others:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    result.files = list(done)
    result.bytes_after = sum((target / name).stat().st_size for name in done)
    return result


def scrub_manifest(manifest: Manifest, files: list[str], removed: list[Removed]) -> Manifest:
    """The manifest with its texts redacted: of paths the last part, of secrets nothing; notes what changed."""

    def clean(text: str) -> str:
        shorter = redact(text)
        if shorter != text:
            removed.append(Removed(MANIFEST_NAME, "paths and secrets", "shortened texts", 1))
        if finding := find(shorter):
            raise InputError(MANIFEST_NAME, f"would still hold {finding.kind} ({finding.shown}); mend it by hand")
        return shorter

    fields = {
        name: clean(value)
        for name, value in ((n, getattr(manifest, n)) for n in manifest.__struct_fields__)
        if isinstance(value, str) and name not in ("schema", "token_sha")
    }
    return msgspec.structs.replace(
        manifest,
        **fields,
        command=[clean(word) for word in manifest.command],
        warnings=[clean(text) for text in manifest.warnings],
        files=files,
        scrubbed=True,
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(folder, f"cannot be made ({error.strerror}); choose another place with -o") from None


def _scrub_one(path: Path, scratch: Path, shown_as: Path) -> _Done:
    if path.name.endswith(BINARY_REPORTS):
        raise InputError(shown_as, f"{WHY_BINARY}; export it first (nsys export --type sqlite, ncu --import --csv)")
    plain, packed = _plain(path, scratch, shown_as)
    with plain.open("rb") as file:
        head = file.read(64)
    if head.startswith(NCU_MAGIC):
        raise InputError(shown_as, f"{WHY_BINARY}; export it first (ncu --import FILE --csv --page raw)")
    target = scratch / "scrubbed"
    if head.startswith(SQLITE_MAGIC):
        removed = scrub_nsys_export(plain, target, shown_as)
    elif head.lstrip()[:1] in (b"{", b"["):
        content, removed = scrub_chrome_trace(plain.read_bytes(), shown_as)
        target.write_bytes(content)
    else:
        text, removed = scrub_ncu_csv(plain.read_bytes().decode("utf-8-sig", "replace"), shown_as)
        target.write_text(text, encoding="utf-8")
    return _Done(_packed(target) if packed else target, removed)


def _plain(path: Path, scratch: Path, shown_as: Path) -> tuple[Path, bool]:
    try:
        with path.open("rb") as file:
            packed = file.read(2) == GZIP_MAGIC
        if not packed:
            return path, False
        plain = scratch / "plain"
        with gzip.open(path, "rb") as source, plain.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        return plain, True
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(shown_as, f"is a damaged gzip file ({error}); copy it again") from None
    except OSError as error:
        raise InputError(shown_as, f"cannot be read or unpacked ({error.strerror}); check it, free space") from None


def _packed(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    pack(path, packed)
    return packed


def pack(source: Path, target: Path) -> None:
    """Compress a file; equal bytes in give equal bytes out (no name, no time)."""
    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


def _copy(source: Path, target: Path) -> None:
    def write(file: BinaryIO) -> None:
        with source.open("rb") as data:
            shutil.copyfileobj(data, file, 1 << 20)

    write_atomically(target, write)
