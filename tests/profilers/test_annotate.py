"""Annotations: names, times, hooks, and what they cost when nobody listens."""

from __future__ import annotations

import json
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from glqprof import annotate
from glqprof.profilers.run_report import read_reports

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    def __init__(self):
        self.events = []

    def push(self, name):
        self.events.append(name)

    def pop(self):
        self.events.append("pop")

    def start(self):
        self.events.append("start")

    def stop(self):
        self.events.append("stop")


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(annotate, "_state", annotate._State())
    recorder = Recorder()
    annotate.attach(recorder)
    return recorder


def test_ranges_and_their_names(recorder):
    with annotate.profiled(), annotate.profiled(), annotate.decode_token(3):
        with annotate.layer("00_moe"):
            pass
        with pytest.raises(ValueError), annotate.layer("layer_01_attn"):  # noqa: PT011
            raise ValueError
    assert recorder.events == [
        "start", "decode_token_3", "layer_00_moe", "pop", "layer_01_attn", "pop", "pop", "stop",
    ]  # fmt: skip


def test_a_range_costs_less_than_a_microsecond_when_off(monkeypatch):
    monkeypatch.setattr(annotate, "_state", annotate._State())

    def steps():
        with annotate.decode_token(7), annotate.layer("00_E"):
            pass

    best = min(timeit.repeat(steps, number=20_000, repeat=7)) / 20_000 / 2
    assert best < 1e-6, f"{best * 1e9:.0f} ns a range"


def test_importing_it_loads_no_library():
    code = (
        "import sys; from glqprof import annotate\n"
        "with annotate.profiled(), annotate.decode_token(0), annotate.layer('x'): pass\n"
        "print([m for m in ('numpy', 'pandas', 'torch', 'msgspec', 'typer') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"  # -S: no library could be found either


@pytest.mark.parametrize("module", ["cupti_run", "torch_run", "nsys_schema", "cupti_records"])
def test_what_runs_inside_the_program_needs_the_standard_library_only(module):
    code = f"import glqprof.profilers.{module}"
    assert subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=False).returncode == 0


def test_torch_ranges_are_used_when_there_is_no_nvtx(monkeypatch):
    calls = []

    torch_nvtx = pytest.importorskip("torch.cuda.nvtx")
    monkeypatch.setattr(torch_nvtx, "range_push", calls.append)
    monkeypatch.setattr(torch_nvtx, "range_pop", lambda: calls.append("pop"))
    monkeypatch.setattr(annotate, "_is_installed", lambda name: False)
    monkeypatch.setattr(annotate, "_state", annotate._State())
    with annotate.decode_token(1):
        pass
    assert calls[2:] == ["decode_token_1", "pop"]


def test_steps_times_and_facts_reach_the_report(tmp_path):
    code = (
        "from glqprof import annotate\n"
        "with annotate.decode_token(0): pass\n"
        "with annotate.profiled():\n"
        "    for i in range(3):\n"
        "        with annotate.decode_token(i): pass\n"
        "annotate.report(token_sha='abc', batch=4, tokens=9)\n"
        "import os\n"
        "if os.fork() == 0:\n"
        "    raise SystemExit\n"  # a child writes no second report of its parent's steps
        "os.wait()\n"
    )
    env = {annotate.REPORT_DIR_VARIABLE: str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert len(list(tmp_path.iterdir())) == 1
    report = read_reports(tmp_path)
    assert (len(report.steps_ns), report.marked) == (3, True)
    assert (report.tokens, report.batch, report.token_sha) == (9, 4, "abc")
    span = report.steps_ns[-1][1] - report.steps_ns[0][0]
    assert report.ms_per_token == pytest.approx(span / 1e6 / 9)


def test_the_process_with_the_most_steps_counts_and_damage_is_skipped(tmp_path):
    def file(name, steps):
        content = {"marked": False, "steps": steps, "facts": {}, "versions": {"torch": name}}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))

    file("1", [[0, 10]])
    file("2", [[0, 10], [10, 30]])
    (tmp_path / "3.json").write_text('{"marked": tr')
    assert read_reports(tmp_path).versions == {"torch": "2"}


def test_a_full_disk_does_not_end_the_users_program(monkeypatch, tmp_path):
    state = annotate._State()
    state.report_dir = str(tmp_path / "gone")
    monkeypatch.setattr(annotate, "_state", state)
    annotate.report(batch=1)


def test_hooks_name_a_module_tree(recorder):
    torch = pytest.importorskip("torch")

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

        def forward(self, x):
            return self.experts[0](x)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(2)
            self.layers = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(self.norm(x))
            return x

    model = Model()
    ranges = annotate.module(model)
    model(torch.ones(1, 2))
    assert recorder.events == [
        "norm", "pop", "layer_00_Block", "layers.0.experts.0", "pop", "pop",
        "norm", "pop", "layer_01_Block", "layers.1.experts.0", "pop", "pop",
    ]  # fmt: skip
    recorder.events.clear()
    with pytest.raises(RuntimeError):
        model.layers[0](torch.ones(1, 3))
    assert recorder.events == ["layer_00_Block", "layers.0.experts.0", "pop", "pop"]
    recorder.events.clear()
    ranges.remove()
    model(torch.ones(1, 2))
    assert recorder.events == []


def test_equal_tokens_have_equal_hashes():
    assert annotate.sha_of([1, 23]) == annotate.sha_of(iter((1, 23))) != annotate.sha_of([12, 3])
