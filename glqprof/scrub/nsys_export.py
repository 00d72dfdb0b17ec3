"""Write the shareable part of an nsys SQLite export into a new database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from glqprof.errors import InputError
from glqprof.scrub.nsys_tables import (
    DIAGNOSTIC,
    ENUM_TABLE,
    KINDS,
    META_NAMES,
    META_TABLES,
    STRING_COLUMNS,
    TEXT_COLUMNS,
    kept_columns,
)
from glqprof.scrub.patterns import private_values, refuse_private, refuse_values
from glqprof.traces.schema.scrubbed import Removed

ENVIRONMENT_TABLES = ("TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE")


def scrub_nsys_export(source: Path, target: Path, shown_as: Path) -> list[Removed]:
    """Copy what is on the lists from ``source`` to ``target``, a file that does not exist yet.

    A new database has no freed page of the old one. Raises InputError when the source is no intact nsys export, or
    when a name that would be kept looks like a secret or a path, or is a value of the removed environment.
    """
    try:
        copy = _Copy(source, target, shown_as)
        try:
            copy.run()
        finally:
            copy.db.close()
    except sqlite3.DatabaseError as error:
        if "full" in str(error):
            raise InputError(target, f"cannot be written ({error}); free space or choose another place") from None
        raise InputError(shown_as, f"is a damaged SQLite database ({error}); export or copy it again") from None
    refuse_values(target, copy.private, shown_as)
    return copy.removed


class _Copy:
    def __init__(self, source: Path, target: Path, shown_as: Path) -> None:
        self.shown_as = shown_as
        self.removed: list[Removed] = []
        self.private: set[str] = set()
        self.db = sqlite3.connect(f"file:{quote(str(target))}?mode=rwc", uri=True, isolation_level=None)
        # Old exports hold bytes that are not UTF-8; they are compared and copied as they are.
        self.db.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        self.db.execute("PRAGMA journal_mode = OFF")
        self.db.execute("PRAGMA synchronous = OFF")
        self.db.execute("ATTACH ? AS old", [f"file:{quote(str(source))}?mode=ro&immutable=1"])
        kinds = self.db.execute("SELECT name, type FROM old.sqlite_master WHERE name NOT LIKE 'sqlite_%'").fetchall()
        self.tables = [name for name, kind in kinds if kind == "table"]
        self.others = len(kinds) - len(self.tables)

    def run(self) -> None:
        if not any(table.startswith("CUPTI_") or table in META_TABLES for table in self.tables):
            raise InputError(self.shown_as, "is a SQLite database but no nsys export; nothing in it is known as safe")
        self.db.execute("BEGIN")
        for table in self.tables:
            columns = self._columns(table)
            kept = kept_columns(table, [name for name, _ in columns])
            if not kept:
                self._note(KINDS.get(table, "other tables"), table, self._count(f'old."{table}"'))
                self._learn(table)
            elif table != "StringIds":
                self._copy(table, columns, kept)
        if "StringIds" in self.tables:
            self._copy_strings()
        self.db.execute("COMMIT")
        if self.others:
            self._note("other tables", "views, indexes and triggers", self.others)
        refuse_private(self._texts(), self.shown_as)
        self.db.execute("DETACH old")
        self.db.execute("VACUUM")

    def _note(self, kind: str, what: str, count: int) -> None:
        if count:
            self.removed.append(Removed(self.shown_as.name, kind, what, count))

    def _count(self, rows: str) -> int:
        return int(self.db.execute(f"SELECT count(*) FROM {rows}").fetchone()[0])

    def _columns(self, table: str) -> list[tuple[str, str]]:
        """The old table's columns with their SQL types; comments in its schema do not come along."""
        rows = self.db.execute(f'PRAGMA old.table_info("{table}")').fetchall()
        return [
            (name, f"{kind}{' NOT NULL' if not_null else ''}{' PRIMARY KEY' if key else ''}")
            for _, name, kind, not_null, _, key in rows
        ]

    def _create(self, table: str, columns: list[tuple[str, str]], kept: list[str]) -> str:
        wanted = [(name, kind) for name, kind in columns if name in kept]
        self.db.execute(f'CREATE TABLE main."{table}" ({", ".join(f"{_quoted(n)} {k}" for n, k in wanted)})')
        return ", ".join(_quoted(name) for name in kept)

    def _copy(self, table: str, columns: list[tuple[str, str]], kept: list[str]) -> None:
        names = self._create(table, columns, kept)
        if table in META_TABLES or table == "DIAGNOSTIC_EVENT":
            self._copy_rows(table, names, kept)
        else:
            self.db.execute(f'INSERT INTO main."{table}" SELECT {names} FROM old."{table}"')
        for dropped in sorted({name for name, _ in columns} - set(kept)):
            filled = self._count(f'old."{table}" WHERE {_quoted(dropped)} IS NOT NULL')
            self._note("columns", f"{table}.{dropped}", filled)

    def _copy_rows(self, table: str, names: str, kept: list[str]) -> None:
        """Copy the rows whose text is one of the known ones."""
        column, pattern = ("text", DIAGNOSTIC) if table == "DIAGNOSTIC_EVENT" else ("name", META_NAMES)
        position = kept.index(column)
        rows = self.db.execute(f'SELECT {names} FROM old."{table}"').fetchall()
        fits = [row for row in rows if pattern.fullmatch(str(row[position]))]
        self.db.executemany(f'INSERT INTO main."{table}" VALUES ({", ".join("?" * len(kept))})', fits)
        self._note("messages", f"{table} rows", len(rows) - len(fits))

    def _copy_strings(self) -> None:
        names = self._create("StringIds", self._columns("StringIds"), ["id", "value"])
        self.db.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
        for table in self._made():
            for column in {name for _, name, *_ in self.db.execute(f'PRAGMA main.table_info("{table}")')}:
                if column in STRING_COLUMNS:
                    self.db.execute(
                        f'INSERT OR IGNORE INTO used SELECT {_quoted(column)} FROM main."{table}" '
                        f"WHERE {_quoted(column)} IS NOT NULL"
                    )
        self.db.execute(
            f'INSERT INTO main."StringIds" SELECT {names} FROM old."StringIds" WHERE id IN (SELECT id FROM used)'
        )
        lost = self._count('old."StringIds"') - self._count('main."StringIds"')
        self._note("strings that nothing refers to", "StringIds rows", lost)

    def _made(self) -> list[str]:
        return [row[0] for row in self.db.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")]

    def _texts(self) -> Iterator[tuple[str, str]]:
        for table in self._made():
            columns = [name for _, name, *_ in self.db.execute(f'PRAGMA main.table_info("{table}")').fetchall()]
            free = TEXT_COLUMNS.get(table, () if ENUM_TABLE.match(table) else columns)
            for column in free:
                rows = self.db.execute(
                    f'SELECT DISTINCT {_quoted(column)} FROM main."{table}" WHERE typeof({_quoted(column)}) '
                    "IN ('text', 'blob')"
                )
                for (value,) in rows:
                    text = value if isinstance(value, str) else bytes(value).decode("utf-8", "replace")
                    yield f"{table}.{column}", text

    def _learn(self, table: str) -> None:
        """Remember the removed environment's secrets: they may not stand anywhere else either."""
        if table not in ENVIRONMENT_TABLES:
            return
        columns = [name for name, _ in self._columns(table)]
        for row in self.db.execute(f'SELECT * FROM old."{table}"'):
            cells = dict(zip(columns, ("" if cell is None else str(cell) for cell in row), strict=True))
            self.private |= private_values([(cells.get("name", ""), cells.get("value", ""))])
            for cell in cells.values():
                lines = cell.replace("\0", "\n").splitlines()
                self.private |= private_values(_assignment(line) for line in lines if "=" in line)


def _assignment(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name.strip().rpartition(" ")[2], value.strip()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
