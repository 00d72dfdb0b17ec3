"""What binds a kernel: the real reports, and each rule on made launches, on both sides of its threshold."""

from __future__ import annotations

import pytest
from ncu.reports import DETAILS, GB200, RAW, T4, launch, raw_text

from glqprof.analysis.ncu_analysis import analyse
from glqprof.analysis.ncu_diagnosis import LABELS, STALL_SUGGESTIONS, diagnose
from glqprof.analysis.ncu_in_flight import DRAM_EXTRA_NS, UNLOADED_L2_CYCLES, in_flight
from glqprof.analysis.ncu_numbers import kernel_numbers
from glqprof.analysis.ncu_stalls import MEANING
from glqprof.traces.ncu_reports import load_ncu_report

STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


def codes(made, source="raw"):
    return [f.code for f in diagnose(kernel_numbers(made), source).findings]


@pytest.fixture(scope="module")
def glq():
    return analyse(load_ncu_report(RAW)).kernels


@pytest.mark.parametrize("number", [0, 4])
def test_the_matvec_is_bound_by_latency_of_gathers_from_l2(glq, number):
    kernel = glq[number]
    assert kernel.diagnosis.label == "latency, L2 gather"
    latency, gather = kernel.diagnosis.findings[:2]
    assert (latency.code, gather.code) == ("latency-bound", "l2-gather-bound")
    evidence = {e.what: e for e in latency.evidence}
    stall, _ = raw_text(STALLED.format("long_scoreboard"), number)
    occupancy, _ = raw_text("sm__warps_active.avg.pct_of_peak_sustained_active", number)
    assert evidence["long scoreboard"].value == float(stall)
    assert evidence["occupancy"].value == float(occupancy)
    blocks = raw_text("launch__grid_size", number)[0]
    assert f"grid of {blocks} on 132 SMs" in evidence["occupancy"].note
    assert evidence["DRAM throughput"].value < 4
    used, _ = raw_text("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio", number)
    assert {e.what: e.value for e in gather.evidence}["bytes used per 32 B sector"] == float(used)
    assert "shared memory" in gather.suggestion


def test_the_matvecs_occupancy_is_28_pct_for_want_of_blocks(glq):
    occupancy = glq[0].numbers.occupancy
    assert occupancy.achieved_pct == pytest.approx(28.00, abs=0.01)
    assert occupancy.limiter == "grid too small"
    assert (occupancy.blocks, occupancy.sm_count, occupancy.fitting_blocks, occupancy.registers) == (336, 132, 8, 32)
    assert occupancy.waves == pytest.approx(336 / 132 / 8)


@pytest.mark.parametrize(("number", "blocks"), [(1, 11), (2, 3), (3, 3), (5, 8), (6, 4), (7, 4)])
def test_the_small_kernels_have_too_few_blocks(glq, number, blocks):
    diagnosis = glq[number].diagnosis
    assert diagnosis.label == "grid too small"
    first = diagnosis.findings[0].evidence[0]
    assert (first.what, first.value, first.note) == ("blocks", blocks, f"on 132 SMs: {132 - blocks} get none")
    active, elapsed = (float(raw_text(n, number)[0]) for n in ("sm__cycles_active.avg", "sm__cycles_elapsed.avg"))
    assert diagnosis.findings[0].evidence[1].value == pytest.approx(100 * active / elapsed)


def test_stalls_are_ncus_counters_in_order_and_share(glq):
    stalls = glq[0].numbers.stalls
    assert [s.reason for s in stalls[:4]] == ["long_scoreboard", "wait", "short_scoreboard", "selected"]
    total = float(raw_text("smsp__average_warp_latency_per_inst_issued.ratio", 0)[0])
    for s in stalls:
        printed = float(raw_text(STALLED.format(s.reason), 0)[0])
        assert s.cycles_per_issue == printed
        assert s.share == pytest.approx(printed / total)
    assert stalls[0].share == pytest.approx(0.673, abs=0.0005)  # ncu's rule says "about 67.3%"


def test_derived_numbers_follow_from_the_text(glq):
    memory = glq[0].numbers.memory
    sectors, requests = (
        float(raw_text(f"l1tex__t_{n}_pipe_lsu_mem_global_op_ld.sum", 0)[0].replace(",", ""))
        for n in ("sectors", "requests")
    )
    assert memory.sectors_per_request == pytest.approx(sectors / requests)
    assert memory.dram_bytes == pytest.approx(4.802816e6 + 256)  # read + written: there is no dram__bytes.sum
    assert memory.dram_peak_bytes_s == pytest.approx(1504 * 3.195659e9)
    assert memory.dram_bytes_s / memory.dram_peak_bytes_s == pytest.approx(memory.dram_pct / 100, rel=1e-3)
    assert glq[3].numbers.memory.shared_ways == pytest.approx(1.0, abs=0.005)


