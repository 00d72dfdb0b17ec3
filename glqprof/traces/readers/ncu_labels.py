"""What the details page calls a metric, and the metric's own name (ncu 2022 to 2026)."""

from __future__ import annotations

_PEAK = ".avg.pct_of_peak_sustained_elapsed"
LABELS = {
    # GPU Speed Of Light
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "gpc__cycles_elapsed.max",
    "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "SM Active Cycles": "sm__cycles_active.avg",
    "Compute (SM) Throughput": "sm__throughput" + _PEAK,
    "DRAM Throughput": "gpu__dram_throughput" + _PEAK,
    "L2 Cache Throughput": "lts__throughput" + _PEAK,
    "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    # Memory Workload Analysis
    "Mem Busy": "gpu__compute_memory_access_throughput" + _PEAK,
    "Max Bandwidth": "gpu__compute_memory_request_throughput" + _PEAK,
    "Mem Pipes Busy": "sm__memory_throughput" + _PEAK,
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Local Memory Spilling Requests": "derived__local_spilling_requests",
    "Local Memory Spilling Request Overhead": "derived__local_spilling_requests_pct",
    "L2 Persisting Size": "launch__persisting_l2_cache_size",
    # Compute Workload Analysis
    "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
    "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
    "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
    # Scheduler Statistics
    "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
    "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
    "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
    "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
    # Warp State Statistics
    "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
    "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    # Instruction Statistics
    "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
    "Issued Instructions": "smsp__inst_issued.sum",
    # Launch Statistics
    "Block Size": "launch__block_size",
    "Grid Size": "launch__grid_size",
    "Registers Per Thread": "launch__registers_per_thread",
    "Shared Memory Configuration Size": "launch__shared_mem_config_size",
    "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "# SMs": "launch__sm_count",
    "# TPCs": "launch__tpc_count",
    "Stack Size": "launch__stack_size",
    "Threads": "launch__thread_count",
    "Waves Per SM": "launch__waves_per_multiprocessor",
    "Cluster Size": "launch__cluster_size",
    "Cluster Scheduling Policy": "launch__cluster_scheduling_policy",
    "Function Cache Configuration": "launch__func_cache_config",
    "Uses Green Context": "launch__uses_green_context",
    # Occupancy
    "Block Limit SM": "launch__occupancy_limit_blocks",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
    "Block Limit Warps": "launch__occupancy_limit_warps",
    "Block Limit Barriers": "launch__occupancy_limit_barriers",
    "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
    # GPU and Memory Workload Distribution
    "Average DRAM Active Cycles": "dram__cycles_active.avg",
    "Total DRAM Elapsed Cycles": "dram__cycles_elapsed.sum",
    "Average L1 Active Cycles": "l1tex__cycles_active.avg",
    "Total L1 Elapsed Cycles": "l1tex__cycles_elapsed.sum",
    "Average L2 Active Cycles": "lts__cycles_active.avg",
    "Total L2 Elapsed Cycles": "lts__cycles_elapsed.sum",
    "Average SM Active Cycles": "sm__cycles_active.avg",
    "Total SM Elapsed Cycles": "sm__cycles_elapsed.sum",
    "Average SMSP Active Cycles": "smsp__cycles_active.avg",
    "Total SMSP Elapsed Cycles": "smsp__cycles_elapsed.sum",
    # Source Counters
    "Branch Instructions": "smsp__inst_executed_op_branch.sum",
    "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
    "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
    "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
}


def metric_name(label: str, section: str, unit: str) -> str:
    """The metric behind a label of the details page; ``unit`` in base units.

    ``Memory Throughput`` is two metrics, told apart by their unit. A label that is none of these keeps its section:
    "Section: Label".
    """
    if label == "Memory Throughput":
        return "dram__bytes.sum.per_second" if unit == "byte/s" else "gpu__compute_memory_throughput" + _PEAK
    if label in LABELS:
        return LABELS[label]
    return label if "__" in label else f"{section}: {label}"
