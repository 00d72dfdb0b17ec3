"""Write the shareable part of a torch.profiler Chrome trace."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from glqprof.errors import InputError
from glqprof.scrub.patterns import refuse_private
from glqprof.traces.schema.scrubbed import Removed

TOP_LEVEL = frozenset({
    "schemaVersion", "displayTimeUnit", "deviceProperties", "traceEvents", "cupti_version", "cuda_runtime_version",
    "cuda_driver_version", "hip_runtime_version", "hip_driver_version", "roctracer_version", "with_flops",
    "record_shapes", "profile_memory", "with_modules", "with_stack", "baseTimeNanoseconds",
})  # fmt: skip
# Of the host's own functions (python_function, Trace, instants) nothing is read, and their names are files.
CATEGORIES = frozenset({
    "kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset", "cuda_runtime", "cuda_driver", "runtime", "cpu_op",
    "user_annotation", "gpu_user_annotation", "overhead", "ac2g", "async_cpu_to_gpu", "cuda_sync",
})  # fmt: skip
EVENT_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s", "args")
ARGUMENTS = frozenset({
    "device", "context", "stream", "correlation", "External id", "bytes", "grid", "block", "registers per thread",
    "shared memory", "graph node id", "graph id", "blocks per SM", "warps per SM", "est. achieved occupancy %",
    "memory bandwidth (GB/s)", "queued", "priority", "cbid", "Record function id", "Ev Idx",
})  # fmt: skip
# What names the rows in a viewer: these and no thread or process name, which are the program's.
LABELS = {"process_labels": re.compile(r"(?:CPU|GPU \d+)"), "thread_name": re.compile(r"stream \d+\s*")}
SORT_KEYS = ("process_sort_index", "thread_sort_index")
_NUMBER_TEXT = re.compile(r"-?[\d.]+(?:e[+-]?\d+)?", re.IGNORECASE)


def scrub_chrome_trace(data: bytes, shown_as: Path) -> tuple[bytes, list[Removed]]:
    """The trace with the known fields of the known events, as JSON, and what is missing from it.

    Raises InputError when it is no Chrome trace, or when a name that would be kept looks like a secret or a path.
    """
    document = _decode(data, shown_as)
    lost: Counter[tuple[str, str]] = Counter()
    events = [kept for event in document["traceEvents"] if (kept := _event(event, lost)) is not None]
    for key in document.keys() - TOP_LEVEL:
        lost["metadata", key] += 1
    kept_document = {key: value for key, value in document.items() if key in TOP_LEVEL}
    kept_document["deviceProperties"] = [
        {key: value for key, value in gpu.items() if key != "uuid"}
        for gpu in kept_document.get("deviceProperties", [])
        if isinstance(gpu, dict)
    ]
    kept_document["traceEvents"] = events
    names = {(f"names of {event.get('cat', 'events')}", str(event.get("name", ""))) for event in events}
    rest = msgspec.json.encode({key: value for key, value in kept_document.items() if key != "traceEvents"}).decode()
    refuse_private([*sorted(names), ("metadata", rest)], shown_as)
    removed = [Removed(shown_as.name, kind, what, count) for (kind, what), count in sorted(lost.items())]
    return msgspec.json.encode(kept_document), removed


def _decode(data: bytes, shown_as: Path) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(shown_as, f"is cut short or no JSON ({error}); copy or export it again") from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(shown_as, "is JSON but no Chrome trace (no traceEvents); nothing in it is known as safe")
    return document


def _event(event: Any, lost: Counter[tuple[str, str]]) -> dict[str, Any] | None:
    if not isinstance(event, dict):
        lost["events", "of no known form"] += 1
        return None
    if event.get("ph") == "M":
        return _label(event, lost)
    category = str(event.get("cat", "")).lower()
    if category not in CATEGORIES:
        kind = "host functions" if "python" in category else "events"
        lost[kind, str(event.get("cat", "without category"))[:40]] += 1
        return None
    kept = {key: event[key] for key in EVENT_KEYS if key in event}
    for key in event.keys() - set(EVENT_KEYS):
        lost["event fields", str(key)[:40]] += 1
    if not _is_plain(kept.get("pid")) or not _is_plain(kept.get("tid")):
        lost["events", "with a named process or thread"] += 1
        return None
    arguments = kept.pop("args", None)
    if isinstance(arguments, dict):
        fits = {key: value for key, value in arguments.items() if key in ARGUMENTS and _is_plain(value)}
        for key in arguments.keys() - fits.keys():
            lost["arguments", str(key)[:40]] += 1
        kept["args"] = fits
    return kept


def _label(event: dict[str, Any], lost: Counter[tuple[str, str]]) -> dict[str, Any] | None:
    name, arguments = event.get("name"), event.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    known = False
    if name in SORT_KEYS:
        known = _is_plain(arguments.get("sort_index"))
    elif name in LABELS:
        known = any(LABELS[name].fullmatch(str(value)) for value in arguments.values()) and len(arguments) == 1
    if known and _is_plain(event.get("pid")) and _is_plain(event.get("tid")):
        return {key: event[key] for key in EVENT_KEYS if key in event}
    lost["process and thread names", str(name)[:40]] += 1
    return None


def _is_plain(value: Any) -> bool:
    """Numbers, and lists of numbers; profilers write some numbers as texts."""
    if isinstance(value, list):
        return all(_is_plain(part) for part in value)
    if isinstance(value, str):
        return bool(_NUMBER_TEXT.fullmatch(value)) or value == ""
    return value is None or isinstance(value, int | float)
