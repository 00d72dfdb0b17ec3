"""The cheats that only a GPU can play: streams, captures, the real L2, real launches."""

from __future__ import annotations

import pytest
import torch

from glqprof.bench.cuda import CudaDevice
from glqprof.bench.registry import SameBits
from gpu.gpu_toys import candidate, codes, compute, group, honest, make_workload, run


@pytest.fixture(scope="module")
def fair():
    return run(honest, contract=SameBits("base"))


def test_an_honest_variant_passes_whole(fair):
    for found in fair.variants:
        assert found.ok, found.reasons
        assert (found.launches, found.syncs) == (2, 0)
        assert found.timings.graph is not None
        assert found.gb_s < fair.device.copy_gb_s
        assert found.floor_ratio > 1
    assert fair.variants[1].identical


def test_the_machine_is_described(fair):
    assert fair.cache.state == "cold"
    assert fair.cache.bytes >= 3 * fair.device.l2_bytes > 0
    assert fair.device.driver
    assert fair.device.copy_gb_s > 100
    assert fair.clocks.sm_mhz is not None, fair.clocks.source
    assert fair.clocks.sm_mhz[1] > 300


def test_graph_replay_hides_the_launch_cost_that_eager_shows(fair):
    timings = fair.variants[0].timings
    assert timings.graph.median_us < timings.eager.median_us * 1.05


def test_one_weight_set_for_all_is_caught_as_warm_l2():
    made = {}

    def same(geometry, layers, seed, device, options):
        return made.setdefault(device, make_workload(geometry, layers, 0, device, options))

    result = run(honest, group(workload=same))
    assert "warm-l2" in codes(result.variants[1])


def test_side_stream_work_is_named_and_its_time_is_counted(fair):
    def build(workload):
        side = torch.cuda.Stream()

        def call(batch, out):
            with torch.cuda.stream(side):
                compute(workload, batch, out)

        return call

    result = candidate(build, capturable=False, capture_note="side stream")
    assert "side-stream" in codes(result)
    assert result.timings.eager.median_us > 0.7 * fair.variants[0].timings.graph.median_us


def test_a_forked_and_joined_stream_is_allowed():
    def build(workload):
        side = torch.cuda.Stream()

        def call(batch, out):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                compute(workload, batch, out)
            main.wait_stream(side)

        return call

    result = candidate(build)
    assert result.ok, result.reasons


def test_a_default_stream_launch_during_capture_is_caught():
    def build(workload):
        def call(batch, out):
            with torch.cuda.stream(torch.cuda.default_stream()):
                compute(workload, batch, out)

        return call

    result = candidate(build)
    assert "outside-capture" in codes(result), (result.reasons, result.timings.graph_note)


def test_a_stale_replay_is_caught():
    """The sum runs on the default stream while the graph records only a copy of its result."""

    def build(workload):
        def call(batch, out):
            scratch = call.scratch.setdefault(out.data_ptr(), torch.empty_like(out))
            with torch.cuda.stream(torch.cuda.default_stream()):
                compute(workload, batch, scratch)
            torch.add(scratch, 0.0, out=out)

        call.scratch = {}
        return call

    result = candidate(build, kernels=lambda workload, batch: {"reduce_kernel": 1, "elementwise": 2})
    assert "stale-replay" in codes(result), result.reasons
    assert "outside-capture" in codes(result)


def test_a_failed_capture_is_said_and_the_gpu_goes_on():
    def build(workload):
        def call(batch, out):
            compute(workload, batch, out)
            float(out[0, 0, 0])

        return call

    kernels = {"reduce_kernel": 1, "elementwise": 1}
    result = candidate(build, kernels=lambda workload, batch: kernels, blocking_copies=lambda workload, batch: 1)
    assert codes(result) == {"not-capturable"}, result.reasons
    assert result.syncs == 1
    assert candidate(honest).ok


def test_an_undeclared_kernel_is_a_fallback_and_an_undeclared_wait_is_counted():
    def build(workload):
        def call(batch, out):
            compute(workload, batch, out)
            torch.cumsum(batch.x[0, 0], 0)
            torch.cuda.current_stream().synchronize()

        return call

    result = candidate(build, capturable=False)
    assert {"fallback", "sync-count"} <= codes(result)


def test_an_output_cache_is_caught():
    def build(workload):
        memory = {}

        def call(batch, out):
            if batch.x.data_ptr() not in memory:
                compute(workload, batch, out)
                memory[batch.x.data_ptr()] = out.clone()
            out.copy_(memory[batch.x.data_ptr()])

        return call

    assert "output-cache" in codes(candidate(build, capturable=False))


def test_unwritten_elements_are_caught():
    def build(workload):
        def call(batch, out):
            torch.sum(workload.weight[0], dim=1, out=workload.total)
            torch.add(batch.x[0, :, :-1], workload.total[:-1], out=out[0, :, :-1])

        return call

    result = candidate(build, contract=SameBits("base"))
    assert "unwritten" in codes(result), result.reasons


def test_a_rate_above_the_copy_ceiling_is_invalid():
    result = candidate(honest, bytes_moved=lambda workload, batch: 100 * 4 * workload.weight.numel())
    assert "impossible-rate" in codes(result)


def test_the_profiler_counts_a_copy_and_a_wait_for_item():
    x = torch.ones(8, device="cuda")
    observed = CudaDevice().observe(lambda: x.add_(1).sum().item(), graph=False)
    assert len(observed.kernels) == 2
    assert observed.syncs == 1
    assert observed.side_stream == ()
