"""What ``glqprof release-notes --format json`` prints (``glqprof.release-notes/1``)."""

from __future__ import annotations

import json
from typing import Any

from glqprof.analysis.release import Gap, ReleaseNotes
from glqprof.analysis.release_facts import by_value
from glqprof.analysis.release_kernels import bits_of
from glqprof.analysis.release_rows import ReleaseRow
from glqprof.reports.release_sentences import PROPERTIES, sha_sentences

SCHEMA = "glqprof.release-notes/1"


def to_text(content: dict[str, Any]) -> str:
    """As every verb prints JSON: one object."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def release_json(notes: ReleaseNotes) -> dict[str, Any]:
    """All figures with the numbers of their sources; counts and milliseconds are a token's."""
    return {
        "schema": SCHEMA,
        "title": notes.spec.title,
        "rows": [_row(p) for p in notes.paths],
        "time": _time(notes),
        "host": _host(notes),
        "gap": _gap(notes.gap) if notes.gap else None,
        "kernels": [
            {
                "group": line.group,
                "variant": line.variant.name,
                "rows": line.variant.rows,
                "baseline": line.baseline,
                "ok": line.variant.ok,
                "eager_us": t.eager.median_us if (t := line.variant.timings).eager and line.variant.ok else None,
                "graph_us": t.graph.median_us if t.graph and line.variant.ok else None,
                "source": line.source,
            }
            for line in notes.kernels
        ],
        "bits": [
            {
                "variant": b.variant,
                "baseline": b.baseline,
                "contract": b.contract,
                "identical": b.identical,
                "rows": list(b.rows),
                "elements": b.elements,
                "differing": [{"rows": n, "share": share, "max_rel": rel} for n, share, rel in b.differing],
                "source": b.source,
            }
            for b in bits_of(notes.kernels)
        ],
        "token_sha": [
            {"label": p.label, "sha": p.sha, "says": says, "source": p.sha_source if p.sha else None}
            for p, says in zip(notes.paths, sha_sentences(notes), strict=True)
        ],
        "compatibility": {
            name: [{"value": value, "sources": sorted({f.source for f in who})} for value, who in found.items()]
            for name in PROPERTIES
            if (found := by_value(notes.facts, name))
        },
        "mixed": notes.mixed,
        "missing": [*notes.missing, *notes.unsaid],
        "not_measured": notes.spec.not_measured,
        "sources": [
            {"number": s.number, "kind": s.kind, "file": s.name, "says": s.says, "warnings": list(s.warnings)}
            for s in notes.sources
        ],
    }


def _row(p: ReleaseRow) -> dict[str, Any]:
    return {
        "label": p.label,
        "reference": p.is_reference,
        "tok_s": p.tok_s,
        "statistic": p.statistic,
        "factor": p.factor,
        "rate_source": p.rate_source,
        "traced": None
        if p.capture is None
        else {
            "gpu_busy_share": p.gpu_busy_share,
            "gpu_busy_ms": p.busy_ms_per_token,
            "kernels": p.per_token("kernels"),
            "launches": p.per_token("launches"),
            "syncs": p.per_token("syncs"),
            "blocking_copies": p.per_token("blocking_copies"),
            "inflation": p.capture.inflation,
            "source": p.capture_source,
        },
    }


def _time(notes: ReleaseNotes) -> dict[str, Any] | None:
    if notes.now is None or not notes.shares:
        return None
    shares = [
        {
            "depth": s.depth,
            "name": s.name,
            "row": s.leaf,
            "ns": s.ns,
            "share_pct": s.tenths / 10,
            "gpu_share_pct": None if s.busy_tenths is None else s.busy_tenths / 10,
        }
        for s in notes.shares
    ]
    return {"label": notes.now.label, "source": notes.now.capture_source, "shares": shares}


def _host(notes: ReleaseNotes) -> dict[str, Any] | None:
    if notes.host is None:
        return None
    before, after, c = notes.host
    rows = [
        {"row": str(r.row), "kind": str(r.kind), "before_ms": r.base_ms, "after_ms": r.cand_ms, "delta_ms": r.delta_ms}
        for r in c.rows.itertuples()
    ]
    return {"before": before.label, "after": after.label, "rows": rows, "notes": c.notes}


def _gap(gap: Gap) -> dict[str, Any]:
    floor = gap.floor
    return {
        "last": gap.last.label,
        "reference": gap.reference.label,
        "ratio": gap.ratio,
        "verdict": gap.verdict,
        "reason": gap.reason,
        "floor": None
        if floor is None
        else {
            "ms_per_token": floor.ms_per_token,
            "whole_token": floor.whole_token,
            "of": floor.of,
            "sources": list(floor.sources),
        },
    }
