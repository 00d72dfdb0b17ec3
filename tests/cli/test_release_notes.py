"""`glqprof release-notes`: its figures against independent counts, what it refuses, what it says is missing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import glqprof as package
from support.cli import glqprof
from support.nsys_builder import two_token_decode
from support.paths import RECORDED, REPOSITORY

OWN = REPOSITORY / "docs" / "releases" / "h200-cascade2.toml"
SPEC = REPOSITORY / "docs" / "releases" / "h200-cascade2-upstream.toml"
NOTE = SPEC.with_suffix(".md")
BENCH = REPOSITORY / "benchmarks" / "results" / "bench-glq-moe.json"
FUSED = REPOSITORY / "benchmarks" / "results" / "bench-glq-fused.json"
# Counted apart from this program, from the exports, for the README of the captures: in the window from the first to the
# last decode_token range, 8 tokens.
COUNTED = {
    "v0.2.12": {"launches": 30_376, "syncs": 5_944, "blocking_copies": 368, "tok_s": 11.02, "window_ms": 925.2,
                "idle ms: launch-latency": 64.3},
    "v0.2.13": {"launches": 27_064, "syncs": 1_304, "blocking_copies": 1_296, "tok_s": 12.88, "window_ms": 950.9,
                "idle ms: launch-latency": 43.5, "matvec": 54.356, "rht": 14.884, "reduce": 2.945},
    "bf16 grouped_mm": {"launches": 21_176, "syncs": 8, "blocking_copies": 0, "tok_s": 12.40, "window_ms": 819.3},
}  # fmt: skip


@pytest.fixture(scope="module")
def figures() -> Any:
    return glqprof("release-notes", SPEC, "--format", "json").json


@pytest.fixture(scope="module")
def note() -> str:
    ran = glqprof("release-notes", SPEC)
    assert ran.status == 0, ran.err
    return ran.out


# --- the committed release


@pytest.mark.parametrize("spec", [SPEC, OWN], ids=lambda spec: spec.stem)
def test_the_committed_note_is_what_the_command_writes(tmp_path, monkeypatch, spec) -> None:
    monkeypatch.chdir(tmp_path)  # paths are the specification's, not the caller's
    assert glqprof("release-notes", spec, "-o", "again.md").out == "wrote again.md\n"
    assert (tmp_path / "again.md").read_bytes() == spec.with_suffix(".md").read_bytes()


def test_the_own_decode_launches_what_its_variants_are_defined_to() -> None:
    """The host loops launch, wait and copy as upstream's releases, which were counted apart. The own loop: 4 kernels a
    Mamba-2 and an attention layer, 5 a MoE layer, embedding, last norm, head, and the position's step."""
    ran = glqprof("release-notes", OWN, "--format", "json").json
    rows = {row["label"]: row for row in ran["rows"]}
    for label, counted in (("v0.2.12", "v0.2.12"), ("v3b", "v0.2.13")):
        for what in ("launches", "syncs", "blocking_copies"):
            assert rows[label]["traced"][what] * 8 == COUNTED[counted][what], (label, what)
    own = rows["own loop + graph"]["traced"]
    assert (own["kernels"], own["launches"], own["syncs"]) == (23 * 4 + 23 * 5 + 6 * 4 + 4, 1, 1)
    hashes = {one["label"]: one["sha"] for one in ran["token_sha"]}
    assert len({hashes[label] for label in ("v0.2.12", "v3a", "v3b")}) == 1
    assert hashes["own loop + graph"] == hashes["own loop, one stream"]


