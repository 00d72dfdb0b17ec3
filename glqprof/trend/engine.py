"""From what a user calls a store to a database engine, and from a database's error to one line without a password."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from glqprof.errors import InputError

try:
    import sqlalchemy as sa
    from sqlalchemy import event
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
    from sqlalchemy.pool import NullPool
except ModuleNotFoundError:
    raise InputError("trend", "needs SQLAlchemy and ruptures; run: pip install 'glqprof[trend]'") from None

__all__ = ["BUSY_S", "WRITE", "masked", "one_line_errors", "open_engine", "sa", "store_name"]

BUSY_S = 60.0
"""How long a writer waits for another one. A transaction takes milliseconds, so this is a queue of thousands."""
WRITE = "glqprof_write"
CONNECT_S = 15
_POSTGRESQL = ("postgresql", "postgres")
_SQLITE_HEADER = b"SQLite format 3\0"


def open_engine(store: str | Path, *, write: bool) -> tuple[sa.Engine, str]:
    """Return an engine and the store's name with passwords masked.

    ``store``: the path of a SQLite file, or a SQLAlchemy URL. Without ``write`` the file must exist. Raises InputError
    for a directory, a file that is not SQLite, a URL that nothing here can open.
    """
    text = str(store)
    if "://" not in text:
        return _sqlite(Path(text), write), text
    try:
        url = sa.make_url(text)
    except (ArgumentError, ValueError):  # its text is not repeated: it may hold a password
        raise InputError("--store", "is no database URL; write DIALECT://USER:PASSWORD@HOST/DATABASE") from None
    if url.get_backend_name() == "sqlite":
        if not url.database or url.database == ":memory:":
            raise InputError(text, "is a store in memory, gone when the command ends; give a file")
        return _sqlite(Path(url.database), write), url.database
    name = masked(url)
    if url.drivername in _POSTGRESQL:
        url = url.set(drivername="postgresql+psycopg")
    try:
        # A server that does not answer must not hold up a CI job for minutes.
        wait = {"connect_timeout": CONNECT_S} if url.get_driver_name() == "psycopg" else {}
        return sa.create_engine(url, pool_size=1, connect_args=wait), name
    except (NoSuchModuleError, ArgumentError):
        raise InputError(name, f"{url.get_backend_name()} is no database that SQLAlchemy knows here; "
                         "give a file, sqlite:///FILE or postgresql://…") from None  # fmt: skip
    except ModuleNotFoundError as error:
        ours = error.name == "psycopg"
        hint = "run: pip install 'glqprof[postgresql]'" if ours else "install the package that has it"
        raise InputError(name, f"needs a driver that is not installed ({error}); {hint}") from None


def store_name(store: str | Path) -> str:
    """The store as it may be shown: a file's path, a URL without passwords."""
    text = str(store)
    if "://" not in text:
        return text
    try:
        return masked(sa.make_url(text))
    except (ArgumentError, ValueError):
        return "--store"


def masked(url: sa.URL) -> str:
    """The URL without its password, wherever it stands."""
    secret = {key: "***" for key in url.query if "pass" in key.lower()}
    return url.update_query_dict(secret).render_as_string(hide_password=True)


def _sqlite(path: Path, write: bool) -> sa.Engine:
    if path.is_dir():
        raise InputError(path, "is a directory; give a file, such as glqprof-trend.sqlite in it")
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_HEADER))
    except FileNotFoundError:
        if not write:
            raise InputError(path, "no such store; make one with: glqprof trend add RESULT.json") from None
        if not path.parent.is_dir():
            raise InputError(path, f"cannot be made, {path.parent} is no folder; make it first") from None
        head = b""
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); check its permissions") from None
    if head not in (b"", _SQLITE_HEADER):
        raise InputError(path, "is not a SQLite file, so no store; give another --store")
    # Asked first: SQLite tells of a read-only file only at the first write. (Root may write it: it has its own say.)
    if write and head and not os.access(path, os.W_OK):
        raise InputError(path, "is read-only; make it writable, or give another --store")
    # Readers open for writing too where they may: after a writer was killed, the first one in rolls its journal back.
    mode = "rwc" if write else "rw" if os.access(path, os.W_OK) else "ro"
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    # A rollback journal, not WAL: the store stays one file that can be copied, cached and lie on a network disk.
    engine = sa.create_engine("sqlite://", creator=connect, poolclass=NullPool)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Any) -> None:
    """Take the write lock at the start: two that read first and then both want to write would be a deadlock."""
    write = connection.get_execution_options().get(WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


@contextmanager
def one_line_errors(name: str, engine: sa.Engine) -> Iterator[None]:
    """Turn what a database raises into an InputError that names the store and holds no password."""
    try:
        yield
    except DBAPIError as error:
        text = " ".join(str(error.orig).split())
        secrets = [engine.url.password, *(v for k, v in engine.url.query.items() if "pass" in k.lower())]
        for secret in secrets:
            text = text.replace(str(secret), "***") if secret else text
        raise InputError(name, _told(text, engine.dialect.name == "sqlite")) from None
    except SQLAlchemyError as error:
        raise InputError(name, f"cannot be used ({type(error).__name__}: {error})") from None


def _told(text: str, is_file: bool) -> str:
    lower = text.lower()
    if "readonly" in lower or "read-only" in lower:
        return "is read-only; make it and its folder writable, or give another --store"
    if "locked" in lower:
        return f"is locked by another process for over {BUSY_S:.0f} s; end that process, then try again"
    if "malformed" in lower or "not a database" in lower:
        return f"is damaged ({text}); restore a copy"
    if "full" in lower:
        return "cannot be written, the disk is full; free space and try again: nothing was added"
    if "unable to open" in lower:
        return "cannot be opened; check the permissions of it and of its folder"
    check = "the file and its folder" if is_file else "the URL, the password and that the server runs"
    return f"cannot be used ({text[:300]}); check {check}"
