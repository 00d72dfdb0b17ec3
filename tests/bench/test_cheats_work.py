"""Planted cheats, ways 1 to 5 of MEASURING.md: each is caught by name, or made harmless and shown to be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bench.toys import (
    CALL_US,
    KERNEL,
    Bench,
    FakeDevice,
    codes,
    honest,
    scale,
    store,
    toy_batch,
    toy_group,
    toy_workload,
)
from glqprof.bench.registry import SameBits, Tolerance
from glqprof.bench.runner import run_bench


def test_an_honest_variant_is_not_accused():
    result = Bench(FakeDevice(l2_bytes=4096, copy_gb_s=10.0)).run(honest(), contract=SameBits("base"))
    assert [variant.reasons for variant in result.variants] == [(), ()]
    assert result.ok
    assert result.variants[1].identical
    assert result.variants[1].timings.eager.verdict == "not distinguishable"


# 1. Warm L2.


def cached_weights(key):
    """A kernel at 100 µs from memory, 30 µs when its weights are still in the L2."""

    def make(device, workload):
        def run(batch, out):
            def cost():
                return 30.0 if device.touch(key(workload), 2048) else CALL_US

            device.launch(lambda: store(workload, batch, out), cost)

        return run

    return make


def test_rotation_makes_warm_l2_impossible():
    device = FakeDevice(l2_bytes=4096)
    result = Bench(device).run(cached_weights(lambda workload: workload.seed), cached_weights(lambda w: w.seed))
    assert result.ok, result.variants
    assert result.cache.state == "cold"
    assert result.cache.bytes >= 3 * 4096
    assert result.variants[1].timings.graph.median_us == pytest.approx(CALL_US, rel=0.02)


def test_a_group_that_hands_out_one_weight_set_is_caught_as_warm_l2():
    device = FakeDevice(l2_bytes=4096)
    group = toy_group(workload=lambda g, layers, seed, dev, options: toy_workload(g, layers, 0, dev, options))
    result = Bench(device, group).run(cached_weights(lambda workload: workload.seed))
    assert "warm-l2" in codes(result.variants[1])
    assert "warm-l2" not in codes(result.variants[0])  # the baseline's kernel does not profit from the cache


def test_bytes_overstated_to_skip_the_rotation_are_caught_as_warm_l2():
    """With 12 kB declared one weight set is enough; in truth 2 kB are read again and again."""
    make = cached_weights(lambda workload: workload.seed)
    bench = Bench(FakeDevice(l2_bytes=4096))
    plan = bench.plan(make, bytes_moved=lambda workload, batch: 12 * 1024)
    base = replace(plan.baseline, bytes_moved=lambda workload, batch: 12 * 1024)
    result = run_bench(replace(plan, baseline=base, variants=(base, plan.variants[1])), bench.device)
    assert result.cache.sets == 1
    assert "warm-l2" in codes(result.variants[1])


def test_the_variant_that_moves_least_decides_how_many_sets_rotate():
    bench = Bench(FakeDevice(l2_bytes=4096))
    result = bench.run(honest(), bytes_moved=lambda workload, batch: 512)
    assert (result.cache.sets, result.cache.bytes) == (24, 3 * 4096)


def test_warm_is_labelled_and_not_judged_cold():
    device = FakeDevice(l2_bytes=4096)
    result = Bench(device, warm=True).run(cached_weights(lambda workload: workload.seed))
    assert result.cache.state == "warm"
    assert "warm" in {warning.code for warning in result.warnings}
    assert result.variants[1].timings.graph.median_us == pytest.approx(30.0, rel=0.5)
    assert codes(result.variants[1]) == set()


# 2. Same inputs every call.


def output_cache(key):
    """Computes once and returns what it remembers, a hundred times faster."""

    def make(device, workload):
        memory = {}

        def run(batch, out):
            if key(batch) in memory:
                device.launch(lambda: out.copy_(memory[key(batch)]), 1.0)
                return
            device.launch(lambda: store(workload, batch, out))
            memory[key(batch)] = scale(workload, batch)

        return run

    return make


def test_an_output_cache_by_address_is_caught():
    result = Bench().candidate(output_cache(lambda batch: batch.x.data_ptr()))
    assert "output-cache" in codes(result)


def test_an_output_cache_by_content_never_hits():
    result = Bench().candidate(output_cache(lambda batch: batch.x.numpy().tobytes()))
    assert result.timings.eager.median_us == pytest.approx(CALL_US, rel=0.02)
    assert result.timings.eager.verdict == "not distinguishable"


def test_a_group_without_fresh_inputs_is_caught():
    group = toy_group(batch=lambda workload, rows, seed: toy_batch(workload, rows, seed % 512))
    result = Bench(group=group).run(honest())
    assert "inputs-repeated" in codes(result.variants[1])


def test_a_call_that_changes_its_inputs_is_caught():
    def make(device, workload):
        def run(batch, out):
            device.launch(lambda: (store(workload, batch, out), batch.x.add_(1)))

        return run

    assert "input-modified" in codes(Bench().candidate(make))


# 3. Unwritten outputs.


@pytest.mark.parametrize("contract", [SameBits("base"), None], ids=["same bits", "tolerance"])
def test_one_unwritten_element_is_caught(contract):
    def make(device, workload):
        def run(batch, out):
            def work():
                keep = out[0, 0, 7].clone()
                store(workload, batch, out)
                out[0, 0, 7] = keep

            device.launch(work)

        return run

    declared = {} if contract is None else {"contract": contract}
    result = Bench().candidate(make, **declared)
    assert "unwritten" in codes(result)
    assert "1 of 128 elements" in next(str(reason) for reason in result.reasons if reason.code == "unwritten")


@pytest.mark.parametrize("contract", [SameBits("base"), Tolerance(1e-3)], ids=str)
def test_an_element_left_unwritten_only_in_timed_calls_is_caught(contract):
    """The identity pass sees honest calls; the outputs of the timed ones give it away."""

    def make(device, workload):
        calls = 0

        def run(batch, out):
            def work():
                nonlocal calls
                calls += 1
                keep = out[0, 0, 7].clone()
                store(workload, batch, out)
                if calls > 40:
                    out[0, 0, 7] = keep

            device.launch(work)

        return run

    result = Bench().candidate(make, contract=contract)
    assert result.identical
    assert "unwritten" in codes(result)


def test_a_result_that_looks_like_poison_is_no_false_alarm():
    poison = torch.tensor([0xA5A5 - 0x10000], dtype=torch.int16).view(torch.float16)

    def make(device, workload):
        return lambda batch, out: device.launch(lambda: out.copy_(torch.where(batch.x > 0, poison, batch.x)))

    group = toy_group(reference=lambda w, batch: torch.where(batch.x > 0, poison, batch.x).double())
    result = Bench(group=group).run(make, make)
    assert result.ok, result.variants


def test_a_wrong_result_that_looks_like_poison_is_called_wrong_and_not_unwritten():
    """As found on the H200: v3b-fp32act computed the poison's bytes where v0.2.12 has their neighbour."""

    def make(bits):
        value = torch.tensor([bits - 0x10000], dtype=torch.int16).view(torch.float16)

        def build(device, workload):
            return lambda batch, out: device.launch(lambda: out.copy_(torch.where(batch.x > 0, value, batch.x)))

        return build

    value = torch.tensor([0xA5A4 - 0x10000], dtype=torch.int16).view(torch.float16)
    group = toy_group(reference=lambda w, batch: torch.where(batch.x > 0, value, batch.x).double())
    result = Bench(group=group).run(make(0xA5A4), make(0xA5A5), contract=SameBits("base"))
    assert codes(result.variants[1]) == {"wrong-bits"}