def test_figures_are_the_independent_counts(figures) -> None:
    rows = {row["label"]: row for row in figures["rows"]}
    assert list(rows) == list(COUNTED)
    for label, counted in COUNTED.items():
        row = rows[label]
        assert row["tok_s"] == counted["tok_s"]
        assert row["factor"] == pytest.approx(counted["tok_s"] / 11.02)
        assert row["traced"]["kernels"] == row["traced"]["launches"]  # eager: a call launches one
        for name in ("launches", "syncs", "blocking_copies"):
            assert row["traced"][name] * 8 == counted[name], (label, name)
    time = figures["time"]
    assert time["label"] == "v0.2.13"
    ms = {share["name"]: share["ns"] / 1e6 for share in time["shares"]}
    for bucket in ("matvec", "rht", "reduce"):
        assert ms[bucket] == pytest.approx(COUNTED["v0.2.13"][bucket], abs=0.005)
    assert ms["GPU busy"] + ms["GPU idle"] == pytest.approx(COUNTED["v0.2.13"]["window_ms"], abs=0.05)
    host = {row["row"]: row for row in figures["host"]["rows"]}
    for key, label in (("before_ms", "v0.2.12"), ("after_ms", "v0.2.13")):
        assert host["launch-latency"][key] * 8 == pytest.approx(COUNTED[label]["idle ms: launch-latency"], abs=0.05)


def test_the_json_follows_its_schema(figures, schema_of) -> None:
    jsonschema.validate(figures, schema_of("release-notes-1"), jsonschema.Draft202012Validator)


