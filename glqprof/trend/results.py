"""Result files of `bench`, `breakdown`, `compare` and `decode` as samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from glqprof.errors import InputError
from glqprof.trend.commits import resolve_commit
from glqprof.trend.result_metrics import Measured, bench_metrics, breakdown_metrics, compare_metrics, decode_metrics
from glqprof.trend.sample import DEFAULT_MACHINE, Sample, SeriesKey, digest

_READERS: dict[str, Callable[[bytes], Iterable[Measured]]] = {
    "glqprof.bench/1": bench_metrics,
    "glqprof.breakdown/1": breakdown_metrics,
    "glqprof.compare/1": compare_metrics,
    "glqprof.decode/1": decode_metrics,
}


@dataclass(frozen=True)
class Result:
    """The samples of one result file, and what of it was left out and why."""

    path: str
    samples: tuple[Sample, ...]
    notes: tuple[str, ...] = ()


def read_results(
    paths: Sequence[Path | str],
    *,
    commit: str | None = None,
    commit_time: int | None = None,
    machine: str = DEFAULT_MACHINE,
    workload: str | None = None,
    variant: str | None = None,
    gpu: str | None = None,
) -> list[Result]:
    """Read result files as ``--format json`` writes them; ``-`` is standard input.

    ``commit``: of the code that was measured, where a file does not say. ``commit_time``: seconds since 1970 UTC; left
    out, from the git checkout here if it holds the commit. ``workload``, ``variant``: instead of the file's own (a
    breakdown knows only the name of its capture). ``gpu``: for files that do not say. Raises InputError for a file
    that is unreadable, truncated, of another schema, without a commit or a GPU, or at odds with ``gpu`` or ``commit``.
    """
    given = None if commit is None else resolve_commit(commit)
    results = []
    for path in paths:
        raw = _read(path)
        reader = _reader(path, raw)
        try:
            measured = list(reader(raw))
        except msgspec.DecodeError as error:
            raise InputError(path, f"does not follow its schema ({error}); write it again with --format json") from None
        said = _commit_of(raw)
        if said is None and given is None:
            raise InputError(path, "names no commit; give --commit HASH (in the measured checkout: --commit HEAD)")
        of_file = given if said is None else resolve_commit(said)
        assert of_file is not None
        if given is not None and of_file[0] != given[0]:
            raise InputError(path, f"was measured at commit {said}, not {given[0]}; leave --commit out")
        run = digest(msgspec.json.encode(msgspec.json.decode(raw), order="deterministic"))[:16]
        samples: list[Sample] = []
        notes: list[str] = []
        for m in measured:
            if m.skipped:
                notes.append(m.skipped)
                continue
            series = SeriesKey(
                workload or m.workload, m.variant if variant is None else variant, m.metric, _gpu(path, m, gpu), machine
            )
            when = of_file[1] if commit_time is None else commit_time
            try:
                sample = Sample(series, m.value, m.unit, m.direction, of_file[0], run, when, m.environment)
            except InputError as error:
                raise InputError(path, f"{error.subject} {error.problem}") from None
            samples.append(sample)
        _refuse_doubles(path, samples)
        if not samples:
            raise InputError(path, f"holds no number to follow{': ' + notes[0] if notes else ''}; nothing was added")
        results.append(Result(str(path), tuple(samples), tuple(notes)))
    return results


def _read(path: Path | str) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); check the path") from None


def _reader(path: Path | str, raw: bytes) -> Callable[[bytes], Iterable[Measured]]:
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(path, f"is not JSON, or only a part of it ({error}); write it again") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, str):
        raise InputError(path, f"is no result of glqprof; give what {', '.join(_verbs())} write with --format json")
    if schema not in _READERS:
        known = ", ".join(_READERS)
        raise InputError(path, f"has schema {schema[:80]!r}; this version adds {known}")
    return _READERS[schema]


def _verbs() -> list[str]:
    return [schema.removeprefix("glqprof.").split("/")[0] for schema in _READERS]


def _commit_of(raw: bytes) -> str | None:
    """The commit a file names, as ``commit`` or ``git.commit``; None where it names none."""
    content: Mapping[str, Any] = msgspec.json.decode(raw)
    git = content.get("git")
    said = content.get("commit") or (git.get("commit") if isinstance(git, dict) else None)
    return said if isinstance(said, str) else None


def _gpu(path: Path | str, m: Measured, given: str | None) -> str:
    if not m.gpu and not given:
        raise InputError(path, "does not say which GPU it was measured on; give --gpu NAME")
    if m.gpu and given and m.gpu != given:
        raise InputError(path, f"was measured on {m.gpu!r}, not on {given!r}; leave --gpu out")
    return m.gpu or str(given)


def _refuse_doubles(path: Path | str, samples: Sequence[Sample]) -> None:
    seen: set[SeriesKey] = set()
    for sample in samples:
        if sample.series in seen:
            raise InputError(path, f"has two numbers for {sample.series}; leave --variant and --workload out")
        seen.add(sample.series)
