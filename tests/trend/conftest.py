"""Stores to test with: a SQLite file, and a database of a PostgreSQL server where one runs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

pytest.importorskip("sqlalchemy", reason="needs the trend extra: pip install 'glqprof[trend]'")
pytest.importorskip("ruptures", reason="needs the trend extra: pip install 'glqprof[trend]'")

SERVER = "GLQPROF_TEST_POSTGRESQL"


@pytest.fixture
def postgresql() -> Iterator[str]:
    """The URL of a new, empty database of the server in ``GLQPROF_TEST_POSTGRESQL`` (.ci/services starts one)."""
    server = os.environ.get(SERVER)
    if not server:
        pytest.skip(f"no PostgreSQL server: {SERVER} is not set")
    psycopg = pytest.importorskip("psycopg", reason="needs the postgresql extra")
    name = f"test_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield f"{server.rsplit('/', 1)[0]}/{name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path) -> str:
    """A store that does not exist yet."""
    return str(tmp_path / "trend.sqlite") if request.param == "sqlite" else request.getfixturevalue("postgresql")
