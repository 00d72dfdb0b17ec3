"""Result files as samples: the numbers of each kind, and what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from trend.made import GPU, bench

from glqprof.errors import InputError
from glqprof.trend import SeriesKey, read_results
from glqprof.trend.commits import parse_time, resolve_commit
from support.paths import RECORDED, REPOSITORY

BENCH = REPOSITORY / "benchmarks" / "results" / "bench-glq-moe.json"
GLQ13 = RECORDED / "h200-cascade2-30b-glq-v0.2.13"
HASH = "0123456789abcdef0123456789abcdef01234567"


def numbers(path: Path, **options: object) -> dict[tuple[str, str], tuple[float, str, str]]:
    options = {"commit": HASH} | options
    samples = read_results([path], **options)[0].samples
    return {(s.series.metric, s.series.variant): (s.value, s.unit, s.direction) for s in samples}


def test_bench_times_ratios_rates_and_counts(tmp_path):
    found = numbers(bench(tmp_path / "b.json"))
    assert found == {
        ("eager_us", "v0"): (18000.0, "µs", "lower"),
        ("gb_s", "v0"): (55.0, "GB/s", "higher"),
        ("launches", "v0"): (1311, "calls", "lower"),
        ("syncs", "v0"): (162, "calls", "lower"),
        ("eager_us", "v3b"): (9000.0, "µs", "lower"),
        ("eager_ratio_to_v0", "v3b"): (0.5, "ratio", "lower"),
        ("gb_s", "v3b"): (55.0, "GB/s", "higher"),
        ("launches", "v3b"): (1311, "calls", "lower"),
        ("syncs", "v3b"): (162, "calls", "lower"),
    }


def test_what_makes_two_times_incomparable_is_in_the_name_of_the_workload(tmp_path):
    def workload(**more):
        return read_results([bench(tmp_path / "b.json", **more)], commit=HASH)[0].samples[0].series.workload

    assert workload() == "glq-moe/tiny/layers=2/rows=1"
    assert workload(geometry="large") == "glq-moe/large/layers=2/rows=1"
    assert workload(layers=3) == "glq-moe/tiny/layers=3/rows=1"
    assert workload(options={"experts": 8}) == "glq-moe/tiny/layers=2/rows=1/experts=8"
    assert workload(cache={"state": "warm", "sets": 1, "bytes": 0}) == "glq-moe/tiny/layers=2/rows=1/warm"


def test_a_variant_that_failed_its_checks_is_left_out_and_named(tmp_path):
    (result,) = read_results([bench(tmp_path / "b.json", ok=False)], commit=HASH)
    assert {s.series.variant for s in result.samples} == {"v0"}
    assert result.notes == ("v3b at 1 row left out: it failed its checks (wrong-bits)",)


def test_the_recorded_bench_of_an_h200():
    (result,) = read_results([BENCH], commit="b37fa67", commit_time=1)
    raw = json.loads(BENCH.read_text(encoding="utf-8"))
    good = [v for v in raw["variants"] if v["ok"]]
    by_key = {s.series: s for s in result.samples}
    for v in good:
        key = SeriesKey(f"glq-moe/cascade2-30b/layers=23/rows={v['rows']}", v["name"], "eager_us", GPU)
        assert by_key[key].value == v["timings"]["eager"]["median_us"]
    assert len([k for k in by_key if k.metric == "eager_us"]) == len(good)
    assert by_key[key].environment == {"driver": "580.159.04", "cuda": "13.0", "torch": "2.11.0+cu130"}


def test_a_breakdown_of_a_recorded_decode(tmp_path, breakdown_json):
    path = tmp_path / "breakdown.json"
    content = breakdown_json(GLQ13)
    path.write_text(json.dumps(content), encoding="utf-8")
    found = numbers(path, workload="cascade2-30b", variant="v0.2.13")
    variant = "v0.2.13"
    # From the capture's manifest: 12.88 tok/s untraced, 8 tokens.
    assert found["tok_s", variant] == (12.88, "tok/s", "higher")
    assert found["ms_per_token", variant][1:] == ("ms", "lower")
    wall = content["window"]["wall_ns"] / 1e6 / 8
    assert found["traced_ms_per_token", variant] == (pytest.approx(wall), "ms", "none")
    assert found["launches_per_token", variant][0] == content["host"]["launch"]["calls"] / 8
    # The rows of the account are all there, and close.
    rows = {metric: v for (metric, _), v in found.items() if metric.startswith(("gpu.", "idle."))}
    assert sum(value for value, _, _ in rows.values()) == pytest.approx(wall)
    # Idle time of a traced host is no evidence; the GPU's own is.
    assert {direction for metric, (_, _, direction) in rows.items() if metric.startswith("idle.")} == {"none"}
    assert {direction for metric, (_, _, direction) in rows.items() if metric.startswith("gpu.")} == {"lower"}


def test_a_comparison(tmp_path):
    from support.cli import glqprof

    path = tmp_path / "compare.json"
    path.write_text(glqprof("compare", RECORDED / "h200-cascade2-30b-glq-v0.2.12", GLQ13, "--format", "json").out)
    found = numbers(path, gpu=GPU, workload="w", variant="v")
    assert found["tok_s", "v"] == (12.88, "tok/s", "higher")
    assert found["tok_s_ratio_to_base", "v"] == (pytest.approx(12.88 / 11.02), "ratio", "higher")
    assert found["traced_ms_per_token", "v"][2] == "none"
    with pytest.raises(InputError, match="does not say which GPU"):
        numbers(path)


@pytest.mark.parametrize("gpu", ["NVIDIA H200", ["NVIDIA H200"], {"name": "NVIDIA H200"}])
def test_a_decode_by_its_documented_fields(tmp_path, gpu):
    path = tmp_path / "decode.json"
    content = {"schema": "glqprof.decode/1", "tok_s": 12.5, "ms_per_token": 80.0, "token_sha": "ab12", "gpu": gpu}
    path.write_text(json.dumps({**content, "commit": HASH, "something": "later"}), encoding="utf-8")
    (result,) = read_results([path])
    assert {s.series.metric: (s.value, s.direction) for s in result.samples} == {
        "tok_s": (12.5, "higher"),
        "ms_per_token": (80.0, "lower"),
    }
    assert {(s.commit, s.series.gpu, s.environment["token_sha"]) for s in result.samples} == {(HASH, GPU, "ab12")}


def test_the_same_content_is_the_same_run_however_it_is_laid_out(tmp_path):
    first = bench(tmp_path / "a.json")
    content = json.loads(first.read_text(encoding="utf-8"))
    second = tmp_path / "b.json"
    second.write_text(json.dumps(dict(reversed(content.items())), indent=4), encoding="utf-8")
    third = bench(tmp_path / "c.json", median_us=9001.0)
    a, b, c = read_results([first, second, third], commit=HASH)
    assert [s.key for s in a.samples] != [s.key for s in c.samples]
    assert {s.key for s in a.samples} == {s.key for s in b.samples}
    assert not {s.key for s in a.samples} & {s.key for s in c.samples}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON, or only a part"),
        ('{"schema": "glqprof.bench/1", "gro', "is not JSON, or only a part"),
        ("[" * 100_000, "is not JSON, or only a part"),
        ("\x00\xff", "is not JSON"),
        ("[]", "no result of glqprof"),
        ('"glqprof.bench/1"', "no result of glqprof"),
        ('{"schema": 1}', "no result of glqprof"),
        ('{"schema": "glqprof.bench/2"}', "has schema 'glqprof.bench/2'; this version adds glqprof.bench/1"),
        ('{"schema": "glqprof.capture/1"}', "has schema 'glqprof.capture/1'"),
        ('{"schema": "glqprof.bench/1"}', "does not follow its schema"),
        ('{"schema": "glqprof.decode/1", "tok_s": "12", "ms_per_token": 1}', "does not follow its schema"),
        ('{"schema": "glqprof.decode/1", "tok_s": NaN, "ms_per_token": 1}', "is not JSON"),
        ('{"schema": "glqprof.decode/1", "tok_s": 1e999, "ms_per_token": 1, "gpu": "g"}', "is not JSON|not a number"),
        ('{"schema": "glqprof.decode/1", "tok_s": 1, "ms_per_token": 1, "gpu": "a\\nb"}', "one printable line"),
        ('{"schema": "glqprof.decode/1", "tok_s": 1, "ms_per_token": 1, "gpu": ""}', "does not say which GPU"),
        ('{"schema": "glqprof.decode/1", "tok_s": 1, "ms_per_token": 1, "gpu": "g", "commit": "--x"}', "no commit"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, text, says):
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=says) as error:
        read_results([path], commit=None if '"commit"' in text else HASH)
    assert "\n" not in str(error.value)


def test_a_file_without_a_commit_needs_one(tmp_path):
    with pytest.raises(InputError, match="names no commit; give --commit"):
        read_results([bench(tmp_path / "b.json")])
    path = bench(tmp_path / "b.json", git={"commit": HASH, "dirty": False})
    assert read_results([path])[0].samples[0].commit == HASH
    with pytest.raises(InputError, match="was measured at commit"):
        read_results([path], commit="f" * 40)


def test_the_gpu_of_the_file_is_not_overruled(tmp_path):
    with pytest.raises(InputError, match="was measured on 'NVIDIA H200'"):
        read_results([bench(tmp_path / "b.json")], commit=HASH, gpu="NVIDIA B200")


def test_two_variants_cannot_be_given_one_name(tmp_path):
    with pytest.raises(InputError, match="has two numbers for eager_us"):
        read_results([bench(tmp_path / "b.json")], commit=HASH, variant="mine")


def test_a_commit_of_the_checkout_is_resolved_with_its_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-11-30T12:00:00Z")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(InputError, match="no git checkout"):
        resolve_commit("HEAD")
    assert resolve_commit(HASH) == (HASH, None)
    for arguments in (["init", "-q"], [*name, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", *arguments], check=True)
    commit, seconds = resolve_commit("HEAD")
    # 2026-11-30T12:00:00Z by the calendar: 20,787 days after 1970-01-01, and half a day.
    assert seconds == 20_787 * 86_400 + 43_200
    assert len(commit) == 40
    assert resolve_commit(commit[:7]) == (commit, seconds)


@pytest.mark.parametrize(
    "text", ["2026-11-30T12:00:00Z", "2026-11-30T13:00:00+01:00", "2026-11-30 12:00", "1796040000"]
)
def test_times(text):
    assert parse_time(text) == 1_796_040_000


@pytest.mark.parametrize("text", ["", "yesterday", "99999999999999999999", "-5"])
def test_times_that_are_none(text):
    with pytest.raises(InputError, match="is no time"):
        parse_time(text)
