"""Windows, steps and tokens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import glqprof
from analysis.by_hand import Activity, Call, Recording
from analysis.make_trace import make_trace
from glqprof.analysis.prepared import prepare
from glqprof.errors import InputError
from glqprof.traces.schema.manifest import Manifest
from glqprof.traces.schema.trace import Trace

KERNELS = [Activity(0, 1_000_000_000 + 100 * i, 1_000_000_000 + 100 * i + 50, 7, 1, i) for i in range(10)]
CALLS = [Call(1, 10, a.start - 20, a.start - 10, "cudaLaunchKernel", i) for i, a in enumerate(KERNELS)]
T0 = CALLS[0].start


@dataclass
class FakeCapture:
    name: str
    trace: Trace
    manifest: Manifest | None = None


def manifest(**fields: object) -> Manifest:
    return Manifest(schema="glqprof.capture/1", name="x", tool="nsys", tool_version="0", files=["f"], **fields)  # type: ignore[arg-type]


def steps(process: int = 1, shift: int = 0) -> list[tuple[int, int, str, int, int]]:
    return [(T0 + 500 * i + shift, T0 + 500 * i + 490 + shift, f"decode_token_{i}", process, 10) for i in range(2)]


def test_default_runs_from_the_first_start_to_the_last_end_of_the_steps() -> None:
    window = prepare(make_trace(Recording(KERNELS, CALLS), steps()), []).window
    assert (window.start_ns, window.end_ns, len(window.steps)) == (T0, T0 + 990, 2)


def test_without_steps_the_window_is_all_gpu_work_and_says_so() -> None:
    window = prepare(make_trace(Recording(KERNELS, CALLS)), []).window
    assert (window.start_ns, window.end_ns) == (KERNELS[0].start, KERNELS[-1].end)
    assert "no range matches decode_token*" in window.note
    assert len(window.steps) == 0


def test_seconds_count_from_the_first_event() -> None:
    recording = Recording(
        [Activity(0, 5_000_000_000, 6_000_000_000, 7, 1, -1)], [Call(1, 1, 2_000_000_000, 2_000_000_001, "x", 0)]
    )
    window = prepare(make_trace(recording), [], "1:3.5").window
    assert (window.start_ns, window.end_ns) == (3_000_000_000, 5_500_000_000)


def test_all_spans_every_event() -> None:
    window = prepare(make_trace(Recording(KERNELS, CALLS), steps()), [], "all").window
    assert (window.start_ns, window.end_ns) == (T0, T0 + 990)
    assert len(window.steps) == 2


def test_tensor_parallel_processes_do_not_double_the_steps() -> None:
    """The same two tokens on two processes, once overlapping and once shifted past each other."""
    for shift in (3, 495):
        trace = make_trace(Recording(KERNELS, CALLS), steps() + steps(process=2, shift=shift))
        assert len(prepare(trace, []).window.steps) == 2


def test_repeats_of_one_name_that_follow_each_other_are_steps_of_their_own() -> None:
    ranges = [(T0 + 300 * i, T0 + 300 * i + 200, "decode_token", 1, 10) for i in range(3)]
    assert len(prepare(make_trace(Recording(KERNELS, CALLS), ranges), []).window.steps) == 3


def test_a_selector_that_matches_nothing_lists_what_exists() -> None:
    with pytest.raises(InputError, match=r"decode_token_\* \(2\)"):
        prepare(make_trace(Recording(KERNELS, CALLS), steps()), [], "nvtx:layer_99")


@pytest.mark.parametrize("selector", ["nonsense", "5", "3:1", "900:901", "nvtx"])
def test_malformed_or_empty_windows_are_refused(selector: str) -> None:
    with pytest.raises(InputError):
        prepare(make_trace(Recording(KERNELS, CALLS), steps()), [], selector)


def test_tokens_come_from_the_manifest_when_it_says() -> None:
    trace = make_trace(Recording(KERNELS, CALLS), steps())
    assert glqprof.breakdown(FakeCapture("x", trace)).tokens == 2
    assert glqprof.breakdown(FakeCapture("x", trace, manifest(batch=4))).tokens == 8
    drafted = manifest(tokens=7)
    assert glqprof.breakdown(FakeCapture("x", trace, drafted)).tokens == 7
    # Half of the steps: half of the tokens, rounded.
    assert glqprof.breakdown(FakeCapture("x", trace, drafted), window="nvtx:decode_token_0").tokens == 4


def test_narrowing_to_a_device_stream_or_process_that_did_nothing_is_refused() -> None:
    trace = make_trace(Recording(KERNELS, CALLS), steps())
    with pytest.raises(InputError, match="it holds 0"):
        prepare(trace, [], device=3)
    with pytest.raises(InputError, match="it holds 7"):
        prepare(trace, [], stream=3)
    with pytest.raises(InputError, match="it holds 1"):
        prepare(trace, [], process=3)


def test_conventional_counts_take_what_starts_inside_and_the_account_clips() -> None:
    """The window 120 to 320 ns into the run: kernels start at 220 and 320−; one runs over the edge."""
    ranges = [(KERNELS[0].start + 20, KERNELS[0].start + 210, "w", 1, 10)]
    result = glqprof.breakdown(FakeCapture("x", make_trace(Recording(KERNELS, CALLS), ranges)), window="nvtx:w")
    (device,) = result.devices
    assert device.kernel_count == 2  # those that start at +100 and +200, not the one from +0
    assert device.kernel_sum_ns == 100  # whole, although the second ends outside
    assert device.account is not None
    assert device.account.gpu_busy_ns == 30 + 50 + 10  # clipped: +20..+50, +100..+150, +200..+210