def test_printed_shares_sum_to_100(note) -> None:
    section = note.split("## Where the time goes now")[1].split("\n## ")[0]
    found = re.findall(r"^( *)- \**([^:]+?): (under )?([\d.]+) %", section, re.MULTILINE)
    lines = [(len(indent) // 2, 0.0 if under else float(share)) for indent, _, under, share in found]
    assert {depth for depth, _ in lines} == {0, 1, 2}
    leaves = [s for (d, s), (after, _) in zip(lines, [*lines[1:], (0, 0)], strict=True) if after <= d]
    assert sum(leaves) == pytest.approx(100.0, abs=1e-9)
    assert sum(s for d, s in lines if d == 0) == pytest.approx(100.0, abs=1e-9)


def test_untraced_numbers_are_tok_s_only_and_traced_ones_say_so(note) -> None:
    for ms in ("90.78", "77.65", "80.67"):  # untraced milliseconds a token
        assert ms not in note
    traced_tok_s = {f"{8e3 / c['window_ms']:.2f}" for c in COUNTED.values()}
    assert not traced_tok_s & set(re.findall(r"[\d.]+(?= tok/s)", note))
    for heading in re.findall(r"^## (?:Where|Host).*$", note, re.MULTILINE):
        assert heading.endswith(", traced")


def test_it_says_whose_runs_these_are_and_what_is_not_measured(note) -> None:
    assert re.search(r"\*\*The rows `v0\.2\.12` and `v0\.2\.13` are upstream's own releases\*\*", note)
    section = note.split("## Not measured\n")[1].split("\n## ")[0]
    for words in ("`v3b-fp32act` stands in", "in a CUDA graph", r"token\_sha of v0.2.12, v0.2.13"):
        assert words in section


def test_every_source_is_cited_and_every_citation_is_a_source(note, figures) -> None:
    numbers = {s["number"] for s in figures["sources"]}
    body, _, sources = note.partition("## Sources\n")
    assert {int(n) for n in re.findall(r"\[(\d+)\]", body)} == numbers
    assert [int(n) for n in re.findall(r"^- \[(\d+)\]", sources, re.MULTILINE)] == sorted(numbers)
    for source in figures["sources"]:
        assert (REPOSITORY / source["file"]).exists()


def test_bits_and_kernels_are_those_of_the_bench_file(note, figures) -> None:
    by_name = {(v["name"], v["rows"]): v for v in json.loads(BENCH.read_text(encoding="utf-8"))["variants"]}
    bits = {b["variant"]: b for b in reversed(figures["bits"])}  # the first of the two files
    assert bits["v3b"]["identical"] is True
    assert bits["v3b"]["elements"] == sum(by_name["v3b", n]["differing"]["elements"] for n in (1, 2, 4))
    wrong = bits["v3b-fp32act"]
    assert wrong["identical"] is False
    assert [d["share"] for d in wrong["differing"]] == [
        by_name["v3b-fp32act", n]["differing"]["share"] for n in (1, 2, 4)
    ]
    assert "v3b-fp32act: not the bytes of v0.2.12" in note
    assert "33.0 % at 1, 40.4 % at 2, 44.2 % at 4" in note
    assert "not held" in note
    kernels = {k["variant"]: k for k in reversed(figures["kernels"])}
    assert kernels["v3b"]["eager_us"] == by_name["v3b", 1]["timings"]["eager"]["median_us"]
    # A variant that failed its checks has no time.
    assert kernels["v3b-fp32act"]["eager_us"] is None
    assert f"{by_name['v3b-fp32act', 1]['timings']['eager']['median_us']:,.0f}" not in note
    fused = json.loads(FUSED.read_text(encoding="utf-8"))
    graph = next(v for v in fused["variants"] if v["name"] == "fused")["timings"]["graph"]
    assert kernels["fused"]["graph_us"] == graph["median_us"]


def test_the_floor_is_bytes_over_the_measured_copy_rate(figures) -> None:
    """Weights that a token reads, from the published shape: 23 Mamba, 23 MoE and 6 attention layers, and the head."""
    h = 2688
    moe = 6 * 2 * h * 1856 + 2 * h * 3712 + 128 * h
    mamba = h * (2 * 4096 + 2 * 8 * 128 + 64) + 4096 * h
    attention = 2 * h * 32 * 128 + 2 * h * 2 * 128
    read = 2 * (23 * moe + 23 * mamba + 6 * attention + 131072 * h)
    rate = json.loads(BENCH.read_text(encoding="utf-8"))["device"]["copy_gb_s"]
    assert figures["gap"]["floor"]["ms_per_token"] == pytest.approx(read / rate / 1e6, rel=1e-9)
    assert figures["gap"]["verdict"] == "not distinguishable"  # 12.88 and 12.40: one run a side, 4 % apart
    assert figures["gap"]["ratio"] == pytest.approx(12.88 / 12.40)


def test_the_table_fits_80_columns(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = glqprof("release-notes", SPEC, "--format", "table")
    assert ran.status == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    assert "0.622 (0.621–0.625)" in ran.out


def test_csv_has_a_line_a_path() -> None:
    lines = glqprof("release-notes", SPEC, "--format", "csv").out.splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("path,tok_s,factor,gpu_busy_share")
    assert lines[2].split(",")[-2:] == ["captures/h200-cascade2-30b-glq-v0.2.13"] * 2


def test_python_gives_the_same_figures(figures) -> None:
    notes = package.release_notes(SPEC)
    assert [p.tok_s for p in notes.paths] == [row["tok_s"] for row in figures["rows"]]
    assert notes.missing == figures["missing"]


# --- made sources


def capture(folder: Path, name: str, **more: object) -> str:
    """A capture folder around the two-token decode on a test GPU, with an untraced run unless told otherwise."""
    (folder / name).mkdir()
    two_token_decode().write(folder / name / "trace.sqlite")
    manifest = {
        "schema": "glqprof.capture/1", "name": name, "tool": "nsys", "tool_version": "0", "files": ["trace.sqlite"],
        "workload": "w", "tokens": 2, "untraced": {"tok_s": 100.0, "ms_per_token": 10.0},
    } | more  # fmt: skip
    content = {key: value for key, value in manifest.items() if value is not None}
    (folder / name / "capture.json").write_text(json.dumps(content), encoding="utf-8")
    return name


def decode(folder: Path, name: str, **more: object) -> str:
    content = {"schema": "glqprof.decode/1", "tok_s": 50.0, "ms_per_token": 20.0, "workload": "w",
               "gpu": "NVIDIA Test GPU"} | more  # fmt: skip
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return name


def bench(folder: Path, file: str, **device: object) -> str:
    content = json.loads(BENCH.read_text(encoding="utf-8"))
    content["geometry"] = device.pop("geometry", "w")
    content["device"] |= {"name": "NVIDIA Test GPU"} | device
    (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return file


def spec(folder: Path, *tables: str, head: str = "") -> Path:
    path = folder / "spec.toml"
    path.write_text('title = "Made"\n' + head + "".join(tables), encoding="utf-8")
    return path


def table(kind: str, **keys: object) -> str:
    body = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    return f"\n[[{kind}]]\n{body}"


def run(path: Path, *options: object) -> str:
    ran = glqprof("release-notes", path, *options)
    assert ran.status == 0, ran.err
    return ran.out


def refused(path: Path, *options: object) -> str:
    ran = glqprof("release-notes", path, *options)
    assert (ran.status, ran.out) == (2, "")
    (line,) = ran.err.splitlines()
    assert line.startswith("error: ")
    return line


def test_rows_of_different_gpus_are_refused_unless_told(tmp_path) -> None:
    a, b = capture(tmp_path, "a"), decode(tmp_path, "b.json", gpu="NVIDIA Other GPU")
    path = spec(tmp_path, table("row", label="one", capture=a), table("row", label="two", decode=b))
    line = refused(path, "-o", tmp_path / "out.md")
    assert f"error: {path}: different GPUs: NVIDIA Test GPU (one), NVIDIA Other GPU (two); " in line
    assert "--allow-mixed" in line
    assert not (tmp_path / "out.md").exists()
    text = run(path, "--allow-mixed")
    assert "> **Not like for like:** different GPUs: NVIDIA Test GPU (one), NVIDIA Other GPU (two)." in text


def test_what_is_not_like_for_like_gets_no_verdict(tmp_path) -> None:
    """Ten times as fast, but with a tenth of the batch: the GPU and the workload's name are the same."""
    a = capture(tmp_path, "a")
    b = capture(tmp_path, "b", batch=10, tokens=20, untraced={"tok_s": 1000.0, "ms_per_token": 1.0})
    rows = [table("row", label="one", capture=a), table("row", label="two", capture=b)]
    more = table("change", heading="c", before="one", after="two") + '\n[gap]\nreference = "one"\n'
    text = run(spec(tmp_path, *rows, more), "--allow-mixed")
    assert "100.00 → 1,000.00 tok/s [1][2]: no verdict, not like for like." in text
    assert "Verdict: not distinguishable (not like for like)." in text
    assert "faster" not in text
    counts = text.split("Traced, a token")[1]
    assert (
        "| one [1] | 25.5 % | 1.5 | 1.5 | 1 | 0.5 |" in counts
    )  # of 20,000 ns 5,100 busy; 3 launches, 2 syncs, 1 copy


@pytest.mark.parametrize(
    ("more", "words"),
    [({"workload": "v"}, "different workloads: w (one), v (two)"),
     ({"batch": 4}, "different batch sizes: 1 (one), 4 (two)"),
     ({"workload": "v", "gpu": "G"}, "different GPUs: NVIDIA Test GPU (one), G (two); different workloads")],
)  # fmt: skip
def test_rows_of_different_workloads_are_refused_unless_told(tmp_path, more, words) -> None:
    a, b = capture(tmp_path, "a"), decode(tmp_path, "b.json", **more)
    path = spec(tmp_path, table("row", label="one", capture=a), table("row", label="two", decode=b))
    assert words in refused(path)
    assert words.split(";")[0] in run(path, "--allow-mixed")


def test_prompts_of_different_lengths_are_different_work(tmp_path) -> None:
    rows = [table("row", label=str(n), decode=decode(tmp_path, f"{n}.json", prompt=n)) for n in (128, 1024)]
    assert "different prompt lengths: 128 (128), 1024 (1024)" in refused(spec(tmp_path, *rows))


def test_a_run_on_the_cpu_or_of_fewer_layers_is_other_work(tmp_path) -> None:
    a = table("row", label="one", decode=decode(tmp_path, "a.json", layers=52))
    b = table("row", label="two", decode=decode(tmp_path, "b.json", layers=6))
    c = table("row", label="three", decode=decode(tmp_path, "c.json", layers=52, gpu="", device="cpu"))
    assert "different numbers of layers: 52 (one), 6 (two)" in refused(spec(tmp_path, a, b))
    assert "different GPUs: NVIDIA Test GPU (one), none (CPU) (three)" in refused(spec(tmp_path, a, c))
    text = run(spec(tmp_path, c))
    assert "three: 50.00 tok/s [1] untraced on the CPU." in text
    assert "Traced" not in text  # no table of dashes where there is no capture


def test_what_makes_a_source_doubtful_stands_under_it(tmp_path) -> None:
    row = table("row", label="one", decode=decode(tmp_path, "a.json", warnings=["ids were *out* of range"]))
    text = run(spec(tmp_path, row, table("kernels", bench=bench(tmp_path, "b.json"))))
    sources = text.split("## Sources\n")[1]
    assert "  - warning: ids were \\*out\\* of range\n" in sources
    assert "  - warning: drift: rows 2, eager, beside v0.2.12" in sources


def test_what_a_capture_answers_only_partly_stands_under_it(tmp_path) -> None:
    """A graph traced as a whole: idle time inside it shows as busy."""
    content = json.loads((RECORDED / "h200-toy-cuda-graph-graph" / "capture.json").read_text(encoding="utf-8"))
    path = spec(tmp_path, table("row", label="one", capture=str(RECORDED / content["name"])))
    sources = run(path).split("## Sources\n")[1]
    assert re.search(r"^  - warning: gpu\\_idle: partly, \d graph launches are timed as a whole", sources, re.MULTILINE)


def test_rates_of_different_kinds_are_told_apart(tmp_path) -> None:
    median = {"untraced": {"tok_s": 1.0, "ms_per_token": 1000.0, "statistic": "median of 16 tokens"}}
    a, b = capture(tmp_path, "a", **median), decode(tmp_path, "b.json", tokens=128)
    text = run(spec(tmp_path, table("row", label="one", capture=a), table("row", label="two", decode=b)))
    assert "not all of one kind: median of 16 tokens (one); mean of 128 tokens (two)." in text


def test_a_bench_of_another_geometry_or_gpu_is_refused(tmp_path) -> None:
    row = table("row", label="one", capture=capture(tmp_path, "a"))
    for more, words in (({"geometry": "g"}, "different workloads"), ({"name": "G"}, "different GPUs")):
        path = spec(tmp_path, row, table("kernels", bench=bench(tmp_path, "b.json", **more)))
        assert words in refused(path)


def test_what_a_source_does_not_say_cannot_be_compared_and_is_listed(tmp_path) -> None:
    a, b = capture(tmp_path, "a"), decode(tmp_path, "b.json", gpu="", workload="")
    text = run(spec(tmp_path, table("row", label="one", capture=a), table("row", label="two", decode=b)))
    missing = text.split("## Not measured\n")[1].split("\n## ")[0]
    assert "- GPU of two: not recorded, so not known to be the others'." in missing
    assert "- workload of two: not recorded" in missing


def test_a_row_with_only_a_bench_has_no_rate_and_says_so(tmp_path) -> None:
    a, b = capture(tmp_path, "a"), bench(tmp_path, "b.json")
    path = spec(tmp_path, table("row", label="one", capture=a), table("row", label="v3b", bench=b, variant="v3b"))
    text = run(path)
    assert "| v3b | – | – | – | – | – | – |" in text
    missing = text.split("## Not measured\n")[1]
    assert "- tok/s of v3b: its sources hold no untraced run of a whole decode." in missing
    assert "- Counts and GPU time of v3b: no capture." in missing
    assert "- Where the time of v3b goes: no capture; shown is one." in missing
    assert "Factors over" not in text
    assert "From one to v3b on NVIDIA Test GPU: not measured untraced on both sides." in text
    assert "v3b: the same bytes as v0.2.12" in text
    assert "nan" not in text.lower().split()


def test_a_capture_without_an_untraced_run_gives_counts_and_no_rate(tmp_path) -> None:
    path = spec(tmp_path, table("row", label="one", capture=capture(tmp_path, "a", untraced=None)))
    content = json.loads(run(path, "--format", "json"))
    (row,) = content["rows"]
    assert (row["tok_s"], row["rate_source"], row["traced"]["inflation"]) == (None, None, None)
    assert row["traced"]["launches"] == 1.5  # three kernels, two tokens
    assert "tok/s" not in run(path).split("## Cumulative")[0].replace("tok/s of one", "")


def test_a_capture_that_cannot_tell_idle_from_busy_prints_no_share(tmp_path) -> None:
    two_token_decode().diagnostic("12 CUDA events were dropped", severity=2).write(tmp_path / "lost.sqlite")
    text = run(spec(tmp_path, table("row", label="one", capture="lost.sqlite")))
    assert "Where the time goes now" not in text
    assert "- Where the time of one goes: records were lost" in text


def test_a_decode_result_wins_over_the_captures_own_run(tmp_path) -> None:
    a, d = capture(tmp_path, "a"), decode(tmp_path, "d.json")
    (row,) = json.loads(run(spec(tmp_path, table("row", label="one", capture=a, decode=d)), "--format", "json"))["rows"]
    assert row["tok_s"] == 50.0
    assert row["traced"]["inflation"] == pytest.approx(0.010 / 20.0)  # 20 µs traced, two tokens, 20 ms untraced


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"token_sha": "aa"}, "equal to one's"),
        ({"token_sha": "bb"}, "differs from one's (bb)"),
        ({"token_sha": "aa", "tokens": 8}, "not comparable with one: different numbers of tokens (128 and 8)"),
        ({"token_sha": "aa", "seed": 1}, "not comparable with one: different seeds (0 and 1)"),
        ({"token_sha": "aa", "tokens": 128}, "equal to one's"),
        ({}, "not recorded"),
    ],
)
def test_token_sha_is_equal_or_not_or_not_recorded(tmp_path, second, says) -> None:
    a, b = decode(tmp_path, "a.json", token_sha="aa", tokens=128, seed=0), decode(tmp_path, "b.json", **second)
    text = run(spec(tmp_path, table("row", label="one", decode=a), table("row", label="two", decode=b)))
    section = text.split("Decoded tokens")[1].split("\n## ")[0]
    assert re.search(rf"^- two: {re.escape(says)}( \[2\])?\.$", section, re.MULTILINE), section