# 4. Work on another stream, or outside the capture.


def test_side_stream_work_is_timed_and_named():
    def make(device, workload):
        return lambda batch, out: device.launch_side(lambda: store(workload, batch, out), 80.0)

    result = Bench().candidate(make, capturable=False, capture_note="side stream")
    assert "side-stream" in codes(result)
    assert result.timings.eager.median_us == pytest.approx(
        80.0, rel=0.02
    )  # and not the 0 that the stream's own events saw


def test_a_default_stream_launch_during_capture_is_caught():
    """All of the output misses the graph: replays leave poison, at no cost at all."""

    def make(device, workload):
        return lambda batch, out: device.launch_default_stream(lambda: store(workload, batch, out))

    result = Bench().candidate(make)
    assert "outside-capture" in codes(result)
    assert "unwritten" not in codes(result)


def test_a_replay_of_stale_output_is_caught():
    """The computation runs on the default stream at capture; the graph only copies what that left."""

    def make(device, workload):
        def run(batch, out):
            scratch = torch.empty_like(out)
            device.launch_default_stream(lambda: store(workload, batch, scratch))
            device.launch(lambda: out.copy_(scratch), 2.0, "copy_out")

        return run

    kernels = {KERNEL: 1, "copy_out": 1}
    result = Bench().candidate(make, kernels=lambda workload, batch: kernels)
    assert "stale-replay" in codes(result)
    assert "outside-capture" in codes(result)  # counted in the replay: the launches that are missing
    assert "output-cache" not in codes(result)  # as called, it is right


# 5. Impossible rates.


def test_an_impossible_rate_is_invalid_and_no_record():
    result = Bench(FakeDevice(copy_gb_s=4300.0)).candidate(honest(100.0), bytes_moved=lambda w, b: 10**9)
    assert codes(result) == {"impossible-rate"}
    assert not result.ok
    assert result.gb_s == pytest.approx(10_000, rel=0.02)


def test_a_rate_at_the_ceiling_is_possible():
    result = Bench(FakeDevice(copy_gb_s=4300.0)).candidate(honest(100.0), bytes_moved=lambda w, b: 420_000_000)
    assert result.ok, result.reasons
    assert result.floor_ratio == pytest.approx(4300 / 4200, rel=0.02)