def test_bytes_in_flight_are_rate_times_latency(glq):
    flight = glq[0].diagnosis.in_flight
    clock = float(raw_text("gpc__cycles_elapsed.avg.per_second", 0)[0]) * 1e9
    rate = float(raw_text("l1tex__m_xbar2l1tex_read_bytes.sum.per_second", 0)[0]) * 1e12
    peak = 6016 * float(raw_text("lts__cycles_elapsed.avg.per_second", 0)[0]) * 1e9
    seconds = UNLOADED_L2_CYCLES / clock
    assert flight.level == "L2"
    assert flight.bytes_per_sm == pytest.approx(rate / 132 * seconds)
    assert flight.needed_bytes_per_sm == pytest.approx(peak / 132 * seconds)
    assert flight.share == pytest.approx(0.183, abs=0.001)  # ncu's lts2xbar throughput is 18.29 %
    waited = 10.068177 * 9195074 / 1091328  # long-scoreboard cycles an issue × issues ÷ loads
    assert flight.wait_cycles == pytest.approx(waited)


def test_the_latency_used_is_the_longer_of_unloaded_and_seen():
    shared = {
        "dram__bytes.sum.per_second": 1e12, "dram__bytes.sum.peak_sustained": 1000.0,
        "dram__cycles_elapsed.avg.per_second": 4e9, "gpc__cycles_elapsed.avg.per_second": 1e9,
        "smsp__inst_issued.sum": 10_000.0,
    }  # fmt: skip
    unloaded = in_flight(kernel_numbers(launch(**shared)))
    assert unloaded.level == "DRAM"
    assert unloaded.latency_ns == pytest.approx(UNLOADED_L2_CYCLES + DRAM_EXTRA_NS)
    seen = in_flight(kernel_numbers(launch(**shared, **{STALLED.format("long_scoreboard"): 80.0})))
    assert seen.latency_ns == pytest.approx(800)  # 80 × 10,000 ÷ 1,000 cycles at 1 GHz
    assert seen.needed_bytes_per_sm == pytest.approx(4e12 / 132 * 800e-9)
    assert in_flight(kernel_numbers(launch())) is None


def test_the_t4_copy_is_bound_by_dram_and_its_page_lacks_stalls():
    analysis = analyse(load_ncu_report(T4))
    assert analysis.kernels[0].diagnosis.code == "bandwidth-bound"
    last = analysis.kernels[0].diagnosis.findings[-1]
    assert last.code == "not-enough-metrics"
    assert "stalls" in last.title
    assert "--page raw" in last.suggestion
    assert "--section WarpStateStats" in last.suggestion


def test_a_details_page_says_latency_but_not_which():
    diagnosis = analyse(load_ncu_report(DETAILS)).kernels[0].diagnosis
    assert diagnosis.code == "latency-bound"
    assert "cannot be told without the stalls" in diagnosis.findings[0].title
    assert "l2-gather-bound" not in [f.code for f in diagnosis.findings]


def test_gb200_kernels_have_too_few_blocks():
    pytest.importorskip("ncu_report", reason="the extra [ncu] is not installed")
    kernels = analyse(load_ncu_report(GB200)).kernels
    assert [k.diagnosis.code for k in kernels] == ["grid-too-small"] * 3
    assert [k.diagnosis.findings[0].evidence[0].value for k in kernels] == [4, 2, 2]


DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
L2 = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"


def test_nothing_stands_out_where_nothing_does():
    assert codes(launch()) == ["nothing-stands-out"]


@pytest.mark.parametrize(
    ("pct", "found"), [(59.9, "nothing-stands-out"), (60, "bandwidth-bound"), (93, "bandwidth-bound")]
)
def test_bandwidth(pct, found):
    assert codes(launch(**{DRAM: pct, MEMORY: pct}))[0] == found


def test_bandwidth_names_its_level_and_what_to_try():
    dram, l2, l1 = (
        diagnose(kernel_numbers(launch(**metrics))).findings[0]
        for metrics in ({DRAM: 90, MEMORY: 90}, {L2: 90, MEMORY: 90}, {MEMORY: 90})
    )
    assert [f.title.partition(" is")[0] for f in (dram, l2, l1)] == ["DRAM", "L2", "L1 or shared memory"]
    sparse = {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 8, DRAM: 90, MEMORY: 90}
    assert "neighbouring" in diagnose(kernel_numbers(launch(**sparse))).findings[0].suggestion


def test_compute_wins_over_a_memory_that_is_less_busy():
    assert codes(launch(**{SM: 85, DRAM: 62, MEMORY: 62}))[0] == "compute-bound"
    assert codes(launch(**{SM: 61, DRAM: 85, MEMORY: 85}))[:2] == ["bandwidth-bound", "compute-bound"]


@pytest.mark.parametrize(("blocks", "found"), [(131, "grid-too-small"), (132, "nothing-stands-out")])
def test_a_block_for_every_sm(blocks, found):
    assert codes(launch(grid=(blocks, 1, 1)))[0] == found


@pytest.mark.parametrize("reason", sorted(set(MEANING) - {"selected"}))
def test_latency_by_every_reason_says_what_is_waited_for(reason):
    finding = diagnose(kernel_numbers(launch(**{STALLED.format(reason): 20.0}))).findings[0]
    assert finding.code == "latency-bound"
    assert MEANING[reason] in finding.title
    assert finding.suggestion
    assert finding.evidence[0].value == 20.0


