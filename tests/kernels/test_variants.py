"""What the variants declare to the bench, held against their CPU runs."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from glqprof.bench.registry import Registry, SameBits
from glqprof_kernels import geometry
from glqprof_kernels.glq import ops, variants


@pytest.fixture(scope="module")
def registry() -> Registry:
    filled = Registry()
    variants.register(filled)
    return filled


@pytest.fixture(scope="module")
def workload(registry):
    return registry.groups["glq-moe"].workload("tiny-odd", None, 0, "cpu", {})


def outputs(registry, workload, batch, name):
    out = registry.groups["glq-moe"].out(workload, batch)
    out.view(torch.uint8).fill_(0xA5)
    registry.variants["glq-moe", name].build(workload)(batch, out)
    return out


def test_names_and_contracts(registry) -> None:
    names = [v.name for v in registry.of_group("glq-moe")]
    assert names == ["v0.2.12", "v3a", "v3b", "v3b-fp32act", "fused", "fused-fast", "bf16", "bf16-loop"]
    for name in ("v3a", "v3b", "v3b-fp32act", "fused"):
        assert registry.variants["glq-moe", name].contract == SameBits("v0.2.12")
    assert not any(registry.variants["glq-moe", name].capturable for name in ops.EXACT)
    assert all(registry.variants["glq-moe", name].capturable for name in ops.FUSED)


@pytest.mark.parametrize("rows", [1, 2])
def test_every_batch(registry, workload, rows) -> None:
    """Same bits where claimed, launches and waits as declared, everything written, random batches near float64."""
    group = registry.groups["glq-moe"]
    batches = [("random", group.batch(workload, rows, 9)), *group.adversarial(workload, rows)]
    for label, batch in batches:
        base = outputs(registry, workload, batch, "v0.2.12")
        for name in (*ops.EXACT, *ops.FUSED):
            variant = registry.variants["glq-moe", name]
            variant.launch_log.clear()
            out = outputs(registry, workload, batch, name)
            if name not in ("v3b-fp32act", "fused-fast"):
                assert torch.equal(out.view(torch.int16), base.view(torch.int16)), (label, name)
            declared = variant.kernels(workload, batch)
            seen = Counter(next(p for p in declared if re.search(p, kernel)) for kernel in variant.launch_log.kernels)
            assert dict(seen) == {p: n for p, n in declared.items() if n}, (label, name)
            assert variant.launch_log.syncs == variant.syncs(workload, batch), (label, name)
            assert variant.launch_log.blocking_copies == variant.blocking_copies(workload, batch), (label, name)
        if label in ("random", "one row", "non-contiguous views", "repeated expert ids", "negative weights"):
            want = group.reference(workload, batch)
            for variant in registry.of_group("glq-moe"):
                gap = outputs(registry, workload, batch, variant.name).double() - want
                relative = (gap.flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1)).max().item()
                bound = variants.BF16_REL_ERR if variant.name.startswith("bf16") else variants.EXACT_REL_ERR
                bound = variants.FAST_REL_ERR if variant.name == "fused-fast" else bound
                assert relative < bound, (label, variant.name)


def test_adversarial_batches_are_what_they_say(registry, workload) -> None:
    batches = dict(registry.groups["glq-moe"].adversarial(workload, 2))
    assert batches["one row"].rows == 1
    strided = batches["non-contiguous views"]
    assert not any(t.is_contiguous() for t in strided.input_tensors())
    assert all(not x.is_contiguous() for x, _, _ in strided.per_layer)
    denormal = batches["denormals"].x.float().abs()
    assert 0 < denormal.min() <= denormal.max() < 6.1e-5
    before = workload.overflow_count()
    outputs(registry, workload, batches["fp16 overflow after relu²"], "v3b")
    assert workload.overflow_count() > before
    ids = batches["repeated expert ids"].host_ids
    assert (ids == ids[..., :1]).all()
    assert batches["weight 0"].active_slots(0) == 2


def test_the_counts_of_the_release_notes() -> None:
    """23 layers of cascade2-30b, batch 1: launches, .item() reads and copies, as upstream was measured."""
    filled = Registry()
    variants.register(filled)
    full = geometry.load("cascade2-30b")

    class Matrix:
        def __init__(self, stages: int) -> None:
            self.stages = stages

    class Layer:
        def __init__(self, index: int) -> None:
            from glqprof_kernels.glq.factory import stages_of_layer

            self.up = self.down = Matrix(stages_of_layer(index))

    class Workload:
        layers, shape, device = full.moe_layers, full, "cpu"
        weights = [Layer(index) for index in range(full.moe_layers)]  # noqa: RUF012

    class Batch:
        per_layer = ()

        def active_slots(self, layer: int) -> int:
            return full.top_k

    def totals(name: str) -> tuple[int, int, int]:
        v = filled.variants["glq-moe", name]
        launches = sum(v.kernels(Workload, Batch()).values())
        return launches, v.syncs(Workload, Batch()), v.blocking_copies(Workload, Batch())

    assert totals("v0.2.12") == (23 * 6 * 12 + 23 * 3, 12 * 6 * 6 + 11 * 6 * 4, 46)
    assert totals("v3a") == (1725, 0, 12 * 8 + 11 * 6)
    assert totals("v3b") == totals("v3b-fp32act") == (1311, 0, 162)


def test_bytes_of_a_token(registry) -> None:
    """KERNELS.md: 860 MB of indices a token; counted on one layer of each kind, without making the weights."""
    full = geometry.load("cascade2-30b")
    per_stage = full.top_k * 2 * full.hidden * full.expert_inter // 8 * 2
    assert per_stage * (11 * 2 + 12 * 3) == pytest.approx(860e6, rel=0.02)


def test_unknown_options_and_geometries(registry) -> None:
    group = registry.groups["glq-moe"]
    with pytest.raises(ValueError, match="no option colour"):
        group.workload("tiny-odd", 1, 0, "cpu", {"colour": 1})
    with pytest.raises(ValueError, match="no geometry 'tiny'"):
        group.workload("tiny", 1, 0, "cpu", {})
    assert group.workload("tiny-odd", 1, 0, "cpu", {"stages": "4", "split_blocks": "16"}).weights[0].up.stages == 4


def test_fresh_batches_and_distinct_layers(registry, workload) -> None:
    group = registry.groups["glq-moe"]
    first, again, other = (group.batch(workload, 2, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.input_tensors(), again.input_tensors(), strict=True))
    assert not torch.equal(first.x, other.x)
    assert not torch.equal(first.x[0], first.x[1])
    assert not torch.equal(workload.weights[0].up.planes[0], workload.weights[1].up.planes[0])
    assert {layer.up.stages for layer in workload.weights} == {2, 3}
