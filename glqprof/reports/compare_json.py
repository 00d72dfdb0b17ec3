"""Comparisons as the JSON contract ``glqprof.compare/1`` (schema in data/schemas/compare-1.schema.json)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glqprof.analysis.compare import Comparison, Pair

SCHEMA = "glqprof.compare/1"
TOTALS = ("syncs", "launches", "kernel_sum_ms", "blocking_copies")


def compare_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The contract's object. Rows are per token where both sides know tokens, else over the whole windows."""
    return {
        "schema": SCHEMA,
        "base": comparisons[0].base.name,
        "candidates": [_candidate(c) for c in comparisons],
    }


def _candidate(c: Comparison) -> dict[str, Any]:
    per_token = c.unit == "token"
    windows = Pair(c.base.window.wall_ns / 1e6, c.cand.window.wall_ns / 1e6)
    return {
        "name": c.cand.name,
        "wall_ms_per_token": {**_pair(c.wall), "ratio": c.wall.ratio} if per_token else None,
        "wall_ms": _pair(windows),
        "rows": [
            {
                "row": str(r.row),
                "kind": str(r.kind),
                # Without tokens on both sides there is no such number; the windows' own stand beside it.
                "base_ms_per_token": r.base_ms if per_token else None,
                "cand_ms_per_token": r.cand_ms if per_token else None,
                "delta_ms_per_token": r.delta_ms if per_token else None,
                "base_ms": r.base_ms * (c.base.tokens or 1 if per_token else 1),
                "cand_ms": r.cand_ms * (c.cand.tokens or 1 if per_token else 1),
            }
            for r in c.rows.itertuples()
        ],
        # Calls are not counted where a side has no API records: the key stays, its value is null.
        "totals": {name: _pair(c.totals[name]) if name in c.totals else None for name in TOTALS},
        "kernels": [
            {
                "name": str(r.name),
                "base_launches": int(r.base_launches),
                "cand_launches": int(r.cand_launches),
                "base_ms": r.base_ms,
                "cand_ms": r.cand_ms,
            }
            for r in c.kernels.itertuples()
        ],
        "tok_s": {"base": c.untraced.base, "cand": c.untraced.cand, "ratio": c.untraced.ratio} if c.untraced else None,
        "inflation": {"base": c.inflation[0], "cand": c.inflation[1]},
        "token_sha_equal": c.token_sha_equal,
        "verdict": c.verdict,
        "reason": c.reason,
    }


def _pair(pair: Pair) -> dict[str, float]:
    return {"base": pair.base, "cand": pair.cand, "delta": pair.delta}