def test_every_reason_that_can_be_acted_on_has_its_own_suggestion():
    assert set(MEANING) - set(STALL_SUGGESTIONS) <= {
        "selected",
        "dispatch_stall",
        "sleeping",
        "misc",
        "tex_throttle",
        "warpgroup_arrive",
    }


def test_a_busy_gpu_is_not_latency_bound_however_long_its_warps_wait():
    assert "latency-bound" not in codes(launch(**{STALLED.format("long_scoreboard"): 50.0, DRAM: 90, MEMORY: 90}))


def test_a_gather_needs_all_its_signs():
    signs = {
        STALLED.format("long_scoreboard"): 20.0, "lts__t_sector_hit_rate.pct": 90.0,
        "l1tex__m_xbar2l1tex_read_bytes.sum": 60e6, "dram__bytes_read.sum": 5e6, "dram__bytes_write.sum": 0.0,
        "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 9.0,
    }  # fmt: skip
    assert codes(launch(**signs)) == ["latency-bound", "l2-gather-bound"]
    for change in (
        {"lts__t_sector_hit_rate.pct": 60.0},
        {"dram__bytes_read.sum": 20e6},
        {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 32.0},
        {STALLED.format("long_scoreboard"): 0.1},
        {"l1tex__m_xbar2l1tex_read_bytes.sum": None},
    ):
        assert "l2-gather-bound" not in codes(launch(**(signs | change)))


@pytest.mark.parametrize(("blocks", "tail", "found"), [(1056, 0, False), (1188, 43.75, True), (1900, 10.04, False)])
def test_the_tail_is_what_the_last_wave_leaves_empty(blocks, tail, found):
    made = launch(grid=(blocks, 1, 1))  # 8 fit on each of 132 SMs: 1,056 a wave
    assert kernel_numbers(made).occupancy.tail_pct == pytest.approx(tail, abs=0.01)
    assert ("tail-bound" in codes(made)) is found


def test_below_one_wave_there_is_no_tail_but_a_grid_that_limits():
    occupancy = kernel_numbers(launch(grid=(500, 1, 1))).occupancy
    assert occupancy.tail_pct is None
    assert occupancy.limiter == "grid too small"


def test_a_short_kernel_is_bound_by_its_launch():
    assert codes(launch(**{"gpu__time_duration.sum": 4_900})) == ["launch-bound"]
    assert codes(launch(**{"gpu__time_duration.sum": 5_000})) == ["nothing-stands-out"]


@pytest.mark.parametrize(
    ("limits", "theoretical", "limiter"),
    [
        ({"registers": 3}, 37.5, "registers"),
        ({"shared_mem": 2}, 25, "shared memory"),
        ({"blocks": 4}, 50, "blocks"),
        ({"registers": 4, "shared_mem": 4}, 50, "registers and shared memory"),
        ({}, 100, "none"),
    ],
)
def test_what_limits_occupancy(limits, theoretical, limiter):
    metrics = {f"launch__occupancy_limit_{k}": v for k, v in limits.items()}
    made = launch(grid=(5000, 1, 1), sm__maximum_warps_per_active_cycle_pct=theoretical, **metrics)
    assert kernel_numbers(made).occupancy.limiter == limiter


def test_missing_metrics_are_named_with_the_sections_that_hold_them():
    bare = launch(**{DRAM: None, MEMORY: None, SM: None})
    finding = diagnose(kernel_numbers(bare)).findings[0]
    assert finding.code == "not-enough-metrics"
    assert "--section SpeedOfLight" in finding.suggestion
    no_stalls = launch(**{STALLED.format(r): None for r in ("wait", "barrier", "drain", "misc")})
    last = diagnose(kernel_numbers(no_stalls)).findings[-1]
    assert (last.code, "--section WarpStateStats" in last.suggestion) == ("not-enough-metrics", True)


def test_samples_stand_in_for_counted_stalls_without_cycles():
    made = launch(
        **{STALLED.format(r): None for r in ("wait", "barrier", "drain", "misc")},
        smsp__pcsamp_warps_issue_stalled_long_scoreboard=75, smsp__pcsamp_warps_issue_stalled_no_instructions=25,
        smsp__pcsamp_warps_issue_stalled_long_scoreboard_not_issued=60,
    )  # fmt: skip
    found = [(s.reason, s.cycles_per_issue, s.share) for s in kernel_numbers(made).stalls]
    assert found == [("long_scoreboard", None, 0.75), ("no_instruction", None, 0.25)]
    assert codes(made)[0] == "latency-bound"


def test_a_profiled_range_has_no_grid_and_is_not_asked_for_one():
    made = launch(workload="range", grid=None, launch__sm_count=None)
    assert codes(made) == ["nothing-stands-out"]
    assert kernel_numbers(made).occupancy.limiter == "none"


def test_every_code_has_a_label():
    assert all(f.code in LABELS for k in analyse(load_ncu_report(RAW)).kernels for f in k.diagnosis.findings)
