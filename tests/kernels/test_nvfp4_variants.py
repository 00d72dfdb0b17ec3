"""What the NVFP4 variants declare to the bench, held against their CPU runs, and the command as a user meets it."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
import torch
from typer.testing import CliRunner

from glqprof.bench.registry import Registry, SameBits
from glqprof.cli.app import app
from glqprof.errors import InputError
from glqprof_kernels import geometry
from glqprof_kernels.nvfp4 import variants
from glqprof_kernels.nvfp4.workload import make_batch, make_workload, supported

UNITS, PIPELINES = ("base", "waves", "half", "quarter"), ("regs", "ring", "deep")
KERNELS = [f"{unit}-{pipeline}" for unit in UNITS for pipeline in PIPELINES]


@pytest.fixture(scope="module")
def registry() -> Registry:
    filled = Registry()
    variants.register(filled)
    return filled


@pytest.fixture(scope="module", params=[{}, {"activation": "relu2"}, {"limit": 0}], ids=str)
def workload(request):
    return make_workload("tiny-k32", None, 0, "cpu", request.param)


def outputs(registry, workload, batch, name):
    out = registry.groups["nvfp4-moe"].out(workload, batch)
    out.view(torch.uint8).fill_(0xA5)
    registry.variants["nvfp4-moe", name].build(workload)(batch, out)
    return out


def test_names_and_contracts(registry) -> None:
    found = {variant.name: variant for variant in registry.of_group("nvfp4-moe")}
    assert list(found) == [*KERNELS, "bf16", "dequant", "vllm", "flashinfer"]
    for name in KERNELS[1:]:
        assert found[name].contract == SameBits("base-regs")
    assert all(found[name].capturable for name in KERNELS)
    assert not found["dequant"].capturable
    group = registry.groups["nvfp4-moe"]
    assert group.geometries == ("glm-5.3-flash", "cascade2-30b", "qwen3.6-35b-a3b", "tiny-k32")


@pytest.mark.parametrize("rows", [1, 3])
def test_every_batch(registry, workload, rows) -> None:
    """Same bits, launches as declared, everything written, random batches near float64."""
    group = registry.groups["nvfp4-moe"]
    batches = [("random", group.batch(workload, rows, 9)), *group.adversarial(workload, rows)]
    for label, batch in batches:
        base = outputs(registry, workload, batch, "base-regs")
        for name in ("base-regs", "half-deep"):
            variant = registry.variants["nvfp4-moe", name]
            variant.launch_log.clear()
            out = outputs(registry, workload, batch, name)
            assert torch.equal(out.view(torch.int16), base.view(torch.int16)), (label, name)
            declared = variant.kernels(workload, batch)
            seen = Counter(next(p for p in declared if re.search(p, kernel)) for kernel in variant.launch_log.kernels)
            assert dict(seen) == declared == dict.fromkeys(declared, 2), (label, name)
            assert variant.syncs(workload, batch) == variant.blocking_copies(workload, batch) == 0
        if label in ("random", "one row", "non-contiguous views", "repeated expert ids", "negative weights"):
            want = group.reference(workload, batch)
            for name in ("base-regs", "bf16", "dequant"):
                gap = outputs(registry, workload, batch, name).double() - want
                relative = (gap.flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)).max().item()
                assert relative < registry.variants["nvfp4-moe", name].contract.rel_err, (label, name)


def test_each_variant_expects_its_own_kernels_on_cuda() -> None:
    """Demangled names as the profiler gives them: every variant's expert kernels match its expressions alone."""
    for name in KERNELS:
        unit, pipeline = (part.capitalize() for part in name.split("-"))
        ran = [
            "nvfp4::nvfp4_plan_kernel(nvfp4::MoeCall)",
            f"void nvfp4::nvfp4_gate_up_kernel<nvfp4::{unit}, nvfp4::{pipeline}, nvfp4::Swiglu>(nvfp4::MoeCall, int)",
            f"void nvfp4::nvfp4_down_kernel<nvfp4::{unit}, nvfp4::{pipeline}>(nvfp4::MoeCall, int)",
            "nvfp4::nvfp4_combine_kernel(nvfp4::MoeCall)",
        ]
        for other in KERNELS:
            fits = [bool(re.search(p, kernel)) for p, kernel in zip(variants.cuda_kernels(other), ran, strict=True)]
            assert fits == [True, other == name, other == name, True]


def test_adversarial_batches_are_what_they_say(registry, workload) -> None:
    group = registry.groups["nvfp4-moe"]
    batches = dict(group.adversarial(workload, 2))
    assert batches["one row"].rows == 1
    assert not any(t.is_contiguous() for t in batches["non-contiguous views"].input_tensors())
    denormal = batches["denormals"].x.float().abs()
    assert 0 < denormal.max() < 2**-126
    assert batches["denormals"].x.dtype == torch.bfloat16
    for label in ("+inf", "-inf", "NaN"):
        assert (~torch.isfinite(batches[label].x)).sum() == workload.layers
    out = outputs(registry, workload, batches["NaN"], "base-regs")
    assert out[:, 0].isnan().all()
    assert not out[:, 1].isnan().any()
    assert outputs(registry, workload, batches["NaN router row"], "base-regs")[:, 0].isnan().all()
    assert not torch.isfinite(outputs(registry, workload, batches["overflow of the sums"], "base-regs")).all()
    assert (outputs(registry, workload, batches["all weights 0"], "base-regs").view(torch.int16) == 0).all()
    assert batches["exponents far apart"].x.float().abs().log2().std() > 30
    repeated = batches["repeated expert ids"].host_ids
    assert (repeated[..., 0] == repeated[..., 1]).all()


