"""glqprof: where every millisecond of an LLM decode went, and which kernel variant is faster, honestly."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

# Looked up on first use: `glqprof --help` must not wait for pandas.
_LAZY = {
    "load": "glqprof.traces.captures",
    "breakdown": "glqprof.analysis.breakdown",
    "compare": "glqprof.analysis.compare",
    "Trace": "glqprof.traces.schema.trace",
    "Capture": "glqprof.traces.captures",
    "InputError": "glqprof.errors",
}
__all__ = ["Capture", "InputError", "Trace", "__version__", "breakdown", "compare", "load"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'glqprof' has no attribute {name!r}")
