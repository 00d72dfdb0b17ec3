"""Where the time of one capture went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from glqprof.analysis.account import IDLE_ROWS, Account
from glqprof.analysis.answers import NO, Answer, answer_all, refuse_unusable, runaway_work
from glqprof.analysis.gaps import COLUMNS as GAP_COLUMNS
from glqprof.analysis.gaps import largest_gaps
from glqprof.analysis.gpu_time import sum_by_bucket, sum_by_kernel, sum_by_layer
from glqprof.analysis.host import HostCounts, count_host_calls, launch_latency
from glqprof.analysis.prepared import Prepared, prepare
from glqprof.analysis.shown import Shown
from glqprof.analysis.tokens import StepSpread, step_spread, step_table
from glqprof.analysis.window import Window
from glqprof.traces.schema.buckets import BucketRule, load_bucket_rules
from glqprof.traces.schema.manifest import Manifest, Untraced
from glqprof.traces.schema.trace import Trace

GPU_BOUND_SHARE = 0.9
HOST_BOUND_SHARE = 0.5


class CaptureLike(Protocol):
    """What `breakdown` reads of a capture."""

    name: str
    trace: Trace
    manifest: Manifest | None


@dataclass(frozen=True)
class DeviceTime:
    """One GPU. ``account`` is None where the capture cannot tell idle from busy. ``kernels``: see `sum_by_kernel`;
    ``buckets``: see `sum_by_bucket`."""

    device: int
    name: str
    account: Account | None
    kernels: pd.DataFrame
    buckets: pd.DataFrame

    @property
    def kernel_count(self) -> int:
        """Kernels that started in the window."""
        return int(self.kernels.loc[self.kernels["is_kernel"], "launches"].sum())

    @property
    def kernel_sum_ns(self) -> int:
        """Their summed time."""
        return int(self.kernels.loc[self.kernels["is_kernel"], "sum_ns"].sum())


@dataclass(repr=False)
class Breakdown(Shown):
    """The answers of one capture about one window; reports render it, `compare` subtracts two of them.

    ``tokens``: decoded tokens in the window, None where no step is known. ``inflation``: traced ÷ untraced
    milliseconds a token. ``verdict``: GPU-bound, host-bound or mixed, with a reason code; None where idle time is not
    known. ``unattributed_share``: share of the summed GPU time that no bucket rule matched.
    """

    name: str
    trace: Trace
    manifest: Manifest | None
    window: Window
    tokens: int | None
    devices: list[DeviceTime]
    host: HostCounts | None
    answers: dict[str, Answer]
    untraced: Untraced | None
    inflation: float | None
    verdict: str | None
    verdict_reason: str
    unattributed_share: float
    warnings: list[str]
    prepared: Prepared

    def per_token(self, value: float) -> float | None:
        """A quantity per decoded token, None where tokens are not known."""
        return value / self.tokens if self.tokens else None

    @cached_property
    def steps(self) -> pd.DataFrame:
        """See `step_table`."""
        return step_table(self.prepared)

    @cached_property
    def step_spread(self) -> StepSpread | None:
        """See `glqprof.analysis.tokens.step_spread`; None where idle time or steps are not known."""
        return step_spread(self.prepared) if self.answers["gpu_idle"].answer != NO else None

    @cached_property
    def layers(self) -> pd.DataFrame:
        """See `sum_by_layer`; empty where the capture has no layers."""
        return sum_by_layer(self.prepared)

    @cached_property
    def latency(self) -> pd.DataFrame:
        """See `launch_latency`."""
        return launch_latency(self.prepared)

    def gaps(self, count: int = 10) -> pd.DataFrame:
        """See `largest_gaps`; over all GPUs, longest first; empty where idle time is not known."""
        tables = [largest_gaps(self.prepared, d.account, count) for d in self.devices if d.account is not None]
        tables = [t for t in tables if len(t)]
        if not tables:
            return pd.DataFrame(columns=GAP_COLUMNS)
        merged = pd.concat(tables, ignore_index=True)
        return merged.sort_values("idle_us", ascending=False, kind="stable").head(count).reset_index(drop=True)

    @cached_property
    def wall(self) -> pd.DataFrame:
        """The closed account: device, row, kind (gpu or idle), ns, ms, share, ms_per_token; busy rows first, largest
        first, then idle rows in the order of the definition."""
        rows = []
        for device in self.devices:
            if device.account is None:
                continue
            busy = sorted(device.account.busy_ns.items(), key=lambda item: (-item[1], item[0]))
            idle = [(r, device.account.idle_ns[r]) for r in IDLE_ROWS if r in device.account.idle_ns]
            wall = max(device.account.wall_ns, 1)
            for kind, items in (("gpu", busy), ("idle", idle)):
                for row, ns in items:
                    rows.append((device.device, row, kind, ns, ns / 1e6, ns / wall, self.per_token(ns / 1e6)))
        return pd.DataFrame(rows, columns=["device", "row", "kind", "ns", "ms", "share", "ms_per_token"])

    @cached_property
    def savings(self) -> pd.DataFrame:
        """What could be saved at most: change, at_most_ms, share, ms_per_token; averaged over the GPUs.

        ``remove host syncs``: the idle time in synchronising calls and blocking copies. ``replay one CUDA graph a
        step``: all idle time but what stays when the host does nothing more than launch: an upper bound, since the
        graph's own launch and the gaps between its kernels remain.
        """
        accounts = [d.account for d in self.devices if d.account is not None]
        if not accounts:
            return pd.DataFrame(columns=["change", "at_most_ms", "share", "ms_per_token"])
        sync = float(np.mean([a.idle_ns.get("host-sync", 0) for a in accounts]))
        idle = float(np.mean([a.gpu_idle_ns for a in accounts]))
        rows = [("remove host syncs", sync), ("replay one CUDA graph a step", idle)]
        wall = max(self.window.wall_ns, 1)
        return pd.DataFrame(
            [(c, ns / 1e6, ns / wall, self.per_token(ns / 1e6)) for c, ns in rows],
            columns=["change", "at_most_ms", "share", "ms_per_token"],
        )

    def __repr__(self) -> str:
        tokens = f", {self.tokens} tokens" if self.tokens else ""
        window = f"{self.window.selector}: {self.window.wall_ns / 1e6:,.1f} ms{tokens}"
        return f"<Breakdown of {self.name}, {window}, {self.verdict or 'no verdict'}>"


def breakdown(
    capture: CaptureLike,
    *,
    window: str | None = None,
    device: int | None = None,
    process: int | None = None,
    stream: int | None = None,
    buckets: Sequence[BucketRule] | None = None,
) -> Breakdown:
    """Say where the time of a capture went.

    ``window``: ``nvtx:GLOB``, ``all``, ``START:END`` in seconds from the first event; default the ``decode_token*``
    ranges. ``device``, ``process``, ``stream`` narrow the GPU work. ``buckets``: rules, default the bundled ones.
    Raises InputError when the capture holds no GPU work or a selector matches nothing.
    """
    trace, manifest = capture.trace, capture.manifest
    refuse_unusable(trace)
    rules = list(buckets) if buckets is not None else load_bucket_rules()
    prepared = prepare(trace, rules, window, device, process, stream)
    untraced = manifest.untraced if manifest else None
    answers = answer_all(prepared, untraced)
    idle_known = answers["gpu_idle"].answer != NO
    devices = []
    for number in prepared.devices:
        kernels = sum_by_kernel(prepared, number)
        account = prepared.account(number) if idle_known else None
        devices.append(DeviceTime(number, _gpu_name(trace, manifest, number), account, kernels, sum_by_bucket(kernels)))
    tokens = _tokens(prepared, manifest)
    summed = sum(int(d.buckets["sum_ns"].sum()) for d in devices)
    other = sum(int(d.buckets.loc[d.buckets["bucket"] == "other", "sum_ns"].sum()) for d in devices)
    unattributed = other / summed if summed else 0.0
    verdict, reason = _verdict(devices)
    has_api = len(trace.api) > 0 and trace.info.vendor == "nvidia"
    inflation = None
    if untraced and tokens and answers["wall_time"].answer != NO:
        inflation = prepared.window.wall_ns / 1e6 / tokens / untraced.ms_per_token
    return Breakdown(
        name=capture.name,
        trace=trace,
        manifest=manifest,
        window=prepared.window,
        tokens=tokens,
        devices=devices,
        host=count_host_calls(prepared, with_idle=idle_known) if has_api else None,
        answers=answers,
        untraced=untraced,
        inflation=inflation,
        verdict=verdict,
        verdict_reason=reason,
        unattributed_share=unattributed,
        warnings=_warnings(prepared, manifest, unattributed, inflation),
        prepared=prepared,
    )


def _tokens(prepared: Prepared, manifest: Manifest | None) -> int | None:
    """Tokens in the window: the manifest's per step where it says, else one a step."""
    steps = len(prepared.window.steps)
    if not steps:
        return None
    if manifest and manifest.tokens:
        from glqprof.analysis.window import resolve_window

        whole = len(resolve_window(prepared.trace, prepared.work, None).steps)
        if whole:
            return round(manifest.tokens / whole * steps)
    return steps * (manifest.batch if manifest else 1)


