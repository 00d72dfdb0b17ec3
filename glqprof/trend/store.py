"""The store: samples in SQLite or another database, added whole or not at all, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from glqprof.errors import InputError
from glqprof.trend.engine import WRITE, one_line_errors, open_engine, sa  # says what to install
from glqprof.trend.sample import MAX_NAME, Sample

_METADATA = sa.MetaData()
_ABOUT = sa.Table("glqprof_store", _METADATA, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))
_NAME = sa.String(MAX_NAME)
_SAMPLES = sa.Table(
    "glqprof_samples",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True),  # the order of insertion
    sa.Column("key", sa.String(64), nullable=False, unique=True),  # Sample.key
    sa.Column("workload", _NAME, nullable=False),
    sa.Column("variant", _NAME, nullable=False),
    sa.Column("metric", _NAME, nullable=False),
    sa.Column("gpu", _NAME, nullable=False),
    sa.Column("machine", _NAME, nullable=False),
    sa.Column("unit", sa.String(40), nullable=False),
    sa.Column("direction", sa.String(10), nullable=False),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("commit_id", sa.String(64), nullable=False),  # COMMIT is a word of SQL
    sa.Column("commit_time_s", sa.BigInteger),
    sa.Column("added_at_s", sa.Double, nullable=False),
    sa.Column("run", sa.String(64), nullable=False),
    sa.Column("environment", sa.Text, nullable=False),  # a JSON object
    sa.Index("glqprof_samples_series", "metric", "workload", "variant"),
)
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = ()
"""What turns version n + 1 of the tables into n + 2, in order; each runs once, in the transaction of an `add`."""
VERSION = 1 + len(MIGRATIONS)

COLUMNS = (
    "workload",
    "variant",
    "metric",
    "gpu",
    "machine",
    "unit",
    "direction",
    "value",
    "commit",
    "commit_time_s",
    "added_at_s",
    "run",
    "environment",
)
_CHUNK = 500  # of keys in one query: below every database's limit of parameters
_ATTEMPTS = 5


@dataclass(frozen=True)
class Added:
    """How many samples an `add` stored, and how many were there already."""

    added: int
    known: int


class Store:
    """Samples over commits, in a SQLite file or the database of a SQLAlchemy URL.

    Nothing is opened before the first call, and no transaction is open between calls: many processes may use a store
    at once. Every method raises InputError, in one line and without a password, when the store cannot be used.
    """

    def __init__(self, path_or_url: str | Path = "glqprof-trend.sqlite") -> None:
        self._store = path_or_url
        self._server: tuple[sa.Engine, str] | None = None

    def _open(self, *, write: bool) -> tuple[sa.Engine, str]:
        """The engine and the name to show. A file is looked at anew each time, a server's connection is kept."""
        if self._server is not None:
            return self._server
        engine, name = open_engine(self._store, write=write)
        if engine.dialect.name != "sqlite":
            self._server = (engine, name)
        return engine, name

    def add(self, samples: Iterable[Sample]) -> Added:
        """Store ``samples``, all or none; one whose key (series, commit, run) is there already changes nothing.

        Makes the store where there is none, and brings an older one to this version. Safe with concurrent writers.
        """
        wanted = {sample.key: sample for sample in samples}
        engine, name = self._open(write=True)
        writing = engine.execution_options(**{WRITE: True})
        with one_line_errors(name, engine):
            for attempt in range(_ATTEMPTS):
                try:
                    with writing.begin() as connection:
                        _prepare(connection, name)
                        known = _known(connection, list(wanted))
                        new = [_row(key, sample) for key, sample in wanted.items() if key not in known]
                        if new:
                            connection.execute(sa.insert(_SAMPLES), new)
                    return Added(len(new), len(wanted) - len(new))
                except (sa.exc.IntegrityError, sa.exc.ProgrammingError):
                    # Another writer committed the same samples, or made the tables, since this one looked: look again.
                    if attempt == _ATTEMPTS - 1:
                        raise
                    time.sleep(0.05 * (attempt + 1))
        raise AssertionError("unreachable")

    def samples(
        self,
        *,
        workload: str | None = None,
        variant: str | None = None,
        metric: str | None = None,
        gpu: str | None = None,
        machine: str | None = None,
    ) -> pd.DataFrame:
        """Return the samples, one a row, in the order of insertion; each filter is a name or a pattern with ``*``.

        Columns: workload, variant, metric, gpu, machine, unit, direction, commit, run (str), value (float64, in
        ``unit``), commit_time_s (Int64, seconds since 1970 UTC, or NA), added_at_s (float64), environment (dict).
        """
        filters = {"workload": workload, "variant": variant, "metric": metric, "gpu": gpu, "machine": machine}
        query = sa.select(*(_SAMPLES.c["commit_id" if c == "commit" else c] for c in COLUMNS)).order_by(_SAMPLES.c.id)
        for column, pattern in filters.items():
            if pattern is not None:
                query = query.where(_matches(_SAMPLES.c[column], pattern))
        with self._reading() as connection:
            rows = [] if connection is None else connection.execute(query).all()
        frame = pd.DataFrame([tuple(row) for row in rows], columns=list(COLUMNS))
        frame["commit_time_s"] = frame["commit_time_s"].astype("Int64")
        frame["value"] = frame["value"].astype("float64")
        frame["added_at_s"] = frame["added_at_s"].astype("float64")
        frame["environment"] = [json.loads(text) for text in frame["environment"]]
        return frame

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection | None]:
        """Yield a connection in a read transaction, or None where the tables were not made yet."""
        engine, name = self._open(write=False)
        with one_line_errors(name, engine), engine.connect() as connection:
            version = _version(connection, name)
            if version is not None and version < VERSION:
                raise InputError(name, f"has version {version}, older than {VERSION}; the next `trend add` updates it")
            yield None if version is None else connection