def test_a_capture_that_decoded_other_tokens_than_the_untraced_run_is_told(tmp_path) -> None:
    a = capture(tmp_path, "a", token_sha="aa")
    d = decode(tmp_path, "d.json", token_sha="bb", tokens=2)
    text = run(spec(tmp_path, table("row", label="one", capture=a, decode=d)))
    assert "- one: bb [2]; its capture decoded other tokens [1]." in text


@pytest.mark.parametrize(
    ("floor", "words"),
    [
        ({"ms_per_token": 4.0, "source": "arithmetic"},
         "4.00 ms a token, at most 250 tok/s; arithmetic. one reaches 40.0 %"),
        # 8 GB at the file's copy rate, set to 2,000 GB/s
        ({"bytes_per_token": 8_000_000_000, "source": "weights", "bench": "b.json"},
         "4.00 ms a token, at most 250 tok/s; 8.00 GB (weights) at 2,000 GB/s, the copy rate of this GPU [3]."),
        # floor_us of v3b at one row is 204.99 µs in the recorded file
        ({"variant": "v3b", "bench": "b.json"},
         "0.20 ms a token; v3b of glq-moe alone, the rest of the token left out [3]."),
        # 772.03 µs a call of four rows: four tokens
        ({"variant": "v3b", "bench_rows": 4, "bench": "b.json"},
         "0.19 ms a token; v3b of glq-moe alone at 4 rows, the"),
    ],
)  # fmt: skip
def test_a_floor_is_stated_or_from_a_bench(tmp_path, floor, words) -> None:
    bench(tmp_path, "b.json", copy_gb_s=2000.0)
    a, b = capture(tmp_path, "a"), capture(tmp_path, "b")
    gap = '\n[gap]\nreference = "one"\n[gap.floor]\n' + "".join(f"{k} = {json.dumps(v)}\n" for k, v in floor.items())
    text = run(spec(tmp_path, table("row", label="one", capture=a), table("row", label="two", capture=b), gap))
    assert f"Floor of one: {words}" in text


