"""What CudaDevice does around torch's calls, with a stand-in for torch: the rest is in tests/gpu."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from glqprof.bench.cuda import CudaDevice
from glqprof.bench.device import CaptureError


class Graphs:
    """The part of torch.cuda that a capture uses; ending a capture that an error broke fails, as CUDA's does."""

    def __init__(self):
        self.current = "caller"
        self.replays = 0

    def current_stream(self):
        return self.current

    def set_stream(self, stream):
        self.current = stream

    def Stream(self):  # torch writes it so
        return SimpleNamespace(wait_stream=lambda other: None)

    def stream(self, stream):
        return Scope(self, stream, broken=False)

    def graph(self, graph, stream):
        return Scope(self, stream, broken=True)

    def CUDAGraph(self):
        return SimpleNamespace(replay=lambda: setattr(self, "replays", self.replays + 1))

    def synchronize(self):
        pass


class Scope:
    def __init__(self, cuda, stream, broken):
        self.cuda, self.stream, self.broken = cuda, stream, broken

    def __enter__(self):
        self.before, self.cuda.current = self.cuda.current, self.stream

    def __exit__(self, kind, error, trace):
        if self.broken and error is not None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.cuda.current = self.before


@pytest.fixture
def device():
    made = CudaDevice.__new__(CudaDevice)
    made._torch = SimpleNamespace(cuda=Graphs())
    return made


def test_a_capture_warms_up_outside_and_replays(device):
    where = []
    replay = device.capture([lambda: where.append(device._torch.cuda.current)])
    replay()
    assert len(where) == 2
    assert "caller" not in where
    assert device._torch.cuda.current == "caller"
    assert device._torch.cuda.replays == 1


def test_a_broken_capture_tells_the_first_error_and_gives_the_stream_back(device):
    calls = []

    def once():
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("v3b cannot be captured: it reads expert ids\nsecond line")

    with pytest.raises(CaptureError, match=r"^v3b cannot be captured: it reads expert ids$"):
        device.capture([once])
    assert device._torch.cuda.current == "caller"
