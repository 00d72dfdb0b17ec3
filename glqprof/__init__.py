"""glqprof: where every millisecond of an LLM decode went, and which kernel variant is faster, honestly."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

# Looked up on first use: `glqprof --help` must not wait for pandas.
_LAZY = {
    "load": "glqprof.traces.captures",
    "bundled_capture": "glqprof.traces.captures",
    "breakdown": "glqprof.analysis.breakdown",
    "compare": "glqprof.analysis.compare",
    "ncu": "glqprof.api",
    "read_bench": "glqprof.traces.bench_results",
    "graph_decode": "glqprof.workloads.nemotron_h.generate",
    "patch": "glqprof.workloads.nemotron_h.patch",
    "account_picture": "glqprof.api",
    "timeline_picture": "glqprof.api",
    "release_notes": "glqprof.api",
    "write_report": "glqprof.api",
    "write_perfetto": "glqprof.api",
    "Breakdown": "glqprof.analysis.breakdown",
    "Capture": "glqprof.traces.captures",
    "Comparison": "glqprof.analysis.compare",
    "InputError": "glqprof.errors",
    "NcuAnalysis": "glqprof.analysis.ncu_analysis",
    "Patched": "glqprof.workloads.nemotron_h.patch",
    "Trace": "glqprof.traces.schema.trace",
}
# Names whose results show themselves in a notebook.
_SHOWN = {"breakdown", "compare", "ncu"}
__all__ = [
    "Breakdown",
    "Capture",
    "Comparison",
    "InputError",
    "NcuAnalysis",
    "Patched",
    "Trace",
    "__version__",
    "account_picture",
    "breakdown",
    "bundled_capture",
    "compare",
    "graph_decode",
    "load",
    "ncu",
    "patch",
    "read_bench",
    "release_notes",
    "timeline_picture",
    "write_perfetto",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import sys
        from importlib import import_module

        if name in _SHOWN and "IPython" in sys.modules:
            import_module("glqprof.reports.notebook")
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'glqprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
