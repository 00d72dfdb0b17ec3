"""What is printed, drawn and written: against the JSON Schema, at 80 columns, and cell by cell."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from importlib.resources import files

import jsonschema
import pytest
from rich.console import Console

from bench.toys import Bench, FakeDevice, codes, honest, toy_group, variant
from glqprof.bench.availability import Machine, list_kernels, runs_on
from glqprof.bench.discovery import Problem, load_bundled
from glqprof.bench.registry import Registry, SameBits
from glqprof.errors import InputError
from glqprof.reports.bench_document import bench_csv_table, bench_document, number
from glqprof.reports.bench_figure import draw_bench, save_bench_figure
from glqprof.reports.csv_table import to_csv
from glqprof.reports.kernels_document import kernels_csv_table, kernels_document
from glqprof.reports.markdown import to_markdown
from glqprof.reports.terminal import draw


def schema(name):
    return json.loads((files("glqprof") / "data" / "schemas" / name).read_text(encoding="utf-8"))


def wrong_third(device, workload):
    def run(batch, out):
        def work():
            out.copy_((batch.x.float() * workload.weight).half())
            out[..., ::3] += 1

        device.launch(work)

    return run


@pytest.fixture(scope="module")
def good():
    return Bench(FakeDevice(l2_bytes=4096, copy_gb_s=10.0)).run(honest(40.0), contract=SameBits("base"))


@pytest.fixture(scope="module")
def bad():
    result = Bench().run(wrong_third, contract=SameBits("base"), capturable=False, capture_note="reads | ids")
    assert codes(result.variants[1]) >= {"wrong-bits", "wrong-values"}
    return result


def text_of(result, width=80):
    return drawn(bench_document(result), width)


def drawn(document, width=80):
    stream = io.StringIO()
    draw(document, Console(file=stream, width=width))
    return stream.getvalue()


def test_json_is_the_contract(good, bad):
    for result in (good, bad):
        data = json.loads(json.dumps(result.to_json(), allow_nan=False))
        jsonschema.validate(data, schema("bench-1.schema.json"), jsonschema.Draft202012Validator)
        assert data["schema"] == "glqprof.bench/1"
        promised = "group geometry device baseline variants rows noise_floor_pct clocks contract warnings"
        assert set(promised.split()) <= set(data)
    timing = json.loads(json.dumps(good.to_json(), allow_nan=False))["variants"][1]["timings"]["graph"]
    assert timing["ratio"] == pytest.approx(0.4, rel=0.02)  # candidate ÷ baseline, and not the other way round
    assert timing["ratio_ci"][0] <= timing["ratio"] <= timing["ratio_ci"][1]


def test_the_schema_refuses_what_breaks_the_contract(good):
    validator = jsonschema.Draft202012Validator(schema("bench-1.schema.json"))
    jsonschema.Draft202012Validator.check_schema(validator.schema)
    data = good.to_json()
    for broken in (
        {**data, "extra": 1},
        {**data, "schema": "glqprof.bench/2"},
        {k: v for k, v in data.items() if k != "rows"},
    ):
        assert not validator.is_valid(broken)


def test_numbers_that_json_lacks_become_null(bad):
    worst = replace(bad.variants[1], rel_err=float("inf"), max_abs_err=float("nan"))
    data = replace(bad, variants=(bad.variants[0], worst)).to_json()
    assert data["variants"][1]["rel_err"] is None
    assert data["variants"][1]["max_abs_err"] is None


def test_the_table_is_readable_at_80_columns(good, bad):
    for result in (good, bad):
        text = text_of(result)
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_the_table_says_what_was_found(good, bad):
    text = text_of(good)
    assert "faster" in text
    assert "0.400" in text
    assert "cold: " in text
    assert "noise floor (A against A): 0.00 %" in text
    assert "throttled" in text
    text = " ".join(text_of(bad).split())
    assert "invalid" in text  # a time that must not be believed is not called faster
    assert "wrong-bits: batch 'random 0': 44 of 128 elements differ from base" in text
    assert "cand no" in text


def test_markdown_has_the_same_tables_and_no_broken_cell(good, bad):
    text = to_markdown(bench_document(good))
    assert text.startswith("# toy at tiny: all checks passed")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) == 3 * 4  # eager, graph, checks: header, marks, two variants each
    assert "checks FAILED" in to_markdown(bench_document(bad))
    widths = {
        line.replace("\\|", "").count("|")
        for line in to_markdown(bench_document(bad)).splitlines()
        if line.startswith("|")
    }
    assert widths <= {6, 7, 8, 9}


def test_csv_has_one_line_per_variant_and_timing(good, bad):
    rows = list(csv.DictReader(io.StringIO(to_csv(bench_csv_table(good)))))
    assert [(row["variant"], row["timing"]) for row in rows] == [
        ("base", "eager"),
        ("base", "graph"),
        ("cand", "eager"),
        ("cand", "graph"),
    ]
    assert float(rows[3]["ratio"]) == pytest.approx(0.4, rel=0.02)
    assert rows[3]["verdict"] == "faster"
    rows = list(csv.DictReader(io.StringIO(to_csv(bench_csv_table(bad)))))
    assert [(row["variant"], row["timing"]) for row in rows][-1] == ("cand", "eager")
    assert "wrong-bits" in rows[-1]["reasons"].split()


def test_csv_keeps_a_variant_that_was_never_timed():
    def make(device, workload):
        raise RuntimeError("no")

    rows = list(csv.DictReader(io.StringIO(to_csv(bench_csv_table(Bench().run(make))))))
    assert rows[-1]["variant"] == "cand"
    assert rows[-1]["median_us"] == ""
    assert rows[-1]["reasons"] == "failed"


def test_the_figure_shows_every_timing_and_interval(good):
    figure = draw_bench(good)
    times, ratios = figure.axes
    assert [label.get_text() for label in times.get_yticklabels()] == ["base", "cand"]
    points = [container.lines[0].get_xdata()[0] for container in times.containers]
    assert points == pytest.approx([100.0, 100.0, 40.0, 40.0], rel=0.02)  # eager and graph of each
    points = [container.lines[0].get_xdata()[0] for container in ratios.containers]
    assert points == pytest.approx([1.0, 1.0, 0.4, 0.4], rel=0.02)


def test_the_figure_marks_what_is_invalid(bad):
    times, _ = draw_bench(bad).axes
    assert [label.get_text() for label in times.get_yticklabels()] == ["base", "cand (invalid)"]
    assert times.containers[-1].lines[0].get_markerfacecolor() == "white"


def test_the_figure_is_written_whole_or_not_at_all(good, tmp_path):
    save_bench_figure(good, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
    with pytest.raises(InputError, match="is no picture format"):
        save_bench_figure(good, tmp_path / "x.txt")
    with pytest.raises(InputError, match="folder does not exist"):
        save_bench_figure(good, tmp_path / "none" / "x.png")


def test_numbers_keep_three_digits():
    assert [number(v) for v in (1234.5, 99.96, 12.34, 1.234, 0.01234)] == ["1234", "100", "12.3", "1.23", "0.0123"]


# The list of kernels.

NO_TORCH = Machine(False, None, "", frozenset())
NO_GPU = Machine(True, None, "", frozenset())
H200 = Machine(True, (9, 0), "NVIDIA H200", frozenset({"nvcc"}))


def test_why_a_variant_cannot_run_here():
    device = FakeDevice()
    both = variant(device, "v", honest(), devices=("cuda", "cpu"), needs=("nvcc",), min_capability=(9, 0))
    assert runs_on(both, "cuda", H200).can
    assert runs_on(both, "cuda", NO_GPU).why == "no CUDA GPU here"
    assert runs_on(both, "cpu", NO_GPU).can
    assert runs_on(both, "cpu", NO_TORCH).why == "needs glqprof[torch]"
    assert runs_on(both, "cuda", replace(H200, programs=frozenset())).why == "nvcc not found on the PATH"
    old = replace(H200, capability=(8, 0), gpu_name="A100")
    assert runs_on(both, "cuda", old).why == "needs compute capability 9.0, A100 has 8.0"
    assert runs_on(replace(both, devices=("cuda",)), "cpu", H200).why == "runs on cuda only"
    library = replace(both, unavailable=lambda device: "no such library" if device == "cuda" else "")
    assert runs_on(library, "cuda", H200).why == "no such library"
    assert runs_on(library, "cpu", H200).can


def test_the_list_in_every_format():
    registry = Registry()
    registry.add_group(toy_group())
    registry.add_variant(variant(FakeDevice(), "base", honest()))
    listing = list_kernels(registry, [Problem("x.variants", "torch is not installed")], NO_GPU)
    data = json.loads(json.dumps(listing.to_json()))
    jsonschema.validate(data, schema("kernels-1.schema.json"), jsonschema.Draft202012Validator)
    assert data["groups"][0]["variants"][0]["runs"][1] == {"device": "cpu", "can": True, "why": ""}
    assert "| base | within 0.001 of float64 |" in to_markdown(kernels_document(listing))
    assert "torch is not installed" in to_markdown(kernels_document(listing))
    rows = list(csv.DictReader(io.StringIO(to_csv(kernels_csv_table(listing)))))
    assert (rows[0]["group"], rows[0]["variant"], rows[0]["cpu"]) == ("toy", "base", "yes")
    assert "x.variants: torch is not installed" in drawn(kernels_document(listing))


def test_the_bundled_list_fits_80_columns():
    registry, problems = load_bundled()
    text = drawn(kernels_document(list_kernels(registry, problems, NO_GPU)))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "v3b-fp32act" in text
