"""Planted cheats, ways 6 to 10 of MEASURING.md: each is caught by name, or made harmless and shown to be."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import torch

from bench.toys import (
    Bench,
    FakeDevice,
    codes,
    honest,
    store,
)
from glqprof.bench.registry import SameBits
from glqprof.bench.runner import run_bench
from glqprof.bench.stats import Quad, drift_pct

# 6. Order effects and drift.


def test_drift_that_fools_a_sequential_design_is_cancelled_and_named():
    bench = Bench(FakeDevice(drift=1e-3), quads=12)
    result = bench.run(honest())
    timing = result.variants[1].timings.eager
    assert timing.verdict == "not distinguishable"
    assert timing.ratio == pytest.approx(1.0, abs=1e-3)
    assert "drift" in {warning.code for warning in result.warnings}


def test_the_noise_floor_is_measured_and_printed():
    rng = random.Random(3)
    bench = Bench(FakeDevice(noise=lambda: rng.lognormvariate(0, 0.02)), quads=12)
    result = bench.run(honest())
    assert result.noise_floor_pct is not None
    assert 0 < result.noise_floor_pct < 5
    assert result.variants[0].timings.eager.reason == "a-a"
    assert result.variants[1].timings.eager.verdict == "not distinguishable"


# 7. Launch cost hidden or included by accident.


def test_both_timings_are_named_and_tell_host_cost_apart():
    def make(device, workload):
        def run(batch, out):
            device.host(300.0)
            device.launch(lambda: store(workload, batch, out))

        return run

    result = Bench().candidate(make)
    assert result.timings.eager.median_us == pytest.approx(400.0, rel=0.02)
    assert result.timings.graph.median_us == pytest.approx(100.0, rel=0.02)
    assert result.timings.eager.verdict == "slower"
    assert result.timings.graph.verdict == "not distinguishable"


def test_a_variant_that_cannot_be_captured_says_so():
    result = Bench().candidate(honest(), capturable=False, capture_note="it reads the ids on the host")
    assert result.timings.graph is None
    assert result.timings.graph_note == "it reads the ids on the host"
    assert result.ok


def test_a_capture_that_fails_against_the_declaration_is_caught():
    def make(device, workload):
        def run(batch, out):
            device.wait()
            device.launch(lambda: store(workload, batch, out))

        return run

    result = Bench().candidate(make, syncs=lambda workload, batch: 1)
    assert codes(result) == {"not-capturable"}
    assert "capturing" in result.timings.graph_note


# 8. A fallback ran instead.


def fallback(device, workload):
    return lambda batch, out: device.launch(lambda: store(workload, batch, out), 100.0, "at::native::mul_kernel")


def test_a_silent_fallback_is_caught():
    result = Bench().candidate(fallback)
    assert "fallback" in codes(result)
    assert "at::native::mul_kernel ran" in next(r.detail for r in result.reasons if r.code == "fallback")


def test_launch_and_sync_counts_are_asserted():
    def make(device, workload):
        def run(batch, out):
            if device.capturing is None:
                device.wait()
            for _ in range(2):
                device.launch(lambda: store(workload, batch, out), 50.0)

        return run

    result = Bench().candidate(make)
    assert {"launch-count", "sync-count"} <= codes(result)
    assert (result.launches, result.syncs) == (2, 1)


# 9. "Bit-identical" by assertion.


def test_one_wrong_bit_in_one_element_of_a_million_is_caught():
    def make(device, workload):
        def run(batch, out):
            def work():
                store(workload, batch, out)
                out.view(torch.int16)[0, 0, 123_456] ^= 1

            device.launch(work)

        return run

    bench = Bench(geometry="million")
    plan = bench.plan(make, contract=SameBits("base"), capturable=False)  # the replays would only repeat it
    plan = replace(plan, layers=1, block_s=1e-6, quads=1, random_batches=1)
    result = run_bench(plan, bench.device).variants[1]
    reason = next(reason for reason in result.reasons if reason.code == "wrong-bits")
    assert reason.detail.startswith("batch 'random 0': 1 of 1048576 elements differ from base")
    assert result.identical is False
    assert result.differing.count == 5  # once in each of one random and four hostile batches
    assert result.differing.elements == 5 << 20


def test_a_wrong_bit_in_a_timed_call_only_is_caught():
    def make(device, workload):
        calls = 0

        def run(batch, out):
            def work():
                nonlocal calls
                calls += 1
                store(workload, batch, out)
                if calls == 60:
                    out.view(torch.int16)[1, 0, 3] ^= 1

            device.launch(work)

        return run

    result = Bench().candidate(make, contract=SameBits("base"))
    assert result.identical
    assert codes(result) == {"wrong-bits"}


def test_another_nan_payload_and_another_zero_are_other_bits():
    def make(device, workload):
        def run(batch, out):
            def work():
                store(workload, batch, out)
                raw = out.view(torch.int16)
                raw[torch.isnan(out)] = 0x7E01
                raw[out == 0] = -0x8000

            device.launch(work)

        return run

    result = Bench().candidate(make, contract=SameBits("base"))
    assert codes(result) == {"wrong-bits"}
    assert result.differing.max_abs == 0.0


def test_identical_and_wrong_is_still_wrong():
    def make(device, workload):
        return lambda batch, out: device.launch(lambda: out.copy_(1.1 * batch.x))

    result = Bench().run(make, base=make, contract=SameBits("base"))
    assert result.variants[1].identical
    reason = next(reason for reason in result.variants[1].reasons if reason.code == "wrong-values")
    assert re.match(r"batch 'random 0': [0-9.]+ from float64", reason.detail)  # found before anything is timed


def test_values_that_go_wrong_in_timed_calls_only_are_held_against_float64():
    """Right in the 14 calls of the identity pass, then both err alike: comparing them finds nothing."""

    def make(device, workload):
        calls = 0

        def run(batch, out):
            def work():
                nonlocal calls
                calls += 1
                out.copy_((1.1 if calls > 15 else 1.0) * batch.x.float() * workload.weight)

            device.launch(work)

        return run

    for found in Bench().run(make, make).variants:
        assert found.identical
        assert {reason.code for reason in found.reasons} == {"wrong-values"}
        assert "a timed output is" in found.reasons[0].detail


def test_values_outside_the_tolerance_in_one_timed_call_are_caught():
    def make(device, workload):
        calls = 0

        def run(batch, out):
            def work():
                nonlocal calls
                calls += 1
                out.copy_((1.1 if calls == 60 else 1.0) * batch.x.float() * workload.weight)

            device.launch(work)

        return run

    result = Bench().candidate(make)
    assert codes(result) == {"wrong-values"}
    assert "from base, allowed" in result.reasons[0].detail


def test_every_number_of_rows_is_benched_by_itself():
    bench = Bench()
    plan = replace(bench.plan(honest()), rows=(1, 3), quads=1)
    result = run_bench(plan, bench.device)
    assert [(found.name, found.rows) for found in result.variants] == [
        ("base", 1),
        ("cand", 1),
        ("base", 3),
        ("cand", 3),
    ]
    elements = [found.differing.elements for found in result.variants]
    assert elements == [7 * 2 * 64, 7 * 2 * 64, 7 * 2 * 3 * 64, 7 * 2 * 3 * 64]


def test_different_bytes_on_the_same_inputs_are_caught():
    def make(device, workload):
        flips = 0

        def run(batch, out):
            def work():
                nonlocal flips
                flips += 1
                store(workload, batch, out)
                out.view(torch.int16)[0, 0, 0] ^= flips % 2

            device.launch(work)

        return run

    assert "nondeterministic" in codes(Bench().candidate(make, contract=SameBits("base")))


# 10. Clocks.


def test_a_throttled_block_is_discarded_and_taken_again():
    device = FakeDevice(throttled=lambda reading: reading == 30)
    result = Bench(device).run(honest())
    timings = [timing for v in result.variants for timing in (v.timings.eager, v.timings.graph)]
    assert sum(timing.discarded for timing in timings) == 1
    assert all(timing.quads == 6 for timing in timings)
    assert result.clocks.throttled_blocks == 1
    assert result.clocks.throttle_reasons == ("power cap",)
    assert "blocks-discarded" in {warning.code for warning in result.warnings}
    assert result.ok


def test_a_gpu_that_is_throttled_throughout_gives_no_time():
    result = Bench(FakeDevice(throttled=lambda reading: reading > 3)).run(honest())
    assert codes(result.variants[1]) == {"throttled"}
    assert result.variants[1].timings.eager is None
    assert not result.ok


# And what is no cheat but must not pass either.


def test_a_variant_that_raises_is_failed_and_the_others_go_on():
    def make(device, workload):
        raise RuntimeError("nvcc not found")

    result = Bench().run(make)
    assert codes(result.variants[1]) == {"failed"}
    assert "nvcc not found" in result.variants[1].reasons[0].detail
    assert result.variants[0].ok


def test_drift_is_measured_on_the_baselines_own_blocks():
    quads = [Quad("ABBA", (1.0 + i / 10, 5.0, 5.0, 1.0 + i / 10)) for i in range(9)]
    assert drift_pct(quads) == pytest.approx(100 * (1.7 / 1.1 - 1))