def test_inputs_are_fresh_and_ids_are_distinct_within_a_token() -> None:
    workload = make_workload("tiny-k32", 2, 0, "cpu")
    one, other = make_batch(workload, 4, 1), make_batch(workload, 4, 2)
    assert not any(torch.equal(a, b) for a, b in zip(one.input_tensors(), other.input_tensors(), strict=True))
    assert (one.host_ids[..., 0] != one.host_ids[..., 1]).all()
    assert not torch.equal(one.x[0], one.x[1])
    weights = [layer.gate_up.codes for layer in workload.weights]
    assert not torch.equal(*weights)


def test_skewed_routing_prefers_some_experts() -> None:
    shares = {}
    for routing in ("uniform", "skewed"):
        workload = make_workload("tiny-k32", 1, 0, "cpu", {"routing": routing})
        ids = make_batch(workload, 4000, 5).host_ids
        shares[routing] = torch.bincount(ids.flatten(), minlength=5) / ids.numel()
    assert ((shares["uniform"] - 0.2).abs() < 0.02).all()
    assert shares["skewed"].max() > 2 * shares["skewed"].min()


def test_bytes_moved(registry) -> None:
    """Two of five experts: 0.5625 B a weight and two scales each; 2 rows of 96 bf16 in and out, 4 slots of 12 B."""
    workload = make_workload("tiny-k32", 1, 0, "cpu")
    batch = make_batch(workload, 2, 1)
    batch.host_ids[:] = torch.tensor([[4, 1], [1, 4]])
    expert = (2 * 160 * 96 + 96 * 160) * 9 // 16 + 8
    want = 2 * expert + 2 * 2 * 2 * 96 + 4 * 12
    assert registry.variants["nvfp4-moe", "base-ring"].bytes_moved(workload, batch) == want
    dense = 2 * 2 * (2 * 160 * 96 + 96 * 160) + 2 * 2 * 2 * 96 + 4 * 12
    assert registry.variants["nvfp4-moe", "bf16"].bytes_moved(workload, batch) == dense


@pytest.mark.parametrize(
    ("name", "megabytes"), [("glm-5.3-flash", 113.2), ("qwen3.6-35b-a3b", 14.2), ("cascade2-30b", 33.7)]
)
def test_bytes_of_a_layer_at_one_row(name, megabytes) -> None:
    """KERNELS.md: 113 MB a layer on GLM; the others by the same count. The sizes fit the kernels."""
    shape = geometry.load(name)
    assert supported(shape)
    weights = (shape.up_rows + shape.expert_inter) * shape.hidden
    assert shape.top_k * weights * 0.5625 / 1e6 == pytest.approx(megabytes, abs=0.06)


def test_geometries_are_found_by_their_names() -> None:
    """A name with a dot must be quoted in TOML, or it is a table inside a table."""
    assert geometry.names() == ("cascade2-30b", "glm-5.3-flash", "qwen3.6-35b-a3b", "tiny-odd", "tiny-k32")
    assert [geometry.load(name).hidden for name in geometry.names()] == [2688, 4096, 2048, 88, 96]
    assert geometry.load("glm-5.3-flash").activation_limit == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": 1}, "no option colour; it has activation, limit, routing"),
        ({"routing": "odd"}, "routing is 'odd'"),
        ({"activation": "gelu"}, "activation is 'gelu'"),
        ({"limit": "x"}, "limit is 'x'"),
        ({"limit": -1}, "limit is -1"),
    ],
)
def test_bad_options(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_workload("tiny-k32", 1, 0, "cpu", options)


def test_sizes_that_the_kernels_do_not_take() -> None:
    with pytest.raises(ValueError, match="not a multiple of 32"):
        make_workload("tiny-odd", 1, 0, "cpu")


# The command.


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_the_bench_end_to_end() -> None:
    result = invoke("bench", "nvfp4-moe", "--device", "cpu", "--repeats", "1", "--layers", "1", "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["geometry"] == "tiny-k32"
    for variant in document["variants"]:
        assert variant["ok"], variant["reasons"]
        assert variant["rel_err"] < 1e-2
        if variant["name"] in KERNELS:
            assert variant["identical"]
            assert variant["launches"] == 4
            assert variant["syncs"] == 0
    assert {variant["name"] for variant in document["variants"]} == {*KERNELS, "bf16", "dequant"}


def test_rows_and_options_of_the_bench() -> None:
    result = invoke(
        *("bench", "nvfp4-moe", "--device", "cpu", "--repeats", "1", "--layers", "1", "--rows", "2,17"),
        *("--variants", "half-ring", "--option", "routing=skewed", "--option", "activation=relu2", "--format", "json"),
    )
    assert result.exit_code == 0, result.output
    assert [variant["rows"] for variant in json.loads(result.stdout)["variants"]] == [2, 2, 17, 17]


def test_what_cannot_run_says_why() -> None:
    groups = {group["name"]: group for group in json.loads(invoke("kernels", "--format", "json").stdout)["groups"]}
    found = {variant["name"]: variant for variant in groups["nvfp4-moe"]["variants"]}
    for name in ("vllm", "flashinfer"):
        cuda = next(run for run in found[name]["runs"] if run["device"] == "cuda")
        assert not cuda["can"]
        assert cuda["why"]
    result = invoke("bench", "nvfp4-moe", "--device", "cpu", "--variants", "vllm")
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == "vllm: runs on cuda only; --device cpu has no way to it"
    result = invoke("bench", "nvfp4-moe", "--device", "cpu", "--geometry", "tiny-odd")
    assert "tiny-odd: no such geometry of nvfp4-moe" in str(result.exception)
