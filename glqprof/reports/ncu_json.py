"""An analysed ncu report as the JSON contract ``glqprof.ncu/1`` (schema in data/schemas/ncu-1.schema.json)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glqprof.analysis.ncu_analysis import KernelAnalysis, NcuAnalysis
from glqprof.analysis.ncu_compare import NcuComparison
from glqprof.analysis.ncu_diagnosis import Diagnosis
from glqprof.analysis.ncu_in_flight import InFlight
from glqprof.traces.schema.ncu import RuleResult

if TYPE_CHECKING:
    from glqprof.analysis.ncu_weights import KernelWeight

SCHEMA = "glqprof.ncu/1"


def ncu_json(a: NcuAnalysis, comparisons: list[NcuComparison] | None = None) -> dict[str, Any]:
    """The contract's object. What the report lacks is null; ``comparisons`` is empty without other reports."""
    return {
        "schema": SCHEMA,
        "report": {"name": a.name, "source": a.source, "gpu": a.gpus},
        "kernels": [_kernel(k) for k in a.kernels],
        "comparisons": [_comparison(c) for c in comparisons or []],
        "notes": list(a.notes),
    }


def _kernel(k: KernelAnalysis) -> dict[str, Any]:
    n, m, o, c = k.numbers, k.numbers.memory, k.numbers.occupancy, k.numbers.compute
    return {
        "name": n.name,
        "grid": n.grid,
        "block": n.block,
        "duration_us": n.duration_us,
        "dram_pct": m.dram_pct,
        "l2_pct": m.l2_pct,
        "l1_hit_pct": m.l1_hit_pct,
        "l2_hit_pct": m.l2_hit_pct,
        "occupancy_pct": o.achieved_pct,
        "registers": o.registers,
        "limiter": o.limiter,
        "stalls": [{"reason": s.reason, "cycles_per_issue": s.cycles_per_issue, "share": s.share} for s in n.stalls],
        "diagnosis": _diagnosis(k.diagnosis),
        "id": n.id,
        "workload": n.workload,
        "device": n.device,
        "compute_capability": n.compute_capability,
        "l1_pct": m.l1_pct,
        "shared_pct": m.shared_pct,
        "compute_pct": c.pct,
        "tensor_pct": c.tensor_pct,
        "issue_pct": c.issue_pct,
        "dram_bytes": m.dram_bytes,
        "dram_bytes_s": m.dram_bytes_s,
        "l2_bytes": m.l2_bytes,
        "l2_bytes_s": m.l2_bytes_s,
        "theoretical_occupancy_pct": o.theoretical_pct,
        "blocks": o.blocks,
        "sm_count": o.sm_count,
        "blocks_per_sm": o.blocks_per_sm,
        "waves": o.waves,
        "tail_pct": o.tail_pct,
        "sm_active_pct": o.sm_active_pct,
        "static_smem_bytes": o.static_smem_bytes,
        "dynamic_smem_bytes": o.dynamic_smem_bytes,
        "spill_requests": m.spill_requests,
        "sectors_per_request": m.sectors_per_request,
        "bytes_per_sector": m.bytes_per_sector,
        "l2_sectors_per_request": m.l2_sectors_per_request,
        "bank_conflicts": m.bank_conflicts,
        "shared_ways": m.shared_ways,
        "cycles_per_issue": n.cycles_per_issue,
        "in_flight": _in_flight(k.diagnosis.in_flight),
        "ncu_rules": [_rule(r) for r in k.rules],
        "weight": _weight(k.weight),
    }


def _diagnosis(d: Diagnosis) -> dict[str, Any]:
    return {
        "code": d.code,
        "label": d.label,
        "findings": [
            {
                "code": f.code,
                "title": f.title,
                "evidence": [{"what": e.what, "value": e.value, "unit": e.unit, "note": e.note} for e in f.evidence],
                "suggestion": f.suggestion,
            }
            for f in d.findings
        ],
    }


def _in_flight(f: InFlight | None) -> dict[str, Any] | None:
    if f is None:
        return None
    return {
        "level": f.level,
        "latency_ns": f.latency_ns,
        "wait_cycles_per_load": f.wait_cycles,
        "bytes_per_sm": f.bytes_per_sm,
        "needed_bytes_per_sm": f.needed_bytes_per_sm,
    }


def _rule(r: RuleResult) -> dict[str, Any]:
    return {
        "rule": r.rule,
        "section": r.section,
        "kind": r.kind,
        "text": r.text,
        "estimated_speedup_pct": r.speedup_pct,
        "scope": r.scope,
    }


def _weight(w: KernelWeight | None) -> dict[str, Any] | None:
    if w is None:
        return None
    return {
        "timeline_launches": w.launches,
        "timeline_ms": w.sum_ms,
        "timeline_ms_per_token": w.ms_per_token,
        "timeline_share": w.share,
        "matched_by": w.matched,
        "at_most_ms": w.at_most_ms,
    }


def _comparison(c: NcuComparison) -> dict[str, Any]:
    return {
        "name": c.cand.name,
        "base_us": c.base_us,
        "cand_us": c.cand_us,
        "kernels": [
            {
                "name": m.cand.numbers.name,
                "base_id": m.base.numbers.id,
                "cand_id": m.cand.numbers.id,
                "matched_by": m.by,
                "base_us": m.base.numbers.duration_us,
                "cand_us": m.cand.numbers.duration_us,
                "changes": [
                    {"quantity": x.key, "unit": x.unit, "base": x.base, "cand": x.cand, "ratio": x.ratio}
                    for x in m.changes
                ],
            }
            for m in c.matches
        ],
        "vanished": [{"base_id": k.numbers.id, "name": k.numbers.name} for k in c.vanished],
        "appeared": [{"cand_id": k.numbers.id, "name": k.numbers.name} for k in c.appeared],
        "notes": list(c.notes),
    }
