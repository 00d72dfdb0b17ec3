"""What the variants of decode-step declare to the bench, and the command on the CPU."""

from __future__ import annotations

import json
import re

import pytest
import torch
from typer.testing import CliRunner

from glqprof.bench.registry import Registry, SameBits
from glqprof.cli.app import app
from glqprof_kernels.step import variants
from glqprof_kernels.step.workload import make_batch, make_workload


@pytest.fixture(scope="module")
def registry() -> Registry:
    filled = Registry()
    variants.register(filled)
    return filled


@pytest.fixture(scope="module")
def workload():
    return make_workload("tiny", None, 0, "cpu")


def test_names_and_contracts(registry) -> None:
    found = {variant.name: variant for variant in registry.of_group("decode-step")}
    assert list(found) == ["torch", "cuda", "cuda-serial"]
    assert found["cuda-serial"].contract == SameBits("cuda")
    assert found["cuda"].devices == ("cuda",)
    assert all(variant.capturable for variant in found.values())


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_torch_is_near_float64_and_writes_everything(registry, workload, rows) -> None:
    group = registry.groups["decode-step"]
    run = registry.variants["decode-step", "torch"].build(workload)
    for label, batch in [("random", make_batch(workload, rows, 9)), *group.adversarial(workload, rows)]:
        before = [t.clone() for t in batch.input_tensors()]
        outs = []
        for poison in (0xA5, 0x5A):
            out = group.out(workload, batch)
            out.view(torch.uint8).fill_(poison)
            run(batch, out)
            outs.append(out)
        assert torch.equal(outs[0].view(torch.int16), outs[1].view(torch.int16)), label
        assert all(
            torch.equal(a.view(torch.uint8), b.view(torch.uint8))
            for a, b in zip(before, batch.input_tensors(), strict=True)
        )
        if label in ("random", "one row", "8 rows", "the same token everywhere", "denormals"):
            want = group.reference(workload, batch)
            gap = outs[0].double() - want
            assert (gap.flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)).max() < variants.REL_ERR, label
        if label in ("NaN", "+inf", "a token outside the vocabulary"):
            assert outs[0][:, 0].isnan().all()
            assert outs[0][:, 1:].isfinite().all()


def test_counts_follow_the_pattern_of_layers(registry) -> None:
    workload = make_workload("tiny", 4, 0, "cpu")  # MEM*
    batch = make_batch(workload, 2, 0)
    variant = registry.variants["decode-step", "cuda"]
    assert variant.kernels(workload, batch) == {
        "step_embed_kernel": 4,
        "step_add_rms_norm_kernel": 4,
        "step_linear_kernel": 8,
        "step_route_kernel": 1,
        "step_attend_kernel": 1,
    }
    names = "void step::step_linear_kernel<step::Shape<8, 11> >(step::LinearCall)"
    assert [p for p in variant.kernels(workload, batch) if re.search(p, names)] == ["step_linear_kernel"]
    # Two Mamba-2 layers of 64 x (64 + 128 + 4) and 64 x 64, the MoE layer's fp32 router and two of 48 x 64, the
    # attention layer's q, k, v and o of 64, 32, 32 and 64 x 64, four norms; the cache's 100 positions of one head of 32
    # for k and v and two rows; embedding, addend, output and token of four layers and two rows.
    mamba = 2 * 2 * 64 * (64 + 128 + 4 + 64)
    moe = 4 * 8 * 64 + 2 * 2 * 48 * 64
    attention = 2 * 64 * (64 + 32 + 32 + 64)
    cache = 2 * 2 * 2 * 100 * 32
    assert variant.bytes_moved(workload, batch) == mamba + moe + attention + 4 * 2 * 64 + cache + 8 * (3 * 128 + 8)


def test_options_and_rows_are_checked(workload) -> None:
    with pytest.raises(ValueError, match="has no option depth; it has position"):
        make_workload("tiny", None, 0, "cpu", {"depth": 1})
    with pytest.raises(ValueError, match="position is 'x'; it must be a whole number"):
        make_workload("tiny", None, 0, "cpu", {"position": "x"})
    with pytest.raises(ValueError, match="9 rows; decode-step takes 1 to 8"):
        make_batch(workload, 9, 0)


def test_the_command_runs_on_the_cpu() -> None:
    arguments = ["bench", "decode-step", "--device", "cpu", "--rows", "1,2", "--repeats", "1", "--format", "json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["geometry"] == "tiny"
    assert [(v["name"], v["rows"], v["ok"]) for v in document["variants"]] == [("torch", 1, True), ("torch", 2, True)]
    assert all(v["rel_err"] < variants.REL_ERR for v in document["variants"])
