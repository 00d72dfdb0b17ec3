"""How the CUDA variants behave towards streams, graphs, bad ids, devices and the profiler."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch

from glqprof.bench.registry import Registry
from glqprof_kernels import geometry
from glqprof_kernels.glq import bf16, factory, ops, reference, variants

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

TINY = geometry.load("tiny-odd")


@pytest.fixture(scope="module")
def layer():
    return factory.layer(TINY, seed=1, device="cuda", stages=3)


@pytest.fixture(scope="module")
def registry() -> Registry:
    filled = Registry()
    variants.register(filled)
    return filled


def inputs(rows: int = 2):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, TINY.hidden, generator=generator).half().cuda()
    ids = torch.rand(rows, TINY.experts, generator=generator).topk(TINY.top_k).indices.cuda()
    return x, ids, torch.rand(rows, TINY.top_k, generator=generator).cuda()


@pytest.mark.parametrize("variant", list(ops.EXACT))
def test_capture_is_refused_with_a_reason(layer, variant) -> None:
    x, ids, weights = inputs()
    ops.moe(layer, x, ids, weights, variant=variant)
    torch.cuda.synchronize()
    handle = ops.cuda_layer(layer)
    out = torch.empty(x.shape, dtype=torch.float16, device="cuda")
    with pytest.raises(RuntimeError, match="cannot be captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        handle.run(ops.VARIANT_CODES[variant], x, ids, weights, False, out)
    torch.cuda.synchronize()


@pytest.mark.parametrize("variant", list(ops.EXACT))
def test_work_goes_to_the_current_stream(layer, variant) -> None:
    """The input is overwritten on a side stream behind a delay: only work on that stream sees the new values."""
    x, ids, weights = inputs()
    want = ops.moe(layer, x, ids, weights, variant=variant).clone()
    late = torch.zeros_like(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(x)
        got = ops.moe(layer, late, ids, weights, variant=variant, warn_overflow=False)
    stream.synchronize()
    assert torch.equal(got, want)


@pytest.mark.parametrize("variant", list(ops.EXACT))
@pytest.mark.parametrize("bad", [-1, TINY.experts])
def test_bad_ids(layer, variant, bad) -> None:
    x, ids, weights = inputs()
    ids = ids.clone()
    ids[1, 0] = bad
    with pytest.raises(ValueError, match=rf"ids\[1, 0\] is {bad}, but the experts are 0 .. 4"):
        ops.moe(layer, x, ids, weights, variant=variant)
    masked = ops.moe(layer, x, ids, weights, variant=variant, mask_invalid=True)
    weights = weights.clone()
    weights[1, 0] = 0
    ids[1, 0] = 0
    assert torch.equal(masked, ops.moe(layer, x, ids, weights, variant=variant))


def test_wrong_tensors(layer) -> None:
    x, ids, weights = inputs()
    handle = ops.cuda_layer(layer)
    out = torch.empty(x.shape, dtype=torch.float16, device="cuda")
    for arguments, message in [
        ((x.float(), ids, weights, False, out), "x must be fp16"),
        ((x[:, :-8], ids, weights, False, out), "x must be"),
        ((x, ids[:1], weights, False, out), "ids must be"),
        ((x, ids, weights.half(), False, out), "weights must be fp32"),
        ((x, ids.float(), weights, False, out), "ids must be integers"),
        ((x, ids, weights, False, out[:1]), "out has shape"),
        ((x.cpu(), ids, weights, False, out), "x is on cpu"),
    ]:
        with pytest.raises(ValueError, match=message):
            handle.run(0, *arguments)


def test_no_tokens(layer) -> None:
    x, ids, weights = inputs()
    assert ops.moe(layer, x[:0], ids[:0], weights[:0], variant="v3a").shape == (0, TINY.hidden)


def test_every_gpu_of_the_process(layer) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only")
    x, ids, weights = inputs()
    second = factory.layer(TINY, seed=1, device="cuda:1", stages=3)
    want = ops.moe(layer, x, ids, weights)
    got = ops.moe(second, x.to("cuda:1"), ids.to("cuda:1"), weights.to("cuda:1"))
    assert torch.equal(got.cpu(), want.cpu())


def test_same_seed_same_weights() -> None:
    first, second = (factory.layer(TINY, seed=9, device="cuda", stages=3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.up.planes, second.up.planes, strict=True))
    assert torch.equal(first.down.wscale, second.down.wscale)


@pytest.mark.parametrize("name", list(ops.EXACT))
def test_declared_launches_and_waits(registry, name) -> None:
    group, variant = registry.groups[variants.GROUP], registry.variants[variants.GROUP, name]
    workload = group.workload("tiny-odd", 2, 0, "cuda", {})
    batch = group.batch(workload, 2, 1)
    run, out = variant.build(workload), group.out(workload, batch)
    run(batch, out)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as prof:
        run(batch, out)
        torch.cuda.synchronize()
    declared = variant.kernels(workload, batch)
    seen: Counter[str] = Counter()
    for event in prof.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith(("Memcpy", "Memset")):
            seen[next((p for p in declared if re.search(p, event.name)), event.name)] += 1
    assert dict(seen) == dict(declared)
    waits = sum(event.name == "cudaStreamSynchronize" for event in prof.events())
    assert waits == variant.syncs(workload, batch) + variant.blocking_copies(workload, batch)


def test_bf16_captured_follows_new_ids(registry) -> None:
    """A replay with other ids must use other experts: nothing was read back at capture time."""
    group = registry.groups[variants.GROUP]
    workload = group.workload("tiny-odd", 1, 0, "cuda", {})
    first, other = group.batch(workload, 2, 1), group.batch(workload, 2, 2)
    for name in ("bf16", "bf16-loop"):
        run, out = registry.variants[variants.GROUP, name].build(workload), group.out(workload, first)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run(first, out)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(first, out)
        for target, source in zip(first.input_tensors(), other.input_tensors(), strict=True):
            target.copy_(source)
        graph.replay()
        torch.cuda.synchronize()
        want = group.reference(workload, other)
        assert ((out.double() - want).norm() / want.norm()).item() < variants.BF16_REL_ERR
        first = group.batch(workload, 2, 1)


def test_bf16_weights_are_the_same_experts(layer) -> None:
    dense = bf16.dequantise(layer)
    x = torch.randn(TINY.hidden, dtype=torch.float64, device="cuda")
    want = reference.linear(layer.up, 2, x)
    got = dense.up[2].double() @ x
    assert ((got - want).norm() / want.norm()).item() < 1e-2
