"""torch.profiler around the bundled toy decode, on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from profilers.stand_ins import glqprof, manifest_of

import glqprof as package

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_the_toy_decode_under_torch_profiler(tools):
    toy = [sys.executable, "-m", "glqprof.workloads.toy_decode", "--tokens", "4", "--width", "64"]
    ran = glqprof("capture", "torch", "-o", "c", "--", *toy)
    assert ran.status == 0, ran.err
    manifest = manifest_of(Path("c"))
    assert manifest["tool"] == "torch"
    assert manifest["tokens"] == 4
    assert manifest["workload"] == "toy-decode"
    assert manifest["torch"].startswith("2.")
    assert manifest["token_sha"]
    assert manifest["inflation"] > 0
    assert any("no GPU work" in warning for warning in manifest["warnings"])
    ranges = package.load("c").trace.ranges["name"].astype(str)
    assert [f"decode_token_{i}" for i in range(4)] == sorted(n for n in ranges if n.startswith("decode_token"))
    assert {"layer_00_E", "layer_03_E", "layer_04_head"} <= set(ranges)
    assert "torch_run" not in " ".join(ranges)


def test_a_script_sees_its_own_arguments_and_folder(tools):
    folder = tools / "pkg"
    folder.mkdir()
    (folder / "beside.py").write_text("VALUE = 3")
    (folder / "run me.py").write_text(
        "import sys, torch, beside\nassert __name__ == '__main__'\nprint('got', sys.argv, beside.VALUE)\n"
        "torch.ones(2) + 1\n"
    )
    ran = glqprof("capture", "torch", "--no-untraced", "-o", "c", "--", sys.executable, folder / "run me.py", "a b")
    assert ran.status == 0, ran.err
    assert f"got {[str(folder / 'run me.py'), 'a b']!r} 3" in ran.err
    assert "run me.py" in manifest_of(Path("c"))["command"]  # its name without its folder


def test_a_mark_that_is_never_reached(tools):
    (tools / "x.py").write_text("import torch")
    ran = glqprof("capture", "torch", "--no-untraced", "--range", "marked", "-o", "c", "--", sys.executable, "x.py")
    assert ran.status == 2
    assert "wrote no trace" in ran.err