def test_a_gap_to_a_row_without_a_rate_is_not_known(tmp_path) -> None:
    a, b = capture(tmp_path, "a", untraced=None), capture(tmp_path, "b")
    gap = '\n[gap]\nreference = "one"\n'
    text = run(spec(tmp_path, table("row", label="two", capture=b), table("reference", label="one", capture=a), gap))
    assert "The gap is not known." in text
    first = spec(tmp_path, table("row", label="one", capture=a), table("row", label="two", capture=b))
    assert "- Factors over one: it has no rate." in run(first)
    assert "- A floor of one: the specification gives none." in text


# --- unusable input


def test_missing_and_wrong_sources_are_one_line_and_leave_the_old_file(tmp_path) -> None:
    out = tmp_path / "out.md"
    out.write_text("old", encoding="utf-8")
    (tmp_path / "wrong.json").write_text('{"schema": "glqprof.compare/1"}', encoding="utf-8")
    a = capture(tmp_path, "a")
    for keys, words in (
        ({"capture": "nowhere"}, "no such file or folder"),
        ({"decode": "nowhere.json"}, "no such file"),
        ({"decode": "wrong.json"}, "has schema 'glqprof.compare/1'"),
        ({"bench": "wrong.json", "variant": "v"}, "has schema 'glqprof.compare/1'"),
        ({"bench": bench(tmp_path, "b.json"), "variant": "v9"}, "holds no 'v9' at 1 rows; it has v0.2.12, v3a"),
        ({}, "has no source"),
        ({"capture": a, "colour": "red"}, "line 10: [row]: unknown key 'colour'"),
    ):
        path = spec(tmp_path, table("row", label="one", capture=a), table("row", label="two", **keys))
        line = refused(path, "-o", out)
        assert words in line, line
        assert out.read_text(encoding="utf-8") == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b.json", "out.md", "spec.toml", "wrong.json"]


