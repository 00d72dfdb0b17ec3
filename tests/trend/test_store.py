"""The store: each sample once, all of a file or nothing, whoever writes at the same time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from trend.made import GPU, MONDAY, WORKLOAD, commit, sample, samples

import glqprof.trend.store as module
from glqprof.errors import InputError
from glqprof.trend import Store
from support.paths import REPOSITORY

ADDER = [sys.executable, "-m", "trend.adder"]
EVERY_RESULT = 1000


def start(arguments: Sequence[str], **more: object) -> subprocess.Popen[str]:
    paths = ":".join(str(p) for p in (REPOSITORY, REPOSITORY / "tests"))
    environment = {"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*ADDER, *arguments], env=environment, text=True, **more)


def test_what_was_added_comes_back(store):
    one = sample(3, 9000.5, environment={"driver": "580.1"})
    assert Store(store).add([one, sample(4, 9100, time=None)]).added == 2
    first, second = Store(store).samples().to_dict("records")
    added = first.pop("added_at_s")
    assert first == {
        "workload": WORKLOAD, "variant": "v3b", "metric": "eager_us", "gpu": GPU, "machine": "default", "unit": "µs",
        "direction": "lower", "value": 9000.5, "commit": commit(3), "commit_time_s": MONDAY + 3 * 3600, "run": "run",
        "environment": {"driver": "580.1"},
    }  # fmt: skip
    assert added > MONDAY
    assert module.pd.isna(second["commit_time_s"])


def test_adding_again_changes_nothing_and_another_run_is_kept(store):
    first = samples([1.0, 2.0, 3.0])
    assert Store(store).add(first) == module.Added(3, 0)
    before = Store(store).samples()
    assert Store(store).add(first) == module.Added(0, 3)
    assert Store(store).samples().equals(before)
    assert Store(store).add([*first, sample(1, 2.5, run="again")]) == module.Added(1, 3)
    assert list(Store(store).samples()["value"]) == [1.0, 2.0, 3.0, 2.5]


@pytest.mark.parametrize("name", ["workload", "variant", "metric", "gpu", "machine"])
def test_each_part_of_the_key_keeps_samples_apart(store, name):
    assert Store(store).add([sample(0, 1.0), sample(0, 2.0, **{name: "another"})]).added == 2
    assert list(Store(store).samples(**{name: "another"})["value"]) == [2.0]


def test_filters_take_names_and_patterns(store):
    names = ["eager_us", "eager_ratio_to_v0", "eagerXus", "100%", "100x"]
    Store(store).add([sample(0, float(i), metric=m) for i, m in enumerate(names)])

    def found(pattern):
        return list(Store(store).samples(metric=pattern)["metric"])

    assert found("eager_us") == ["eager_us"]
    assert found("eager_*") == ["eager_us", "eager_ratio_to_v0"]
    assert found("*us") == ["eager_us", "eagerXus"]
    assert found("100%") == found("100%*") == ["100%"]
    assert found("nothing") == []


def check_everything_once(store: str, expected: int) -> None:
    frame = Store(store).samples()
    assert len(frame) == expected
    assert not frame.duplicated(["metric", "commit", "run"]).any()
    assert frame.groupby(["commit", "run"])["metric"].agg(set).map({"a", "b", "c"}.__eq__).all()
    # Each value is that of its commit: nothing was mixed up.
    numbers = {commit(n): 100.0 + n for n in range(EVERY_RESULT)}
    assert (frame["commit"].map(numbers) == frame["value"]).all()


def test_two_processes_that_add_at_once_lose_nothing_and_double_nothing(store):
    # Each adds 1,000 results of its own to a store that neither made before.
    writers = [start([store, name, str(EVERY_RESULT)]) for name in ("one", "two")]
    assert [w.wait(timeout=300) for w in writers] == [0, 0]
    check_everything_once(store, 2 * 3 * EVERY_RESULT)


def test_two_processes_that_add_the_same_at_once_store_it_once(store):
    count = 100
    writers = [start([store, "", str(count)]) for _ in range(2)]
    assert [w.wait(timeout=300) for w in writers] == [0, 0]
    check_everything_once(store, 3 * count)


def test_a_killed_add_leaves_a_store_that_opens_with_whole_results(store):
    import random
    import time

    rng = random.Random(0)
    for _ in range(6):
        writer = start([store, "announced", str(EVERY_RESULT)], stdout=subprocess.PIPE)
        if rng.random() < 0.7:  # in the middle of writing
            writer.stdout.readline()
            time.sleep(rng.uniform(0, 0.08))
        else:  # or of starting, or making the store
            time.sleep(rng.uniform(0.2, 0.9))
        writer.kill()
        told = writer.stdout.read().split()
        writer.wait()
        if "://" not in store and not Path(store).exists():
            continue  # killed before it made one
        frame = Store(store).samples()
        assert (frame.groupby("run").size() == 3).all()
        if told:  # what was said to be added is there
            assert {f"announced-{n}" for n in told} <= set(frame["run"])
    assert Store(store).add(samples([1.0])).added == 1


def test_a_failure_in_the_middle_adds_nothing(tmp_path, monkeypatch):
    store = tmp_path / "t.sqlite"
    Store(store).add(samples([1.0]))
    row = module._row

    def failing(key, one):
        if one.value == 4.0:
            return {**row(key, one), "unit": None}  # against NOT NULL, so the database refuses
        return row(key, one)

    monkeypatch.setattr(module, "_row", failing)
    monkeypatch.setattr(module.time, "sleep", lambda s: None)
    with pytest.raises(InputError):
        Store(store).add(samples([1.0, 2.0, 3.0, 4.0]))
    assert list(Store(store).samples()["value"]) == [1.0]


def execute(store: str, statement: str) -> None:
    engine = module.open_engine(store, write=True)[0]
    with engine.begin() as connection:
        connection.execute(sa.text(statement))


def test_a_newer_store_is_refused_by_reader_and_writer(store):
    Store(store).add(samples([1.0]))
    execute(store, f"INSERT INTO glqprof_store (version) VALUES ({module.VERSION + 1})")
    says = (
        f"was written by a newer glqprof .store version {module.VERSION + 1}, this one reads {module.VERSION}.; update"
    )
    with pytest.raises(InputError, match=says):
        Store(store).samples()
    with pytest.raises(InputError, match=says):
        Store(store).add(samples([1.0, 2.0]))


def test_an_older_store_is_brought_up_once_by_the_next_add(store, monkeypatch):
    Store(store).add(samples([1.0]))

    def add_note(connection):
        connection.execute(sa.text("ALTER TABLE glqprof_samples ADD COLUMN note VARCHAR(10)"))

    monkeypatch.setattr(module, "MIGRATIONS", (add_note,))
    monkeypatch.setattr(module, "VERSION", 2)
    with pytest.raises(InputError, match="version 1, older than 2; the next `trend add` updates it"):
        Store(store).samples()
    for _ in range(2):  # the second time there is nothing to do
        Store(store).add(samples([1.0, 2.0]))
    assert list(Store(store).samples()["value"]) == [1.0, 2.0]
    execute(store, "UPDATE glqprof_samples SET note = 'there'")


def test_an_empty_file_is_an_empty_store(tmp_path):
    # What is left when an `add` is killed before its first transaction ended.
    path = tmp_path / "t.sqlite"
    path.touch()
    assert Store(path).samples().empty
    assert Store(path).add(samples([1.0])).added == 1


def test_a_sqlite_file_of_something_else_is_left_alone(tmp_path):
    path = tmp_path / "trace.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE kernels (start INTEGER)")
    connection.close()
    before = path.read_bytes()
    for use in (lambda: Store(path).add(samples([1.0])), lambda: Store(path).samples()):
        with pytest.raises(InputError, match="is a SQLite file of something else"):
            use()
    assert path.read_bytes() == before


def test_a_store_is_one_file(tmp_path):
    Store(tmp_path / "t.sqlite").add(samples([1.0]))
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


def test_a_path_with_signs_of_a_url_is_a_path(tmp_path):
    path = tmp_path / "a ?mode=ro#%41é.sqlite"
    Store(path).add(samples([1.0]))
    assert path.exists()
    assert len(Store(f"sqlite:///{tmp_path / 'plain.sqlite'}")._store) > 0
    Store(f"sqlite:///{tmp_path / 'plain.sqlite'}").add(samples([1.0]))
    assert len(Store(tmp_path / "plain.sqlite").samples()) == 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.sampled_from("xy")), max_size=20), st.data())
def test_any_order_of_adding_ends_in_the_same_store(tmp_path_factory, keys, data):
    path: Path = tmp_path_factory.mktemp("store") / "t.sqlite"
    all_samples = [sample(n, float(n), metric=m, run=r) for n, m, r in keys]
    at = data.draw(st.integers(0, len(keys)))
    first = Store(path).add(all_samples[:at])
    second = Store(path).add(data.draw(st.permutations(all_samples)))
    assert first.added + second.added == len(set(keys)) == len(Store(path).samples())
