"""Read columns of a SQLite table into numpy arrays, through Arrow and on every core."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from glqprof.errors import InputError

CHUNK_ROWS = 262_144
# Rows of one Arrow batch: the driver's default of 1,024 makes the batches' own cost show.
BATCH_ROWS = "65536"
# A rollback journal that counts; a finished transaction deletes, empties or zeroes it.
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")


@dataclass(frozen=True)
class Column:
    """A column to read: ``names`` are tried in order (they changed over the versions); ``default`` stands for NULL and
    for a table that has none of them, unless it is ``required``. ``text`` columns come as Arrow dictionaries of UTF-8
    (bytes that are none are replaced), others as ``dtype``."""

    names: tuple[str, ...]
    dtype: Any = np.int64
    default: int = 0
    text: bool = False
    required: bool = False

    def sql(self, present: set[str]) -> str | None:
        """The SQL expression, or None when the table has no such column."""
        name = next((n for n in self.names if n in present), None)
        if name is None:
            return None
        # Without COALESCE the driver types a column by its first batch, and fails where that held only NULL.
        return f"CAST(coalesce(\"{name}\", '') AS TEXT)" if self.text else f'coalesce("{name}", {self.default})'


class SqliteFile:
    """A SQLite file opened for reading: its tables, and bulk reads of their columns.

    Raises InputError when the file is no database, cut short, or locked by a writer.
    """

    def __init__(self, path: Path, shown_as: Path | None = None) -> None:
        self.path = path
        self.shown_as = shown_as or path
        self._check_length()
        try:
            with sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=0.2) as db:
                self.columns = _columns(db)
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise InputError(
                    self.shown_as, "is locked by a program that writes it; wait until the export has finished"
                ) from None
            # A WAL-mode file in a folder that cannot be written opens only as immutable.
            self.columns = self._query(_columns)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damaged(error) from None
        finally:
            if "db" in locals():
                db.close()
        self._check_unfinished()

    def _damaged(self, error: Exception) -> InputError:
        return InputError(self.shown_as, f"is a damaged SQLite database ({error}); export or copy it again")

    def _check_length(self) -> None:
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            header = file.read(100)
        if len(header) < 100:
            raise InputError(self.shown_as, f"is cut short ({size} bytes, less than a header); copy it again")
        page = int.from_bytes(header[16:18], "big")
        page = 65536 if page == 1 else page
        pages = int.from_bytes(header[28:32], "big")
        counted = header[24:28] == header[92:96]  # the page count is valid only when these agree
        if counted and page * pages > size:
            raise InputError(
                self.shown_as, f"is cut short ({size:,} of {page * pages:,} bytes); copy or export it again"
            )

    def _check_unfinished(self) -> None:
        """Refuse a file whose journal holds what belongs in it (a writer at work, or one that died): reading it as
        immutable would silently show another state."""
        journal = self.path.with_name(self.path.name + "-journal")
        log = self.path.with_name(self.path.name + "-wal")
        if _starts_with(journal, JOURNAL_MAGIC):
            raise InputError(self.shown_as, f"was left amid a write ({journal.name} beside it); export it again")
        if _starts_with(log, b""):
            raise InputError(
                self.shown_as,
                f"has writes that are not in it yet ({log.name} beside it); close the program that writes it, or run "
                "`sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'`",
            )

    def _uri(self) -> str:
        return f"file:{quote(str(self.path))}?mode=ro&immutable=1"

    def _query(self, function: Any) -> Any:
        db = sqlite3.connect(self._uri(), uri=True)
        # Old exports hold bytes that are not UTF-8 in their text columns.
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            return function(db)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damaged(error) from None
        finally:
            db.close()

    def has(self, table: str) -> bool:
        """Whether the table exists (an export leaves out tables without a row)."""
        return table in self.columns

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a small query."""
        return self._query(lambda db: db.execute(sql).fetchall())

    def read(
        self, table: str, columns: Mapping[str, Column], where: str | None = None
    ) -> dict[str, np.ndarray | pa.Array]:
        """The table's columns as numpy arrays of their dtypes (text columns as Arrow dictionary arrays).

        Empty arrays when the table is absent. Raises InputError when it lacks a required column. Chunks of rowids are
        read by as many threads as there are cores: the driver works outside the interpreter lock.
        """
        present = self.columns.get(table, set())
        wanted = {key: column.sql(present) for key, column in columns.items()}
        selected = {key: sql for key, sql in wanted.items() if sql is not None}
        lacking = [column.names[0] for key, column in columns.items() if column.required and wanted[key] is None]
        if present and lacking:
            raise InputError(
                self.shown_as,
                f"has a table {table} without column {lacking[0]}, a schema not known here; update glqprof",
            )
        chunks: list[dict[str, np.ndarray | pa.Array]] = []
        if present and selected:
            # Two subqueries: SQLite scans the whole table for min and max in one.
            ((low, high),) = self.rows(f'SELECT (SELECT min(rowid) FROM "{table}"), (SELECT max(rowid) FROM "{table}")')
            if low is not None:
                starts = range(low, high + 1, CHUNK_ROWS)
                queries = [
                    f'SELECT {", ".join(selected.values())} FROM "{table}" WHERE rowid BETWEEN {s} AND '
                    f"{min(s + CHUNK_ROWS - 1, high)}" + (f" AND ({where})" if where else "")
                    for s in starts
                ]
                kinds = [columns[key] for key in selected]
                with ThreadPoolExecutor(min(len(queries), os.cpu_count() or 1)) as pool:
                    chunks = list(pool.map(lambda sql: self._chunk(sql, list(selected), kinds), queries))
        count = sum(len(next(iter(chunk.values()))) for chunk in chunks)
        result: dict[str, np.ndarray | pa.Array] = {}
        for key, column in columns.items():
            if wanted[key] is None or not chunks:
                filler = pa.array([""] * count).dictionary_encode() if column.text else None
                result[key] = filler if column.text else np.full(count, column.default, column.dtype)
            elif column.text:
                parts = pa.chunked_array([chunk.pop(key) for chunk in chunks])
                result[key] = parts.unify_dictionaries().combine_chunks()
            else:
                result[key] = np.concatenate([chunk.pop(key) for chunk in chunks])
        return result

    def _chunk(self, sql: str, keys: list[str], kinds: list[Column]) -> dict[str, np.ndarray | pa.Array]:
        import adbc_driver_sqlite.dbapi as adbc

        try:
            with adbc.connect(self._uri()) as connection, connection.cursor() as cursor:
                cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": BATCH_ROWS})
                cursor.execute(sql)
                table = cursor.fetch_arrow_table()
        except adbc.Error as error:
            raise InputError(
                self.shown_as, f"is a damaged SQLite database ({str(error).splitlines()[0]}); export it again"
            ) from None
        chunk: dict[str, np.ndarray | pa.Array] = {}
        for position, (key, kind) in enumerate(zip(keys, kinds, strict=True)):
            column = table.column(position)
            if kind.text:
                if not pa.types.is_string(column.type):  # no row: the driver had nothing to type it by
                    column = pa.chunked_array([pa.array([], pa.string())])
                chunk[key] = _valid_utf8(column.combine_chunks().dictionary_encode())
            elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or not len(column):
                chunk[key] = column.to_numpy().astype(kind.dtype, copy=False)
            else:
                name = kind.names[0]
                raise InputError(
                    self.shown_as, f"is a damaged SQLite database (column {name} holds no number); export it again"
                )
        return chunk


def _starts_with(path: Path, magic: bytes) -> bool:
    """Whether the file is there, not empty, and starts so."""
    try:
        with path.open("rb") as file:
            head = file.read(max(len(magic), 1))
        return len(head) > 0 and head.startswith(magic)
    except OSError:
        return False


def _valid_utf8(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The driver hands over a text's bytes as they are; programs name ranges in other encodings too."""
    try:
        column.dictionary.validate(full=True)
    except ValueError:  # ArrowInvalid, or a UnicodeDecodeError of its own message
        texts = [raw.decode("utf-8", "replace") for raw in column.dictionary.cast(pa.binary()).to_pylist()]
        return pa.DictionaryArray.from_arrays(column.indices, pa.array(texts, pa.string()))
    return column


def _columns(db: sqlite3.Connection) -> dict[str, set[str]]:
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    return {t: {row[1] for row in db.execute(f'PRAGMA table_info("{t}")')} for t in tables}
