"""Where a launch lies under the roofline: operations a second against operations per byte.

Counted are floating-point operations of the CUDA cores: additions and multiplications once, fused ones twice, in fp16,
fp32 and fp64 (ncu's ``smsp__sass_thread_inst_executed_op_*``). Tensor-core operations are not in these counters.
"""

from __future__ import annotations

from dataclasses import dataclass

from glqprof.analysis.ncu_numbers import KernelNumbers
from glqprof.traces.schema.ncu import Launch

TENSOR_COUNTS_PCT = 1.0


@dataclass(frozen=True)
class RooflinePoint:
    """``flops``: operations a second. ``per_dram_byte`` and ``per_l2_byte``: operations per byte from DRAM and from L2
    into the SMs (None: not measured, or no byte). ``peak_flops``: of fp32 at this launch's clock. ``tensor``: the
    tensor pipe was busy too, so that the point lies too low."""

    flops: float
    per_dram_byte: float | None
    per_l2_byte: float | None
    peak_flops: float
    dram_peak_bytes_s: float | None
    l2_peak_bytes_s: float | None
    tensor: bool


def roofline_point(launch: Launch, numbers: KernelNumbers) -> RooflinePoint | None:
    """None where the report lacks the operation counts, a clock or the peak (section SpeedOfLight_RooflineChart)."""
    clock = launch.first("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
    ffma = launch.first("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained")
    operations = _per_cycle(launch)
    if clock is None or ffma is None or operations is None:
        return None
    flops = operations * clock
    memory = numbers.memory
    return RooflinePoint(
        flops=flops,
        per_dram_byte=flops / memory.dram_bytes_s if memory.dram_bytes_s else None,
        per_l2_byte=flops / memory.l2_bytes_s if memory.l2_bytes_s else None,
        peak_flops=2 * ffma * clock,
        dram_peak_bytes_s=memory.dram_peak_bytes_s,
        l2_peak_bytes_s=memory.l2_peak_bytes_s,
        tensor=(numbers.compute.tensor_pct or 0.0) > TENSOR_COUNTS_PCT,
    )


def _per_cycle(launch: Launch) -> float | None:
    """Operations per cycle over all SMs; the fp32 counts must be there, absent types count nothing."""
    total = 0.0
    for kind in "fhd":
        for operation, weight in (("add", 1), ("mul", 1), ("fma", 2)):
            name = f"smsp__sass_thread_inst_executed_op_{kind}{operation}_pred_on.sum.per_cycle_elapsed"
            value = launch.metrics.get(name)
            if value is None and kind == "f":
                return None
            total += weight * (value or 0.0)
    return total
