"""What one profiled launch did, as named numbers: the metrics behind each, where names differ between ncu versions.

Percentages are of the peak that ncu names "sustained, elapsed" unless said; a number that the report lacks is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glqprof.analysis.ncu_stalls import Stall, stall_table
from glqprof.traces.schema.ncu import Dim3, Launch

_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
    "warps": "launch__occupancy_limit_warps",
}
GRID = "grid too small"


@dataclass(frozen=True)
class Occupancy:
    """Warps on an SM. ``achieved_pct`` while it is active, ``theoretical_pct`` at most.

    ``limiter``: what keeps resident blocks down: "grid too small" where the grid has fewer blocks than fit at once,
    else the smallest of the limits in ``blocks_per_sm`` (registers, shared memory, blocks, barriers), or "none" where
    the SM can be full. ``waves``: blocks ÷ blocks that fit at once on all SMs. ``tail_pct``: block slots that stay
    empty in the last wave, of all slots of all waves (None below one wave). ``sm_active_pct``: SM cycles with any warp,
    of all.
    """

    achieved_pct: float | None
    theoretical_pct: float | None
    limiter: str | None
    blocks_per_sm: dict[str, int]
    blocks: int | None
    sm_count: int | None
    waves: float | None
    tail_pct: float | None
    sm_active_pct: float | None
    registers: int | None
    static_smem_bytes: float | None
    dynamic_smem_bytes: float | None

    @property
    def fitting_blocks(self) -> int | None:
        """Blocks that fit on one SM at once."""
        return min(self.blocks_per_sm.values()) if self.blocks_per_sm else None


@dataclass(frozen=True)
class Memory:
    """Traffic and how it was asked for.

    ``l1_pct`` is of the active cycles (as ncu prints it), ``shared_pct`` of the shared-memory data pipe, shuffles
    included. ``l2_bytes_s``: from L2 into the SMs; ``*_peak_bytes_s``: what 100 % would be at this launch's clocks.
    ``sectors_per_request``: 32-byte sectors of L1 per global load of a warp; ``bytes_per_sector``: of 32, those that
    the threads used; ``l2_sectors_per_request``: sectors that L2 serves per request from L1. ``shared_ways``: passes of
    the data pipe per shared load or store; 1 is free of bank conflicts. ``spill_requests``: local loads and stores of
    spilled registers, or all local ones where the report does not tell them apart.
    """

    dram_pct: float | None
    dram_bytes: float | None
    dram_bytes_s: float | None
    dram_peak_bytes_s: float | None
    l2_pct: float | None
    l2_bytes: float | None
    l2_bytes_s: float | None
    l2_peak_bytes_s: float | None
    l1_pct: float | None
    shared_pct: float | None
    busiest_pct: float | None
    l1_hit_pct: float | None
    l2_hit_pct: float | None
    load_requests: float | None
    sectors_per_request: float | None
    bytes_per_sector: float | None
    l2_sectors_per_request: float | None
    bank_conflicts: float | None
    shared_ways: float | None
    spill_requests: float | None


@dataclass(frozen=True)
class Compute:
    """``pct``: the busiest compute pipe or the issue slots; ``tensor_pct``: the tensor pipe. ``issue_pct``: scheduler
    cycles that issued, of the active ones. ``warps`` and ``eligible_warps`` per scheduler."""

    pct: float | None
    tensor_pct: float | None
    issue_pct: float | None
    warps: float | None
    eligible_warps: float | None
    instructions: float | None
    clock_hz: float | None


@dataclass(frozen=True)
class KernelNumbers:
    """One launch. ``stalls``: cycles per issued instruction by reason, longest first; empty where not collected."""

    id: int
    name: str
    grid: Dim3 | None
    block: Dim3 | None
    device: int | None
    gpu: str
    compute_capability: str
    workload: str
    duration_us: float | None
    occupancy: Occupancy
    memory: Memory
    compute: Compute
    stalls: tuple[Stall, ...]
    cycles_per_issue: float | None

    @property
    def busiest_pct(self) -> float | None:
        """The busiest of memory and compute: how near the launch is to a ceiling of the GPU."""
        known = [p for p in (self.memory.busiest_pct, self.memory.dram_pct, self.compute.pct) if p is not None]
        return max(known) if known else None

    def stall(self, reason: str) -> Stall | None:
        """The stall of this reason, None where it was not collected."""
        return next((s for s in self.stalls if s.reason == reason), None)


def kernel_numbers(launch: Launch) -> KernelNumbers:
    """The numbers of one launch."""
    duration_ns = launch.first("gpu__time_duration.sum", "gpu__time_duration.avg", "gpu__time_duration.max")
    stalls, cycles_per_issue = stall_table(launch)
    return KernelNumbers(
        id=launch.id,
        name=launch.name,
        grid=launch.grid,
        block=launch.block,
        device=launch.device,
        gpu=launch.texts.get("device__attribute_display_name", ""),
        compute_capability=launch.compute_capability,
        workload=launch.workload,
        duration_us=None if duration_ns is None else duration_ns / 1e3,
        occupancy=_occupancy(launch),
        memory=_memory(launch, duration_ns),
        compute=_compute(launch),
        stalls=stalls,
        cycles_per_issue=cycles_per_issue,
    )


def _occupancy(launch: Launch) -> Occupancy:
    limits = {name: int(launch.metrics[metric]) for name, metric in _LIMITS.items() if metric in launch.metrics}
    blocks = math.prod(launch.grid) if launch.grid else _whole(launch.first("launch__grid_size"))
    sm_count = _whole(launch.first("launch__sm_count", "device__attribute_multiprocessor_count"))
    theoretical = launch.first("sm__maximum_warps_per_active_cycle_pct")
    waves = launch.first("launch__waves_per_multiprocessor")
    if limits and blocks and sm_count:
        waves = blocks / (sm_count * max(min(limits.values()), 1))  # the printed one has two digits
    active = launch.first("sm__cycles_active.avg")
    elapsed = launch.first("sm__cycles_elapsed.avg", "gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg")
    return Occupancy(
        achieved_pct=launch.first("sm__warps_active.avg.pct_of_peak_sustained_active"),
        theoretical_pct=theoretical,
        limiter=_limiter(limits, waves, theoretical),
        blocks_per_sm=limits,
        blocks=blocks,
        sm_count=sm_count,
        waves=waves,
        tail_pct=None if waves is None or waves < 1 else 100 * (1 - waves / math.ceil(waves - 1e-9)),
        sm_active_pct=_ratio(active, elapsed, 100),
        registers=_whole(launch.first("launch__registers_per_thread")),
        static_smem_bytes=launch.first("launch__shared_mem_per_block_static"),
        dynamic_smem_bytes=launch.first("launch__shared_mem_per_block_dynamic"),
    )


def _limiter(limits: dict[str, int], waves: float | None, theoretical: float | None) -> str | None:
    if waves is not None and waves < 1:
        return GRID
    if not limits:
        return None
    least = min(limits.values())
    if limits.get("warps") == least or (theoretical is not None and theoretical >= 99.5):
        return "none"  # the SM's warps are used up: it can be full
    return " and ".join(name for name, limit in limits.items() if limit == least)


def _memory(launch: Launch, duration_ns: float | None) -> Memory:
    seconds = None if duration_ns is None else duration_ns / 1e9
    read, written = launch.first("dram__bytes_read.sum"), launch.first("dram__bytes_write.sum")
    dram_bytes_s = launch.first("dram__bytes.sum.per_second")
    dram_bytes = launch.first("dram__bytes.sum")
    if dram_bytes is None and read is not None and written is not None:
        dram_bytes = read + written
    if dram_bytes_s is None:
        dram_bytes_s = _ratio(dram_bytes, seconds)
    if dram_bytes is None and dram_bytes_s is not None and seconds is not None:
        dram_bytes = dram_bytes_s * seconds
    dram_pct = launch.first("gpu__dram_throughput" + _PEAK, "dram__throughput" + _PEAK)
    l2_bytes = launch.first("l1tex__m_xbar2l1tex_read_bytes.sum")
    l2_bytes_s = launch.first("l1tex__m_xbar2l1tex_read_bytes.sum.per_second")
    if l2_bytes_s is None:
        l2_bytes_s = _ratio(l2_bytes, seconds)
    loads = launch.first("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum", "smsp__sass_inst_executed_op_global_ld.sum")
    shared = [launch.first(f"smsp__sass_inst_executed_op_shared_{op}.sum") for op in ("ld", "st")]
    passes = [launch.first(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}.sum") for op in ("ld", "st")]
    local = [launch.first(f"l1tex__t_requests_pipe_lsu_mem_local_op_{op}.sum") for op in ("ld", "st")]
    return Memory(
        dram_pct=dram_pct,
        dram_bytes=dram_bytes,
        dram_bytes_s=dram_bytes_s,
        dram_peak_bytes_s=_product(launch, "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second")
        or _ratio(dram_bytes_s, dram_pct, 100),
        l2_pct=launch.first("lts__throughput" + _PEAK),
        l2_bytes=l2_bytes,
        l2_bytes_s=l2_bytes_s,
        l2_peak_bytes_s=_product(
            launch, "derived__lts__lts2xbar_bytes.sum.peak_sustained", "lts__cycles_elapsed.avg.per_second"
        )
        or _ratio(l2_bytes_s, launch.first("lts__lts2xbar_cycles_active" + _PEAK), 100),
        l1_pct=launch.first("l1tex__throughput.avg.pct_of_peak_sustained_active", "l1tex__throughput" + _PEAK),
        shared_pct=launch.first("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed"),
        busiest_pct=launch.first("gpu__compute_memory_throughput" + _PEAK),
        l1_hit_pct=launch.first("l1tex__t_sector_hit_rate.pct"),
        l2_hit_pct=launch.first("lts__t_sector_hit_rate.pct"),
        load_requests=loads,
        sectors_per_request=_ratio(launch.first("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"), loads),
        bytes_per_sector=launch.first("smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"),
        l2_sectors_per_request=_ratio(
            launch.first("lts__t_sectors_srcunit_tex.sum"), launch.first("lts__t_requests_srcunit_tex.sum")
        ),
        bank_conflicts=launch.first("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"),
        shared_ways=_ratio(_sum(passes), _sum(shared)),
        spill_requests=_first(launch.first("derived__local_spilling_requests"), _sum(local)),
    )


def _compute(launch: Launch) -> Compute:
    issue = launch.first("smsp__issue_active.avg.pct_of_peak_sustained_active")
    idle = launch.first("smsp__issue_inst0.avg.pct_of_peak_sustained_active")
    return Compute(
        pct=launch.first("sm__throughput" + _PEAK),
        tensor_pct=launch.first(
            "sm__pipe_tensor_cycles_active" + _PEAK,
            "sm__inst_executed_pipe_tensor" + _PEAK,
            "sm__pipe_tc_cycles_active" + _PEAK,
        ),
        issue_pct=issue if issue is not None or idle is None else 100 - idle,
        warps=launch.first("smsp__warps_active.avg.per_cycle_active"),
        eligible_warps=launch.first("smsp__warps_eligible.avg.per_cycle_active"),
        instructions=launch.first("smsp__inst_issued.sum", "smsp__inst_executed.sum"),
        clock_hz=launch.first(
            "gpc__cycles_elapsed.avg.per_second",
            "smsp__cycles_elapsed.avg.per_second",
            "sm__cycles_elapsed.avg.per_second",
        ),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _ratio(top: float | None, bottom: float | None, factor: float = 1) -> float | None:
    """``factor`` × top ÷ bottom; None where either is missing or the bottom is 0."""
    return None if top is None or not bottom else factor * top / bottom


def _product(launch: Launch, one: str, other: str) -> float | None:
    a, b = launch.first(one), launch.first(other)
    return None if a is None or b is None else a * b


def _sum(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _first(*values: float | None) -> float | None:
    return next((v for v in values if v is not None), None)