def _gpu_name(trace: Trace, manifest: Manifest | None, device: int) -> str:
    named = trace.devices.loc[trace.devices["device"] == device, "name"]
    if len(named) and named.iloc[0]:
        return str(named.iloc[0])
    if manifest and device < len(manifest.gpus):
        return manifest.gpus[device].name
    return ""


def _verdict(devices: list[DeviceTime]) -> tuple[str | None, str]:
    accounts = [d.account for d in devices if d.account is not None]
    if not accounts:
        return None, "gpu-idle-unknown"
    wall = sum(a.wall_ns for a in accounts)
    busy = sum(a.gpu_busy_ns for a in accounts) / wall if wall else 0.0
    if busy >= GPU_BOUND_SHARE:
        return "GPU-bound", "gpu-busy-at-least-90-pct"
    if busy <= HOST_BOUND_SHARE:
        return "host-bound", "gpu-busy-at-most-50-pct"
    return "mixed", "gpu-busy-between-50-and-90-pct"


def _warnings(prepared: Prepared, manifest: Manifest | None, unattributed: float, inflation: float | None) -> list[str]:
    found = list(prepared.trace.warnings) + (list(manifest.warnings) if manifest else [])
    if prepared.window.note:
        found.append(prepared.window.note)
    for index in runaway_work(prepared)[:3].tolist():
        length = int(prepared.work.end[index] - prepared.work.start[index]) / 1e6
        name = prepared.name_of(index)
        found.append(f"{name} of {length:,.2f} ms spans later work of its own stream: not believable")
    if unattributed > 0.02:
        found.append(f"{unattributed:.1%} of GPU time matches no bucket rule; add rules with --buckets")
    if inflation and inflation > 1.1:
        found.append(f"tracing inflated the run {inflation:.2f}x: host rows are trustworthy in kind, not in size")
    return found
