"""Why warps waited: cycles per issued instruction by reason."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glqprof.traces.schema.ncu import Launch

_RATIO = re.compile(r"^smsp__average_warps_issue_stalled_(\w+?)_per_issue_active(?:\.ratio)?$")
_SAMPLES = re.compile(r"^smsp__pcsamp_warps_issue_stalled_(\w+)$")
_TOTAL = "smsp__average_warp_latency_per_inst_issued.ratio"
# Both spellings stand in one report: the counter says no_instruction, the sampler no_instructions.
_SPELLING = {"no_instructions": "no_instruction"}

MEANING = {
    "long_scoreboard": "waits for data from global or local memory (L1, L2 or DRAM)",
    "short_scoreboard": "waits for shared memory, a shuffle or a special function",
    "lg_throttle": "waits for room in the queue for global and local memory",
    "mio_throttle": "waits for room in the queue for shared memory and special functions",
    "tex_throttle": "waits for room in the queue for texture",
    "math_pipe_throttle": "waits for the compute pipe that it needs",
    "barrier": "waits for the other warps of its block at a barrier",
    "membar": "waits for a memory barrier",
    "wait": "waits the fixed latency between dependent instructions",
    "not_selected": "is ready while another warp issues",
    "selected": "issues: the one cycle that is no stall",
    "no_instruction": "waits for instructions to be fetched (cold instruction cache, jumps)",
    "imc_miss": "waits for a constant (constant cache miss)",
    "branch_resolving": "waits for a branch target",
    "dispatch_stall": "is held back by the dispatcher",
    "drain": "waits at exit for its stores",
    "sleeping": "sleeps on purpose",
    "gmma": "waits for a warp group's matrix instruction",
    "warpgroup_arrive": "waits for the other warps of its warp group",
    "misc": "waits for another reason",
}


@dataclass(frozen=True)
class Stall:
    """``cycles_per_issue``: warp cycles in this state per issued instruction (None where only samples were taken).

    ``share``: of all warp cycles per issue, or of all samples.
    """

    reason: str
    cycles_per_issue: float | None
    share: float


def stall_table(launch: Launch) -> tuple[tuple[Stall, ...], float | None]:
    """The stalls of a launch, longest first, and all warp cycles per issued instruction.

    Counted where ncu collected the warp states (section WarpStateStats), else from its samples (SourceCounters), else
    empty. Reasons that were collected and never occurred stand in it with 0.
    """
    counted = {m[1]: v for name, v in launch.metrics.items() if (m := _RATIO.match(name))}
    if counted:
        total = launch.first(_TOTAL) or sum(counted.values())
        stalls = [Stall(_SPELLING.get(r, r), v, v / total if total else 0.0) for r, v in counted.items()]
        return tuple(sorted(stalls, key=lambda s: (-s.share, s.reason))), total
    samples = {
        m[1]: v
        for name, v in launch.metrics.items()
        if (m := _SAMPLES.match(name)) and not m[1].endswith("_not_issued")
    }
    taken = sum(samples.values())
    if not taken:
        return (), launch.first(_TOTAL)
    stalls = [Stall(_SPELLING.get(r, r), None, v / taken) for r, v in samples.items()]
    return tuple(sorted(stalls, key=lambda s: (-s.share, s.reason))), launch.first(_TOTAL)