def test_a_source_is_never_overwritten(tmp_path) -> None:
    a = capture(tmp_path, "a")
    path = spec(tmp_path, table("row", label="one", capture=a))
    for output in (path, tmp_path / "a" / "capture.json", tmp_path / "a" / "trace.sqlite"):
        assert "is an input" in refused(path, "-o", output)
    assert "is a folder" in refused(path, "-o", tmp_path / "a")
    assert "a table is for the terminal" in refused(path, "-o", tmp_path / "x.txt", "--format", "table")


def test_names_of_others_cannot_break_the_page_and_absolute_paths_stay_private(tmp_path) -> None:
    evil = "a|b\n\x1b[31m<img src=x>"
    a = capture(tmp_path, "a", source=evil, driver="5|`x`")
    path = spec(tmp_path, table("row", label="one|two*", capture=str(tmp_path / a), notes="see `a|b`"))
    text = run(path)
    assert "\x1b" not in text
    assert "<img" not in text.replace("\\<img", "")
    assert str(tmp_path) not in text
    rows = [line for line in text.splitlines() if line.startswith("| one")]
    assert len(rows) == 2
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6, 8]


def test_a_copy_of_the_release_elsewhere_gives_the_same_bytes(tmp_path) -> None:
    """Nothing of the machine or the folder gets into a note."""
    for name in ("h200-cascade2-30b-glq-v0.2.12", "h200-cascade2-30b-glq-v0.2.13", "h200-cascade2-30b-bf16-grouped"):
        shutil.copytree(RECORDED / name, tmp_path / "captures" / name)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    for bench_file in (BENCH, FUSED):
        shutil.copy(bench_file, tmp_path / "benchmarks" / "results")
    (tmp_path / "docs" / "releases").mkdir(parents=True)
    copied = Path(shutil.copy(SPEC, tmp_path / "docs" / "releases"))
    assert run(copied).encode() == NOTE.read_bytes()


def test_the_page_names_every_option() -> None:
    page = (REPOSITORY / "docs" / "release-notes.md").read_text(encoding="utf-8").split("## Options\n")[1]
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", glqprof("release-notes", "--help").out)) - {"--help"}
    assert options == set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page))


def test_links_of_the_page_exist() -> None:
    text = (REPOSITORY / "docs" / "release-notes.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(((?!https?:)[^)#]+)\)", text)
    assert len(links) >= 4
    for link in links:
        assert (REPOSITORY / "docs" / link).exists(), link
