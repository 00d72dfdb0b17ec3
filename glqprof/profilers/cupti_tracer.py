"""Trace the process that this runs in with CUPTI's activity records, through the package cupti-python.

NVTX ranges do not reach CUPTI without an injection library, so `glqprof.annotate` hands its ranges over here, timed
with CUPTI's own clock.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from glqprof.profilers.cupti_records import Rows, without_nested_calls
from glqprof.profilers.nsys_schema import write_export

KINDS = (
    "CONCURRENT_KERNEL", "MEMCPY", "MEMCPY2", "MEMSET", "SYNCHRONIZATION", "RUNTIME", "DRIVER", "OVERHEAD", "DEVICE",
)  # fmt: skip
# Large enough that a marked decode fits: a full buffer is read in Python, which holds the program up.
BUFFER_BYTES = 64 << 20


class CuptiTracer:
    """Records between `start` and `stop`, once; `save` writes the export. It is what `annotate` sends ranges to."""

    def __init__(self, cupti: Any, version: str) -> None:
        self._cupti, self._version = cupti, version
        self._rows = Rows(os.getpid(), cupti.ActivityKind, self._api_name, self._overhead_name)
        self._open: dict[int, list[tuple[str, int]]] = {}
        self._running = self._done = False
        self._problems: list[str] = []
        cupti.activity_register_callbacks(self._buffer_requested, self._buffer_completed)
        self._attempt("graph nodes", self._follow_graph_nodes)

    def _attempt(self, what: str, action: Any) -> None:
        """Do what a capture is better with, and say so where it cannot be had."""
        try:
            action()
        except Exception as error:  # cuptiError, or an attribute that another version of the package lacks
            self._problems.append(f"glqprof: no {what} ({type(error).__name__})")

    def _api_name(self, kind: int, cbid: int) -> str:
        domains = self._cupti.CallbackDomain
        is_driver = kind == int(self._cupti.ActivityKind.DRIVER)
        name = self._cupti.get_callback_name(domains.DRIVER_API if is_driver else domains.RUNTIME_API, cbid)
        return name.decode() if isinstance(name, bytes) else str(name)

    def _overhead_name(self, kind: int) -> str:
        try:
            return f"CUPTI: {self._cupti.ActivityOverheadKind(kind).name.lower()}"
        except (AttributeError, ValueError):  # a kind that this version of the package does not know
            return f"CUPTI: overhead {kind}"

    @staticmethod
    def _buffer_requested() -> tuple[int, int]:
        return BUFFER_BYTES, 0

    def _buffer_completed(self, activities: list[Any]) -> None:
        try:
            self._rows.add(activities)
        except Exception as error:  # raised into CUPTI's thread it would be lost
            self._problems.append(f"glqprof: records were lost ({type(error).__name__})")

    # --- graph nodes: which node of a replayed graph was made in which range

    def _follow_graph_nodes(self) -> None:
        cupti = self._cupti
        subscriber = cupti.subscribe(self._on_resource, None)
        for name in ("GRAPHNODE_CREATED", "GRAPHNODE_CLONED"):
            cupti.enable_callback(1, subscriber, cupti.CallbackDomain.RESOURCE, getattr(cupti.CallbackIdResource, name))

    def _on_resource(self, _userdata: Any, _domain: int, callback: int, data: Any) -> None:
        try:
            cupti = self._cupti
            resource = data if hasattr(data, "resource_descriptor") else cupti.ResourceData.from_ptr(int(data))
            graph = cupti.GraphData.from_ptr(int(resource.resource_descriptor))
            node = cupti.get_graph_node_id(int(graph.node))
            cloned = callback == int(cupti.CallbackIdResource.GRAPHNODE_CLONED)
            original = cupti.get_graph_node_id(int(graph.original_node)) if cloned else None
            self._rows.graph_node(cupti.get_timestamp(), node, original, threading.get_native_id())
        except Exception as error:  # one sentence, however many nodes
            text = f"glqprof: no graph nodes ({type(error).__name__})"
            if text not in self._problems:
                self._problems.append(text)

    # --- what annotate calls

    def push(self, name: str) -> None:
        """Open a range on this thread."""
        self._open.setdefault(threading.get_native_id(), []).append((name, self._cupti.get_timestamp()))

    def pop(self) -> None:
        """Close this thread's innermost range."""
        end = self._cupti.get_timestamp()
        thread = threading.get_native_id()
        ranges = self._open.get(thread)
        if ranges:
            name, start = ranges.pop()
            if self._running:
                self._rows.range(start, end, name, thread)

    def start(self) -> None:
        """Begin to record; a second time it does nothing, as nsys ends with the first capture range."""
        if self._running or self._done:
            return
        # Without it CUPTI names threads by a part of their address, and no range would match its thread's calls.
        self._attempt("thread ids", lambda: self._cupti.set_thread_id_type(self._cupti.ActivityThreadIdType.SYSTEM))
        for name in KINDS:
            kind = getattr(self._cupti.ActivityKind, name)
            if name in ("OVERHEAD", "DEVICE", "MEMCPY2"):
                self._attempt(f"{name.lower()} records", lambda kind=kind: self._cupti.activity_enable(kind))
            else:
                self._cupti.activity_enable(kind)
        self._running = True

    def stop(self) -> None:
        """End the recording, after the GPU's work."""
        if not self._running:
            return
        _wait_for_gpu()
        self._cupti.activity_flush_all(0)
        for name in KINDS:
            self._attempt(
                "orderly end", lambda name=name: self._cupti.activity_disable(getattr(self._cupti.ActivityKind, name))
            )
        self._cupti.activity_flush_all(1)
        self._running, self._done = False, True

    def save(self, path: Path) -> None:
        """Write the export, also when nothing was recorded: then it says so itself."""
        self.stop()
        for thread, ranges in self._open.items():
            for name, start in ranges:
                self._rows.range(start, None, name, thread)
        for text in dict.fromkeys(self._problems):
            self._rows.diagnostic(text, 3 if "lost" in text else 2)
        without_nested_calls(self._rows.tables)
        write_export(path, self._rows.tables, self._version)


def _wait_for_gpu() -> None:
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()
