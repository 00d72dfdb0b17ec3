"""Read a release-note specification (TOML) and refuse what cannot be meant, naming the line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from glqprof.errors import InputError
from glqprof.traces.schema.release import ChangeSpec, FloorSpec, GapSpec, KernelsSpec, ReleaseSpec, RowSpec

S = TypeVar("S", bound=msgspec.Struct)
_TABLES: dict[str, type[msgspec.Struct]] = {
    "row": RowSpec,
    "reference": RowSpec,
    "change": ChangeSpec,
    "kernels": KernelsSpec,
}
_MULTILINE = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"", re.DOTALL)


def read_release_spec(path: Path) -> ReleaseSpec:
    """Read and check a specification; docs/release-notes.md describes it.

    Raises InputError with the line for a file that is absent, no TOML, or holds an unknown or missing key, a wrong
    type, a label twice or of no row, or a row without a source.
    """
    return _Reader(path).read()


def source_files(path: Path, spec: ReleaseSpec) -> list[Path]:
    """Every file that a specification at ``path`` reads, itself and those in capture folders included."""
    root = path.parent / spec.root
    names = [n for r in spec.rows for n in (r.capture, r.decode, r.bench)] + [k.bench for k in spec.kernels]
    names += [spec.buckets, spec.gap.floor.bench if spec.gap and spec.gap.floor else None]
    files = [root / name for name in names if name]
    return [path, *files, *(inner for folder in files if folder.is_dir() for inner in folder.iterdir())]


class _Reader:
    """Turns a wrong value into one line that says where it stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = _text(path)
        try:
            self.raw: dict[str, Any] = tomllib.loads(self.text)
        except tomllib.TOMLDecodeError as error:
            raise InputError(path, f"is not valid TOML: {error}; mend that line") from None
        # What stands in a text of several lines is no key: blank, but as many lines.
        plain = _MULTILINE.sub(lambda m: '""' + "\n" * m[0].count("\n"), self.text)
        self.lines = plain.splitlines()

    def read(self) -> ReleaseSpec:
        top: dict[str, Any] = {key: value for key, value in self.raw.items() if key not in (*_TABLES, "gap")}
        for key, kind in _TABLES.items():
            if key in self.raw:
                top[key] = self._tables(key, kind)
        if "gap" in self.raw:
            top["gap"] = self._gap()
        if "row" not in top:
            self.refuse("has no [[row]]; each path of the table needs one", "")
        spec = self._convert(top, ReleaseSpec, "", 0)
        self._check(spec)
        return spec

    def _tables(self, key: str, kind: type[S]) -> list[S]:
        tables = self.raw[key]
        if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
            self.refuse(f"{key!r} must be one or more [[{key}]] tables", "", 0, key)
        return [self._convert(table, kind, key, i) for i, table in enumerate(tables)]

    def _gap(self) -> GapSpec:
        table = self.raw["gap"]
        if not isinstance(table, dict):
            self.refuse("'gap' must be a [gap] table", "", 0, "gap")
        if isinstance(table.get("floor"), dict):
            table = table | {"floor": self._convert(table["floor"], FloorSpec, "gap.floor", 0)}
        return self._convert(table, GapSpec, "gap", 0)

    def _convert(self, value: dict[str, Any], kind: type[S], table: str, index: int) -> S:
        made = {k: v for k, v in value.items() if isinstance(v, msgspec.Struct) or _holds_structs(v)}
        plain = {k: v for k, v in value.items() if k not in made}
        try:
            # Tables inside were converted before, each with its own place; these only fill what is required.
            return msgspec.convert({**plain, **made}, kind)
        except msgspec.ValidationError as error:
            problem, _, place = str(error).partition(" - at ")
            unknown = re.search(r"field `([^`]+)`", problem)
            key = unknown[1] if unknown else place.strip("`$.").split("[")[0]
            problem = problem.replace("Object contains unknown field", "unknown key")
            problem = problem.replace("Object missing required field", "the table lacks the key")
            problem = problem.replace("`", "'").replace("Expected", "expected")
            named = f" for {key!r}" if not unknown and key else ""
            known = "; it has " + ", ".join(field.name for field in msgspec.structs.fields(kind))
            raise self.error(problem + named + known, table, index, "" if "lacks" in problem else key) from None

    def _check(self, spec: ReleaseSpec) -> None:
        if not spec.title.strip():
            self.refuse("the title is empty; name the release", "", 0, "title")
        seen: dict[str, int] = {}
        for table, rows in (("row", spec.row), ("reference", spec.reference)):
            for i, row in enumerate(rows):
                self._check_row(row, table, i)
                line = self.line(table, i, "label")
                if row.label in seen:
                    self.refuse(f"label {row.label!r} is taken (line {seen[row.label]}); name each row apart", table, i,
                                "label")  # fmt: skip
                seen[row.label] = line
        for i, kernels in enumerate(spec.kernels):
            if not kernels.bench_rows or min(kernels.bench_rows) < 1:
                self.refuse("bench_rows must be numbers of rows, from 1", "kernels", i, "bench_rows")
        for i, change in enumerate(spec.change):
            if (change.before is None) != (change.after is None):
                self.refuse("before and after go together; give both or none", "change", i)
            for key, label in (("before", change.before), ("after", change.after)):
                if label is not None and label not in seen:
                    self.refuse(f"{key} names no row: {label!r}; known are {', '.join(seen)}", "change", i, key)
        if spec.gap:
            if spec.gap.reference not in seen:
                self.refuse(f"reference names no row: {spec.gap.reference!r}; known are {', '.join(seen)}", "gap", 0,
                            "reference")  # fmt: skip
            if spec.gap.reference == spec.row[-1].label:
                self.refuse("reference is the last row itself; name another", "gap", 0, "reference")
            if spec.gap.floor:
                self._check_floor(spec.gap.floor)

    def _check_row(self, row: RowSpec, table: str, index: int) -> None:
        if not row.label.strip() or not row.label.isprintable():
            self.refuse("label must be one printable line", table, index, "label")
        if not (row.capture or row.decode or row.bench):
            self.refuse(f"row {row.label!r} has no source; give it a capture, a decode or a bench", table, index)
        if (row.bench is None) != (row.variant is None):
            self.refuse("bench and variant go together: a bench file holds several variants", table, index)
        if row.bench_rows < 1:
            self.refuse("bench_rows must be a number of rows, from 1", table, index, "bench_rows")

    def _check_floor(self, floor: FloorSpec) -> None:
        given = [k for k in ("ms_per_token", "bytes_per_token", "variant") if getattr(floor, k) is not None]
        if len(given) != 1:
            self.refuse("needs exactly one of ms_per_token, bytes_per_token and variant", "gap.floor", 0)
        (key,) = given
        if key != "variant" and not getattr(floor, key) > 0:
            self.refuse(f"{key} must be above 0", "gap.floor", 0, key)
        if key != "variant" and not floor.source.strip():
            self.refuse(f"{key} needs its source: where the number is from", "gap.floor", 0, key)
        if key != "ms_per_token" and floor.bench is None:
            self.refuse(f"{key} needs a bench file", "gap.floor", 0, key)

    def line(self, table: str, index: int, key: str = "") -> int:
        """The line of a key of the index-th ``[[table]]``, else of the table, else 1."""
        name = re.escape(table).replace(r"\.", r"\s*\.\s*")
        start = 0
        if table:
            head = re.compile(rf"\s*(\[\[\s*{name}\s*\]\]|\[\s*{name}\s*\])")
            found = [n for n, line in enumerate(self.lines, 1) if head.match(line)]
            if index >= len(found):
                return 1
            start = found[index]
        wanted = re.compile(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]")
        for n, line in enumerate(self.lines[start:], start + 1):
            if key and wanted.match(line):
                return n
            if re.match(r"\s*\[", line):
                if not table and key and re.match(rf"\s*\[+\s*{re.escape(key)}\b", line):
                    return n
                if table:
                    break
        return start or 1

    def error(self, problem: str, table: str, index: int = 0, key: str = "") -> InputError:
        where = f"line {self.line(table, index, key)}: "
        return InputError(self.path, where + (f"[{table}]: " if table else "") + problem)

    def refuse(self, problem: str, table: str, index: int = 0, key: str = "") -> NoReturn:
        raise self.error(problem, table, index, key)


def _holds_structs(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, msgspec.Struct) for item in value)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, "no such file; give a specification, see docs/release-notes.md") from None
    except UnicodeDecodeError:
        raise InputError(path, "is not UTF-8 text; give a specification in TOML") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); check the path and its permissions") from None
