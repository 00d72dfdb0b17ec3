"""`breakdown --format json` on real captures against figures that were counted independently of this code."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from support.cli import glqprof, glqprof_process
from support.paths import PUBLIC, RECORDED

GLQ12, GLQ13, BF16 = (RECORDED / f"h200-cascade2-30b-{name}" for name in ("glq-v0.2.12", "glq-v0.2.13", "bf16-grouped"))
NODE, GRAPH = RECORDED / "h200-toy-cuda-graph-node", RECORDED / "h200-toy-cuda-graph-graph"
TWO_GPUS = PUBLIC / "nsysai_h100_2gpu_1s__2026.2_s3.25.0.sqlite.gz"
TRAINING = PUBLIC / "nsysai_mfu_before__2026.2_s3.25.0.sqlite.gz"
DECODES = [GLQ12, GLQ13, BF16]
ALL = [*DECODES, NODE, GRAPH, *sorted(PUBLIC.glob("*.gz"))]


def named(path: object) -> str:
    return path.name.split("__")[0] if isinstance(path, Path) else str(path)


# Window ms, kernels, summed kernel ms, sync calls, cudaStreamSynchronize ms, launch-latency idle ms, as counted by hand
# with SQL in the README of the recordings. The tolerance is half of the last digit given there.
COUNTED = [
    (GLQ12, 925.2, 30_376, 116.13, 5_944, (52.3, 0.05), 64.3),
    (GLQ13, 950.9, 27_064, 113.26, 1_304, (3.84, 0.005), 43.5),
    (BF16, 819.3, 21_176, 56.96, 8, (0.52, 0.005), 43.7),
]


@pytest.mark.parametrize(
    ("path", "window_ms", "kernels", "sum_ms", "syncs", "stream_sync", "latency_ms"), COUNTED, ids=named
)
def test_counts_of_the_h200_decodes(
    breakdown_json, path, window_ms, kernels, sum_ms, syncs, stream_sync, latency_ms
) -> None:
    found = breakdown_json(path)
    (device,) = found["devices"]
    assert found["window"]["wall_ms"] == pytest.approx(window_ms, abs=0.05)
    assert (found["window"]["steps"], found["window"]["tokens"]) == (8, 8)
    assert device["kernels"]["count"] == kernels
    assert device["kernels"]["per_token"] == kernels / 8
    assert device["kernels"]["sum_ms"] == pytest.approx(sum_ms, abs=0.005)
    assert found["host"]["sync"]["calls"] == syncs
    by_name = {api["name"]: api for api in found["host"]["apis"]}
    ms, tolerance = stream_sync
    assert by_name["cudaStreamSynchronize"]["ms"] == pytest.approx(ms, abs=tolerance)
    latency = {row["row"]: row["ms"] for row in device["wall"]}["launch-latency"]
    assert latency == pytest.approx(latency_ms, abs=0.05)


@pytest.mark.parametrize(
    ("path", "calls", "ms", "matvec", "rht", "reduce"),
    [(GLQ12, 368, 5.78, 54.454, 14.885, 2.935), (GLQ13, 1_296, 17.49, 54.356, 14.884, 2.945)],
    ids=["v0.2.12", "v0.2.13"],
)
def test_blocking_copies_and_the_glq_buckets(breakdown_json, path, calls, ms, matvec, rht, reduce) -> None:
    found = breakdown_json(path)
    assert found["host"]["blocking_copies"]["calls"] == calls
    assert found["host"]["blocking_copies"]["ms"] == pytest.approx(ms, abs=0.005)
    sums = {b["bucket"]: b["sum_ms"] for b in found["devices"][0]["buckets"]}
    assert (sums["matvec"], sums["reduce"]) == pytest.approx((matvec, reduce), abs=0.0005)
    # The README's figure is the sum of three kernels, each rounded to 1 µs (4.713 + 6.010 + 4.161 in v0.2.13).
    assert sums["rht"] == pytest.approx(rht, abs=0.0015)


def test_fills_of_v0_2_12_are_kernels_in_bucket_memset(breakdown_json) -> None:
    fills = [k for k in breakdown_json(GLQ12)["devices"][0]["top"] if "FillFunctor" in k["name"]]
    assert {k["bucket"] for k in fills} == {"memset"}
    # v0.2.13 launches 2,208 of them fewer: what the release removed.
    after = [k for k in breakdown_json(GLQ13)["devices"][0]["top"] if "FillFunctor" in k["name"]]
    assert sum(k["launches"] for k in fills) - sum(k["launches"] for k in after) == 2_208


@pytest.mark.parametrize("path", DECODES, ids=named)
def test_less_than_two_percent_of_gpu_time_is_in_other(breakdown_json, path) -> None:
    found = breakdown_json(path)
    (device,) = found["devices"]
    other = sum(b["sum_ms"] for b in device["buckets"] if b["bucket"] == "other")
    total = sum(b["sum_ms"] for b in device["buckets"])
    assert other / total < 0.02
    assert found["unattributed_share"] == pytest.approx(other / total)


@pytest.mark.parametrize(
    ("path", "tok_s", "untraced_ms"), [(GLQ12, 11.02, 90.78), (GLQ13, 12.88, 77.65), (BF16, 12.40, 80.67)], ids=named
)
def test_untraced_run_and_inflation(breakdown_json, path, tok_s, untraced_ms) -> None:
    found = breakdown_json(path)
    assert found["untraced"] == {"tok_s": tok_s, "ms_per_token": untraced_ms}
    # By definition: traced mean ÷ untraced.
    assert found["inflation"] == pytest.approx(found["window"]["wall_ns"] / 1e6 / 8 / untraced_ms)
    assert found["answers"]["wall_time"]["answer"] == "yes"
    assert found["answers"]["layers"]["answer"] == "yes"


@pytest.mark.parametrize("path", ALL, ids=named)
def test_every_capture_closes_its_books(breakdown_json, path) -> None:
    found = breakdown_json(path)
    assert found["devices"]
    for device in found["devices"]:
        if found["answers"]["gpu_idle"]["answer"] == "no":
            assert device["wall"] == []
            assert device["gpu_busy_ms"] is device["gpu_idle_ms"] is None
            continue
        assert sum(row["ns"] for row in device["wall"]) == found["window"]["wall_ns"]
        names = [(row["row"], row["kind"]) for row in device["wall"]]
        assert len(names) == len(set(names))
        for kind, total in (("gpu", "gpu_busy_ms"), ("idle", "gpu_idle_ms")):
            assert sum(r["ns"] for r in device["wall"] if r["kind"] == kind) / 1e6 == pytest.approx(device[total])
        # The listed kernels, copies, memsets and graphs are all there is: --top was larger than any count.
        by_bucket = {b["bucket"]: b["launches"] for b in device["buckets"]}
        listed = dict.fromkeys(by_bucket, 0)
        for kernel in device["top"]:
            listed[kernel["bucket"]] += kernel["launches"]
            assert kernel["min_us"] <= kernel["mean_us"] <= kernel["max_us"]
        assert listed == by_bucket


@pytest.mark.parametrize("path", ALL, ids=named)
def test_breakdown_follows_its_schema(breakdown_json, schema_of, path) -> None:
    jsonschema.validate(breakdown_json(path), schema_of("breakdown-1"), cls=jsonschema.Draft202012Validator)


def test_two_gpus_are_kept_apart_and_answers_say_partly(breakdown_json) -> None:
    found = breakdown_json(TWO_GPUS)
    assert [d["device"] for d in found["devices"]] == [0, 1]
    assert [d["kernels"]["count"] for d in found["devices"]] == [1_721, 1_721]
    # Half of the kernels have no API row, since the window was cut.
    assert found["answers"]["host_blame"]["answer"] == "partly"
    assert found["answers"]["complete"]["answer"] == "partly"
    for device in found["devices"]:
        idle = {r["row"]: r["ns"] for r in device["wall"] if r["kind"] == "idle"}
        assert 0.375 < idle["host-unknown"] / sum(idle.values()) < 0.405  # 38 to 40 %


def test_device_option_equals_that_device_of_the_whole(breakdown_json) -> None:
    whole = breakdown_json(TWO_GPUS)
    second = glqprof("breakdown", TWO_GPUS, "--device", 1, "--window", "0:1", "--format", "json").json
    assert [d["device"] for d in second["devices"]] == [1]
    assert second["devices"][0]["kernels"] == whole["devices"][1]["kernels"]


def test_a_graph_traced_as_a_whole_is_a_row_of_its_own(breakdown_json) -> None:
    found = breakdown_json(GRAPH)
    assert found["answers"]["layers"]["answer"] == "no"
    assert found["answers"]["gpu_idle"]["answer"] == "partly"
    assert "--cuda-graph-trace=node" in found["answers"]["gpu_idle"]["why"]
    (device,) = found["devices"]
    graph = next(row for row in device["wall"] if row["row"] == "graph")
    # Five launches of about 15.5 µs each stand in the recording: 16352 + 15424 + 15328 + 15296 + 15296 ns.
    assert graph == pytest.approx(graph | {"kind": "gpu", "ns": 77_696})
    launches = {b["bucket"]: b["launches"] for b in device["buckets"]}
    assert launches["graph"] == 5
    # "20 kernels fewer" than the same program traced by node.
    node_kernels = breakdown_json(NODE)["devices"][0]["kernels"]["count"]
    assert node_kernels - device["kernels"]["count"] == 20


@pytest.fixture(scope="module")
def compared() -> dict:
    return glqprof("compare", GLQ12, GLQ13, "--format", "json").json


def test_compare_says_what_the_release_changed(compared) -> None:
    (candidate,) = compared["candidates"]
    totals = candidate["totals"]
    assert totals["syncs"] == {"base": 5_944, "cand": 1_304, "delta": -4_640}
    assert totals["launches"] == {"base": 30_376, "cand": 27_064, "delta": -3_312}
    assert totals["blocking_copies"] == {"base": 368, "cand": 1_296, "delta": 928}
    assert totals["kernel_sum_ms"]["delta"] == pytest.approx(113.26 - 116.13, abs=0.01)
    assert candidate["tok_s"] == {"base": 11.02, "cand": 12.88, "ratio": pytest.approx(12.88 / 11.02)}
    assert candidate["verdict"] == "faster"


def test_compare_deltas_sum_to_the_wall_delta(compared) -> None:
    (candidate,) = compared["candidates"]
    wall = candidate["wall_ms_per_token"]
    assert (wall["base"], wall["cand"]) == pytest.approx((925.2 / 8, 950.9 / 8), abs=0.01)
    assert wall["delta"] == pytest.approx(wall["cand"] - wall["base"])
    for key, total in (("base", "base"), ("cand", "cand"), ("delta", "delta")):
        assert sum(row[f"{key}_ms_per_token"] for row in candidate["rows"]) == pytest.approx(wall[total], abs=1e-9)


def test_compare_follows_its_schema(compared, schema_of) -> None:
    jsonschema.validate(compared, schema_of("compare-1"), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_compare_says_in_words_why_the_traced_time_is_no_evidence(form) -> None:
    said = " ".join(glqprof("compare", GLQ12, GLQ13, "--format", form).out.replace(">", "").split())
    for words in (
        "-4,640",
        "-3,312",
        "+928",
        "-2.87",
        "11.02 → 12.88 tok/s (+17%)",
        "part of the saving moved there",
        "traced wall time is longer",
        "not evidence",
    ):
        assert words in said, words


def test_compare_with_itself_changes_nothing() -> None:
    (decode,) = glqprof("compare", GLQ12, GLQ12, "--format", "json").json["candidates"]
    assert {row["delta_ms_per_token"] for row in decode["rows"]} == {0}
    assert decode["wall_ms_per_token"]["ratio"] == 1
    assert decode["verdict"] == "not distinguishable"
    (candidate,) = glqprof("compare", NODE, NODE, "--format", "json").json["candidates"]
    assert all(row["base_ms"] == row["cand_ms"] for row in candidate["rows"])
    assert candidate["wall_ms"]["delta"] == 0
    assert (candidate["verdict"], candidate["reason"]) == ("not distinguishable", "traced once")
    assert candidate["tok_s"] is None


@pytest.mark.parametrize("path", sorted(RECORDED.iterdir()), ids=lambda p: p.name)
def test_manifests_of_bundled_captures_follow_their_schema(schema_of, path) -> None:
    manifest = json.loads((path / "capture.json").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, schema_of("capture-1"), cls=jsonschema.Draft202012Validator)
    assert manifest["name"] == path.name
    assert all((path / file).is_file() for file in manifest["files"])


def test_json_is_one_object_and_nothing_else_as_a_program() -> None:
    ran = glqprof_process("breakdown", NODE, "--format", "json")
    assert (ran.status, ran.err) == (0, "")
    assert ran.json["schema"] == "glqprof.breakdown/1"
    assert ran.json["devices"][0]["kernels"]["count"] == 63


def test_demo_says_what_the_two_captures_show(tmp_path) -> None:
    ran = glqprof_process("demo", "-o", tmp_path / "out")
    assert ran.status == 0, ran.err
    said = " ".join(ran.out.split())
    for words in ("4,640 fewer syncs", "3,312 fewer launches", "928 more blocking copies", "11.02 → 12.88 tok/s",
                  "1,880 kernels", "12.06 → 357.98 tok/s"):  # fmt: skip
        assert words in said, words
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["account.png", "report.md", "timeline.png"]
    for picture in ("account.png", "timeline.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG\r\n")
    assert "4,640 fewer syncs" in (tmp_path / "out" / "report.md").read_text(encoding="utf-8")


def test_compare_without_tokens_has_no_number_per_token() -> None:
    """The toy captures have no decode_token ranges: per-token fields are null, the windows' own milliseconds stand."""
    (candidate,) = glqprof("compare", NODE, GRAPH, "--format", "json").json["candidates"]
    assert candidate["wall_ms_per_token"] is None
    assert all(row["base_ms_per_token"] is None for row in candidate["rows"])
    assert sum(row["base_ms"] for row in candidate["rows"]) == pytest.approx(candidate["wall_ms"]["base"])
    assert sum(row["cand_ms"] for row in candidate["rows"]) == pytest.approx(candidate["wall_ms"]["cand"])
