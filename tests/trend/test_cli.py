"""`glqprof trend …` as its users meet it: output, exit status, and one line for what cannot be used."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest
from trend.made import bench, commit, samples, values

from glqprof.trend import Store
from glqprof.trend.store import VERSION
from support.cli import glqprof, glqprof_process
from support.paths import REPOSITORY, SCHEMAS

HASH = "0123456789abcdef0123456789abcdef01234567"
SCHEMA = json.loads((SCHEMAS / "trend-1.schema.json").read_text(encoding="utf-8"))


def valid(content):
    jsonschema.Draft202012Validator(SCHEMA).validate(content)
    return content


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.sqlite"


def filled(path, **series):
    """A store with a series of `values` for each metric."""
    for metric, numbers in series.items():
        Store(path).add(samples(numbers, metric=metric))
    return path


def test_the_way_of_a_user_from_an_empty_folder(tmp_path):
    """Add a result a commit, list, check, plot, export: the commands of docs/trend.md, each as a process of its own."""
    env = {"GLQPROF_TREND_STORE": "mine.sqlite"}
    for number in range(3):
        bench(tmp_path / f"{number}.json", median_us=9000.0 + number)
        ran = glqprof_process("trend", "add", f"{number}.json", "--commit", commit(number), env=env, cwd=tmp_path)
        assert (ran.status, ran.err) == (0, "")
        assert ran.out == "9 samples of 1 file added to mine.sqlite\n"
    listed = glqprof_process("trend", "list", env=env, cwd=tmp_path)
    assert "9 series over 3 commits in mine.sqlite" in listed.out
    assert max(map(len, listed.out.splitlines())) <= 80
    checked = glqprof_process("trend", "check", env=env, cwd=tmp_path)
    assert checked.status == 0
    assert "not enough data in 9 of 9 series: at most 3 of 10 commits" in " ".join(checked.out.split())
    drawn = glqprof_process("trend", "plot", "-o", "t.png", "--metric", "eager_us", env=env, cwd=tmp_path)
    assert drawn.status == 0
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    exported = glqprof_process("trend", "export", "-o", "t.csv", env=env, cwd=tmp_path)
    assert exported.out == "27 samples written to t.csv\n"
    assert {p.name for p in tmp_path.iterdir()} == {"0.json", "1.json", "2.json", "mine.sqlite", "t.csv", "t.png"}


def test_check_fails_with_the_commit_the_size_and_its_interval(path):
    filled(path, eager_us=values(60, {50: 1.05}), syncs=np.full(60, 162.0))
    ran = glqprof("trend", "check", "--store", path, "--format", "json")
    assert ran.status == 1
    bad, good = valid(json.loads(ran.out))["findings"]
    assert (bad["metric"], bad["status"], bad["commit"], bad["commits_since"]) == (
        "eager_us",
        "regression",
        commit(50),
        10,
    )
    low, high = bad["change_ci"]
    assert low < bad["change"] < high
    assert low < 0.05 < high
    assert high - low < 0.03  # the noise is 1 %, and ten commits show the new level
    assert (good["metric"], good["status"], good["change"]) == ("syncs", "steady", 0.0)
    text = glqprof("trend", "check", "--store", path)
    assert text.status == 1
    assert "1 of 2 series regressed" in text.out
    assert f"since commit {commit(50)[:10]} (after {commit(49)[:10]}), 10 commits on the new level" in text.out


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 1),
        (["--max-regression", "3%"], 1),
        (["--max-regression", "0.03"], 1),
        (["--max-regression", "20%"], 0),
        (["--max-regression", "eager_us=20%"], 0),
        (["--max-regression", "eager*=20%", "--max-regression", "1%"], 0),
        (["--max-regression", "syncs=20%"], 1),
        (["--direction", "eager_us=higher"], 0),
        (["--direction", "eager_us=none"], 0),
        (["--last", "5"], 0),  # it is ten commits old: the level of five commits ago is the one it is on
        (["--accept", commit(50)], 0),
        (["--accept", commit(50)[:8]], 0),
        (["--accept", commit(20)], 1),
        (["--metric", "syncs"], 0),
        (["--min-samples", "61"], 0),
    ],
)
def test_what_counts_as_a_regression(path, options, status):
    filled(path, eager_us=values(60, {50: 1.05}), syncs=np.full(60, 162.0))
    assert glqprof("trend", "check", "--store", path, *options).status == status


def test_higher_is_better_where_the_metric_says_so(path):
    Store(path).add(samples(values(60, {50: 0.95}), metric="tok_s", direction="higher"))
    assert glqprof("trend", "check", "--store", path).status == 1
    Store(path.with_name("up")).add(samples(values(60, {50: 1.05}), metric="tok_s", direction="higher"))
    ran = glqprof("trend", "check", "--store", path.with_name("up"), "--format", "json")
    assert ran.json["findings"][0]["status"] == "improvement"


def test_from_zero_is_a_regression_without_a_percentage(path):
    filled(path, syncs=[0.0] * 30 + [5.0] * 5)
    ran = glqprof("trend", "check", "--store", path, "--format", "json")
    assert ran.status == 1
    (finding,) = valid(json.loads(ran.out))["findings"]
    assert (finding["change"], finding["change_ci"], finding["reference"], finding["level"]) == (None, None, 0.0, 5.0)
    assert "from 0" in glqprof("trend", "check", "--store", path).out


def test_two_gpus_never_share_a_series(path):
    # Each is steady; together they would be a step of a factor of two.
    Store(path).add(samples(values(20, {}, seed=1), gpu="NVIDIA H200"))
    Store(path).add(samples(values(20, {}, level=200.0, seed=2), gpu="NVIDIA B200"))
    report = glqprof("trend", "check", "--store", path, "--format", "json").json
    assert [(f["gpu"], f["commits"], f["status"]) for f in report["findings"]] == [
        ("NVIDIA B200", 20, "steady"),
        ("NVIDIA H200", 20, "steady"),
    ]


def test_a_late_measurement_stands_where_its_commit_belongs(path):
    made = samples(values(40, {30: 1.2}))
    order = np.random.default_rng(0).permutation(40)
    Store(path).add([made[i] for i in order])
    ran = glqprof("trend", "check", "--store", path, "--format", "json")
    assert json.loads(ran.out)["findings"][0]["commit"] == commit(30)


def test_several_runs_of_a_commit_count_as_their_median(path):
    numbers = values(40, {})
    for run, factor in (("a", 1.0), ("b", 1.0), ("hiccup", 3.0)):
        Store(path).add(samples(numbers * factor, run=run))
    (series,) = valid(glqprof("trend", "list", "--store", path, "--format", "json").json)["series"]
    assert (series["commits"], series["samples"], series["latest"]) == (40, 120, numbers[-1])
    assert series["steps"] == []


def test_what_else_changed_at_the_step_is_said(path):
    numbers = values(40, {30: 1.1})
    Store(path).add(samples(numbers[:30], environment={"driver": "580.1", "torch": "2.11"}))
    from trend.made import sample

    later = {"driver": "590.2", "torch": "2.11"}
    Store(path).add([sample(i, float(numbers[i]), environment=later) for i in range(30, 40)])
    assert "at the same commit changed: driver 580.1 → 590.2" in glqprof("trend", "check", "--store", path).out


def test_no_data_is_an_answer_of_its_own(path):
    filled(path, eager_us=[1.0, 2.0, 3.0])
    ran = glqprof("trend", "check", "--store", path, "--format", "json")
    assert ran.status == 0
    assert valid(ran.json)["findings"][0]["status"] == "not enough data"
    assert ran.err == "warning: not enough data in 1 of 1 series\n"
    assert "no answer: not enough data" in glqprof("trend", "check", "--store", path).out
    empty = path.with_name("empty")
    empty.touch()
    ran = glqprof("trend", "check", "--store", empty)
    assert (ran.status, "the store is empty" in ran.out) == (0, True)


def test_markdown_for_a_step_summary(path):
    filled(path, eager_us=values(60, {50: 1.05}))
    out = glqprof("trend", "check", "--store", path, "--format", "markdown").out
    lines = out.splitlines()
    assert lines[0] == "# glqprof trend check"
    assert any(line.startswith("**1 of 1 series regressed") for line in lines)
    rule = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    assert {line.count("|") for line in lines[rule - 1 : rule + 2]} == {9}


def test_csv_has_full_precision(path):
    numbers = values(60, {50: 1.05})
    filled(path, eager_us=numbers)
    for verb in ("list", "check"):
        (row,) = csv.DictReader(io.StringIO(glqprof("trend", verb, "--store", path, "--format", "csv").out))
        assert (row["metric"], row["commits"]) == ("eager_us", "60")
    (row,) = csv.DictReader(io.StringIO(glqprof("trend", "list", "--store", path, "--format", "csv").out))
    assert float(row["latest"]) == numbers[-1]


def test_json_of_every_verb_follows_the_schema(path, tmp_path):
    file = bench(tmp_path / "b.json", ok=False)
    added = valid(glqprof("trend", "add", file, "--store", path, "--commit", HASH, "--format", "json").json)
    assert (added["added"], added["known"], len(added["files"][0]["notes"])) == (4, 0, 1)
    again = valid(glqprof("trend", "add", file, "--store", path, "--commit", HASH, "--format", "json").json)
    assert (again["added"], again["known"]) == (0, 4)
    filled(path, eager_us=values(60, {50: 1.05}))
    assert len(valid(glqprof("trend", "list", "--store", path, "--format", "json").json)["series"]) == 5


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_export_reads_back_as_it_is_in_the_store(path, tmp_path, suffix):
    from trend.made import sample

    Store(path).add([sample(0, 1.5, environment={"driver": "5"}), sample(1, 0.1 + 0.2, time=None)])
    out = tmp_path / f"out.{suffix}"
    assert glqprof("trend", "export", "-o", out, "--store", path).status == 0
    stored = Store(path).samples()
    if suffix == "json":
        content = valid(json.loads(out.read_text(encoding="utf-8")))
        assert [s["environment"] for s in content["samples"]] == [{"driver": "5"}, {}]
        found = pd.DataFrame(content["samples"])
    else:
        found = pd.read_csv(out, keep_default_na=False) if suffix == "csv" else pd.read_parquet(out)
        assert list(found["environment"]) == ['{"driver": "5"}', "{}"]
    for name in ("workload", "variant", "metric", "gpu", "machine", "unit", "direction", "commit", "run", "value"):
        assert list(found[name]) == list(stored[name]), name


def refused(*arguments):
    """The one line that a command refuses with."""
    ran = glqprof("trend", *arguments)
    assert ran.status == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    return ran.err


def test_one_bad_file_of_several_adds_none(path, tmp_path):
    good, bad = bench(tmp_path / "good.json"), tmp_path / "bad.json"
    bad.write_text(good.read_text(encoding="utf-8")[:-100], encoding="utf-8")
    assert "bad.json: is not JSON, or only a part of it" in refused("add", good, bad, "--store", path, "--commit", HASH)
    assert not path.exists()


def test_a_result_of_the_wrong_schema_is_refused(path, tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"schema": "glqprof.bench/9"}', encoding="utf-8")
    assert "has schema 'glqprof.bench/9'" in refused("add", wrong, "--store", path, "--commit", HASH)
    assert not path.exists()


def test_a_newer_store_is_refused(path, tmp_path):
    filled(path, eager_us=[1.0])
    with sqlite3.connect(path) as connection:
        connection.execute(f"INSERT INTO glqprof_store VALUES ({VERSION + 1})")
    connection.close()
    for verb in (["list"], ["check"], ["add", bench(tmp_path / "b.json"), "--commit", HASH]):
        assert "was written by a newer glqprof" in refused(*verb, "--store", path)


def test_stores_that_cannot_be_used(path, tmp_path):
    file = bench(tmp_path / "b.json")
    add = ["add", file, "--commit", HASH, "--store"]
    text = tmp_path / "text.sqlite"
    text.write_text("no database", encoding="utf-8")
    assert "is a directory" in refused(*add, tmp_path)
    assert "is not a SQLite file" in refused(*add, text)
    assert "is not a SQLite file" in refused("list", "--store", text)
    assert "no such store" in refused("list", "--store", path)
    assert "is no folder" in refused(*add, tmp_path / "missing" / "t.sqlite")
    assert "is no database that SQLAlchemy knows" in refused(*add, "nosuchdb://host/x")
    assert "is no database URL" in refused(*add, "://host")
    assert "is a store in memory" in refused(*add, "sqlite://")
    assert not path.exists()


def test_a_read_only_store_can_be_read_and_not_written(tmp_path):
    file = bench(tmp_path / "b.json").read_text(encoding="utf-8")
    folder = Path(tempfile.mkdtemp())  # tmp_path lies in folders that only their owner may enter
    path = filled(folder / "t.sqlite", eager_us=[1.0])
    path.chmod(0o444)
    folder.chmod(0o555)
    # Root may write anything, so it becomes nobody, once everything is imported from folders that may be root's.
    code = (
        "import contextlib, io, os, sys\n"
        "from glqprof.cli.app import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['trend', 'list', *sys.argv[-2:]])\n"
        "import glqprof.trend.results\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "main(sys.argv[1:])"
    )
    try:
        paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"PYTHONPATH": paths, "COLUMNS": "80"}

        def run(*arguments):
            command = [sys.executable, "-c", code, "trend", *map(str, arguments), "--store", str(path)]
            return subprocess.run(command, input=file, capture_output=True, text=True, env=env, check=False, cwd="/")

        assert "1 series over 1 commit" in run("list").stdout
        ran = run("add", "-", "--commit", HASH)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr == f"error: {path}: is read-only; make it writable, or give another --store\n"
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_passwords_are_never_printed(postgresql, tmp_path):
    file = bench(tmp_path / "b.json")
    add = ["add", file, "--commit", HASH]
    good = glqprof_process("trend", *add, env={"GLQPROF_TREND_STORE": postgresql})
    secret = postgresql.split(":")[2].split("@")[0]
    assert good.status == 0
    assert ":***@" in good.out
    assert secret not in good.out + good.err
    wrong = postgresql.replace(secret, "wr0ng-secret")
    said = refused(*add, "--store", wrong)
    assert "password authentication failed" in said
    assert "wr0ng-secret" not in said
    nowhere = "postgresql://user:hidden-word@127.0.0.1:1/none?sslpassword=hidden-word"
    for arguments in ([*add, "--store", nowhere], ["list", "--store", nowhere]):
        assert "hidden-word" not in refused(*arguments)
    for url in ("postgresql://user:hidden-word@host:port/x", "nosuchdb://user:hidden-word@host/x"):
        assert "hidden-word" not in refused("list", "--store", url)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--max-regression", "3"], "'3' is no share; write 3% or 0.03"),
        (["--max-regression", "-1%"], "is no share"),
        (["--max-regression", "much"], "is no share"),
        (["--max-regression", "eager_us="], "is not METRIC=VALUE"),
        (["--direction", "eager_us"], "is not METRIC=VALUE"),
        (["--direction", "eager_us=down"], "'down' is none of lower, higher, none"),
        (["--min-samples", "3"], "cannot show a step; give at least 6"),
        (["--metric", "nothing"], "has no sample with --metric 'nothing'"),
    ],
)
def test_options_that_make_no_sense(path, options, says):
    filled(path, eager_us=[1.0])
    ran = glqprof("trend", "check", "--store", path, *options)
    assert ran.status == 2
    assert says in ran.err


def test_without_the_extra_one_line_says_what_to_install(path, tmp_path):
    code = (
        "import sys; sys.modules['sqlalchemy'] = None; from glqprof.cli.app import main;"
        f"main(['trend', 'list', '--store', {str(path)!r}])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "80"}
    )
    assert ran.returncode == 2
    assert ran.stderr == "error: trend: needs SQLAlchemy and ruptures; run: pip install 'glqprof[trend]'\n"


@pytest.mark.parametrize("verb", ["trend", "capture"])
def test_a_verb_of_verbs_alone_prints_its_help(verb):
    ran = glqprof_process(verb)
    assert (ran.status, ran.err) == (0, "")
    assert f"Usage: glqprof {verb}" in ran.out


def test_help_does_not_wait_for_databases():
    code = (
        "import sys; from glqprof.cli.app import main\n"
        "try: main(['trend', '--help'])\n"
        "except SystemExit: print([m for m in ('sqlalchemy', 'scipy', 'pandas', 'ruptures') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1] == "[]"
