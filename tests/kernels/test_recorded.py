"""Outputs recorded on a GPU, by their hashes: the exact CPU implementation gives the same bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from glqprof_kernels.glq import fixtures, ops

DATA = Path(__file__).parent / "data"
INPUTS, HASHES = DATA / "glq_inputs.npz", DATA / "gpu_hashes.json"


@pytest.fixture(scope="module")
def cases() -> list[fixtures.Case]:
    return fixtures.load(INPUTS)


def run(case: fixtures.Case, variant: str) -> torch.Tensor:
    return ops.moe(case.layer, case.x, case.ids, case.weights, variant=variant, warn_overflow=False)


def test_cpu_bytes_are_the_gpus(cases) -> None:
    if not HASHES.exists():
        pytest.skip("no GPU has recorded tests/kernels/data/gpu_hashes.json yet (kernels/tools/record_hashes.py)")
    recorded = json.loads(HASHES.read_text())
    assert recorded["inputs_sha256"] == hashlib.sha256(INPUTS.read_bytes()).hexdigest(), "recorded for other inputs"
    assert set(recorded["hashes"]) == {case.name for case in cases}
    wrong = [
        f"{case.name}: {variant}"
        for case in cases
        for variant, sha in recorded["hashes"][case.name].items()
        if fixtures.digest(run(case, variant)) != sha
    ]
    assert not wrong, f"differ from {recorded['gpu']}: {wrong}"


def test_the_inputs_cover_what_they_should(cases) -> None:
    assert {case.layer.up.stages for case in cases} == {2, 3, 4}
    assert {case.layer.up.split_blocks for case in cases} == {16, 32, 64}
    assert {len(case.x) for case in cases} == {1, 2, 4}
    assert any(not torch.isfinite(case.x).all() for case in cases)
    assert {case.layer.activation for case in cases} == {"relu2", "swiglu"}


def test_emulated_device_code_agrees(cases, emulated) -> None:
    for case in cases:
        if case.layer.up.cols > 100 and not case.name.endswith("1 rows"):
            continue  # the larger layer once: fibers are slow
        got = emulated.moe(case.layer, case.x, case.ids, case.weights, "v3b", order=1)[0]
        assert fixtures.digest(got) == fixtures.digest(run(case, "v3b")), case.name


def test_save_and_load_keep_the_bytes(tmp_path, cases) -> None:
    case = cases[-1]
    path = tmp_path / "one.npz"
    name = case.name.split("/")[0]
    fixtures.save(path, {name: case.layer}, {case.name: (case.x, case.ids, case.weights)})
    (loaded,) = fixtures.load(path)
    assert fixtures.digest(run(loaded, "v3a")) == fixtures.digest(run(case, "v3a"))