def _matches(column: sa.Column[str], pattern: str) -> sa.ColumnElement[bool]:
    if "*" not in pattern:
        return column == pattern
    escaped = pattern.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_").replace("*", "%")
    return column.like(escaped, escape="\\")


def _version(connection: sa.Connection, name: str) -> int | None:
    """The version of the tables; None where there are none. Raises InputError for a newer one, or another's file."""
    inspector = sa.inspect(connection)
    if not inspector.has_table(_ABOUT.name):
        # A server's database is shared, a file is somebody's.
        if connection.dialect.name == "sqlite" and inspector.get_table_names():
            raise InputError(name, "is a SQLite file of something else; give another --store")
        return None
    version = connection.execute(sa.select(sa.func.max(_ABOUT.c.version))).scalar()
    if version is None:
        return None
    if version > VERSION:
        raise InputError(
            name, f"was written by a newer glqprof (store version {version}, this one reads {VERSION}); update glqprof"
        )
    return int(version)


def _prepare(connection: sa.Connection, name: str) -> None:
    """Make the tables or bring them to this version, in the caller's transaction."""
    version = _version(connection, name)
    if version is None:
        _METADATA.create_all(connection)
        connection.execute(sa.insert(_ABOUT), [{"version": VERSION}])
        return
    for number, migrate in enumerate(MIGRATIONS[version - 1 :], start=version + 1):
        migrate(connection)
        connection.execute(sa.insert(_ABOUT), [{"version": number}])


def _known(connection: sa.Connection, keys: Sequence[str]) -> set[str]:
    known: set[str] = set()
    for start in range(0, len(keys), _CHUNK):
        query = sa.select(_SAMPLES.c.key).where(_SAMPLES.c.key.in_(keys[start : start + _CHUNK]))
        known.update(connection.execute(query).scalars())
    return known


def _row(key: str, sample: Sample) -> dict[str, object]:
    s = sample.series
    return {
        "key": key,
        "workload": s.workload,
        "variant": s.variant,
        "metric": s.metric,
        "gpu": s.gpu,
        "machine": s.machine,
        "unit": sample.unit,
        "direction": sample.direction,
        "value": sample.value,
        "commit_id": sample.commit,
        "commit_time_s": sample.commit_time,
        "added_at_s": time.time(),
        "run": sample.run,
        "environment": json.dumps(dict(sample.environment), sort_keys=True),
    }
