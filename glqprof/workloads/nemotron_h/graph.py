"""A whole token in one CUDA graph: a replay a token, which the host reads from pinned memory."""

from __future__ import annotations

from typing import Any

import torch

from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.steps import Step

WARMUPS = 3
"""Runs of the step before it is captured: libraries load, choose and allocate on the first ones."""


class CapturedRun:
    """Calls of a step that was captured: each replays its graph and reads its token.

    The step's static buffers are those of the graph. Warm-up and capture leave their values as they were.
    """

    def __init__(self, step: Step, stream: Any = None) -> None:
        """Capture on ``stream``, a side stream by default; InputError where the step cannot be captured."""
        if step.state is None:
            raise InputError("--graph", "needs a static cache: a dynamic one moves at every token")
        step.state.check_room()  # warm-up writes where the next token goes
        self.step = step
        self.host = torch.empty(step.token.shape, dtype=step.token.dtype, pin_memory=True)
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream() if stream is None else stream
        outside = torch.cuda.current_stream()
        self._warm_up(stream)
        try:
            with torch.cuda.graph(self.graph, stream=stream):
                step.run()
                self.host.copy_(step.token, non_blocking=True)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            torch.cuda.set_stream(outside)  # torch leaves the side stream current where a capture fails
            raise InputError("--graph", cannot_be_captured(error)) from error

    def _warm_up(self, stream: Any) -> None:
        step = self.step
        assert step.state is not None
        saved, token = step.state.snapshot(), step.token.clone()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            try:
                for _ in range(WARMUPS):
                    step.run()
                    step.state.restore(saved)
                    step.token.copy_(token)
            finally:
                torch.cuda.current_stream().synchronize()
        torch.cuda.current_stream().wait_stream(stream)

    def __call__(self) -> int:
        """The next token; InputError, and nothing changed, where the static buffers are full."""
        assert self.step.state is not None
        self.step.state.take()
        self.graph.replay()
        torch.cuda.current_stream().synchronize()
        return int(self.host)


def cannot_be_captured(error: BaseException) -> str:
    """One line of what stopped a capture, and what to do: the first error, not the capture's complaint about it."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    why = " ".join(str(error).split()).split(" CUDA kernel errors might")[0].split(" Search for ")[0].rstrip(".")
    return f"this token cannot be captured ({why}); run it without, or with experts that read nothing on the host"
