"""``python -m glqprof.profilers.torch_run OUTPUT all|marked -- script.py …``: run a script under torch.profiler."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from glqprof.profilers.script import trace_script


class TorchTracer:
    """torch.profiler between `start` and `stop`, once. `annotate`'s ranges become its user annotations."""

    def __init__(self, torch: Any) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # No shapes, stacks or modules: they hold paths, and they cost more than what is traced.
        self._profile = torch.profiler.profile(activities=activities)
        self._record_function = torch.profiler.record_function
        self._torch = torch
        self._open = threading.local()
        self._running = self._done = False

    def push(self, name: str) -> None:
        """Open a range on this thread."""
        if not hasattr(self._open, "ranges"):
            self._open.ranges = []
        entered = self._record_function(name)
        entered.__enter__()
        self._open.ranges.append(entered)

    def pop(self) -> None:
        """Close this thread's innermost range."""
        ranges = getattr(self._open, "ranges", None)
        if ranges:
            ranges.pop().__exit__(None, None, None)

    def start(self) -> None:
        """Begin to record; a second time it does nothing."""
        if not self._running and not self._done:
            self._profile.start()
            self._running = True

    def stop(self) -> None:
        """End the recording, after the GPU's work."""
        if self._running:
            if self._torch.cuda.is_available():
                self._torch.cuda.synchronize()
            self._profile.stop()
            self._running, self._done = False, True

    def save(self, path: Path) -> None:
        """Export the Chrome trace, if anything was recorded."""
        self.stop()
        if self._done:
            self._profile.export_chrome_trace(str(path))


def main() -> None:
    """Trace the script that the arguments name."""
    import torch

    trace_script(sys.argv[1:], lambda: TorchTracer(torch))


if __name__ == "__main__":
    main()
