"""One number of rows: identity, the two timings, the cold check and the profiler pass of every variant."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Literal

from glqprof.bench.calls import CallSet, Seeds, calls_per_block
from glqprof.bench.device import Call, CaptureError, Device
from glqprof.bench.identity_pass import IdentityFound, IdentityPass, identity_batches
from glqprof.bench.outputs import OutputCheck
from glqprof.bench.plan import Plan
from glqprof.bench.profile_pass import count_launches
from glqprof.bench.reasons import (
    A_A_DIFFERS,
    BLOCKS_DISCARDED,
    DRIFT,
    IMPOSSIBLE_RATE,
    NOT_CAPTURABLE,
    THROTTLED,
    WARM_L2,
    Findings,
)
from glqprof.bench.roofline import floor_us, rate_gb_s, warm_l2
from glqprof.bench.stats import (
    BASELINE_AGAINST_ITSELF,
    MIN_QUADS,
    NO_BASELINE,
    Comparison,
    compare,
    drift_pct,
    noise_floor_pct,
    percentile,
)
from glqprof.bench.subject import Judged, Subject, anchor_of, one_line
from glqprof.bench.timed import ClockLog, LaunchError, Quads, Timed, time_quads
from glqprof.traces.schema.bench import Timing, Timings, VariantResult

Kind = Literal["eager", "graph"]

DRIFT_PCT = 2.0
"""A drift below this is not worth a line; above it and above the noise floor it is named."""
COLD_REPEATS = 9


@dataclass
class _Times:
    """The timings of one variant as they come in; ``note`` says why there is no graph."""

    eager: Timing | None = None
    graph: Timing | None = None
    note: str = ""


@dataclass
class RowBench:
    """Benches every variant of a plan at one number of rows; ``tick`` is told of every finished step."""

    plan: Plan
    device: Device
    workloads: Sequence[Any]
    subjects: Mapping[str, Subject]
    rows: int
    log: ClockLog
    ceiling_gb_s: float | None
    warnings: Findings
    tick: Callable[[str], None]
    floors: dict[Kind, float | None] = field(default_factory=dict)

    def run(self) -> list[VariantResult]:
        """Return one result per variant, the baseline first."""
        plan = self.plan
        self._seeds = Seeds(plan.seed)
        self._numbers = itertools.count(1)
        self._judged = {
            variant.name: Judged(
                self.subjects[variant.name], self.subjects[anchor_of(variant, plan.baseline.name)], plan.group
            )
            for variant in plan.variants
        }
        self._times = {name: _Times() for name in self._judged}
        identity = self._identity()
        self._time("eager")
        self._time("graph")
        return [self._result(judged, identity[name]) for name, judged in self._judged.items()]

    # --- identity ---------------------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, IdentityFound]:
        first_seed = self._seeds.call(next(self._numbers), 0)
        batches = identity_batches(self.plan, self.workloads[0], self.rows, first_seed)
        baseline = self.subjects[self.plan.baseline.name]
        identity = IdentityPass(self.plan, self.workloads[0], batches, baseline)
        found = {}
        for name, judged in self._judged.items():
            found[name] = IdentityFound() if judged.dead else identity.check(judged)
            self.tick(f"{name}: bits compared")
        return found

    # --- timing -----------------------------------------------------------------------------------------------------

    def _time(self, kind: Kind) -> None:
        pilots = {name: self._pilot(kind, judged) for name, judged in self._judged.items() if not judged.dead}
        base_name = self.plan.baseline.name
        for name, judged in self._judged.items():  # the baseline comes first: its A/A is the others' noise floor
            mine, theirs = pilots.get(name), pilots.get(base_name)
            if mine is not None and not judged.dead:
                partner = self._judged[base_name] if theirs is not None and not self._judged[base_name].dead else judged
                self._time_pair(kind, partner, judged, (mine, theirs if theirs is not None else mine))
            self.tick(f"{name}: {kind} timed")

    def _pilot(self, kind: Kind, judged: Judged) -> float | None:
        """Return the seconds of one call, roughly; None when this variant has no such timing."""
        variant, times = judged.subject.variant, self._times[judged.subject.name]
        if kind == "graph" and (self.device.graph_note or not variant.capturable):
            times.note = self.device.graph_note or variant.capture_note or "declared not capturable"
            return None
        calls = self._calls(len(self.workloads))
        try:
            launch = self._launch(kind, judged, calls)
            return min(self._seconds(launch) for _ in range(3)) / len(calls.outs)
        except CaptureError as error:
            times.note = str(error)
            judged.findings.add(NOT_CAPTURABLE, str(error))
        except Exception as error:  # foreign code
            judged.fail(f"{kind}: {one_line(error)}")
        return None

    def _time_pair(self, kind: Kind, a: Judged, b: Judged, seconds: tuple[float, float]) -> None:
        plan = self.plan
        count = calls_per_block(len(self.workloads), min(seconds), max(seconds), plan.block_s, plan.limit_s)
        calls = self._calls(count)
        try:
            side_b = self._timed(kind, b, calls)
            side_a = side_b if a is b else self._timed(kind, a, calls)
            quads = time_quads(self.device, calls, side_a, side_b, plan.quads, self._numbers, self.log)
        except LaunchError as error:
            error.judged.fail(f"{kind}: {one_line(error.__cause__ or error)}")
            return
        except Exception as error:  # foreign code, in a capture or in the judging of outputs
            b.fail(f"{kind}: {one_line(error)}")
            return
        name = b.subject.name
        if len(quads.kept) < min(MIN_QUADS, plan.quads):
            detail = (
                f"{kind}: {quads.discarded} quads discarded ({', '.join(self.log.reasons)}), {len(quads.kept)} left"
            )
            b.findings.add(THROTTLED, detail)
            return
        if quads.discarded:
            self.warnings.add(BLOCKS_DISCARDED, f"{name}, rows {self.rows}, {kind}: {quads.discarded} quads")
        timing = self._timing(kind, a, b, quads, count)
        self._drift(kind, name, quads)
        setattr(self._times[name], kind, timing)
        if kind == "graph":
            self._check_graph(b, calls, side_b.launch)

    def _timing(self, kind: Kind, a: Judged, b: Judged, quads: Quads, calls: int) -> Timing:
        baseline = b.subject.name == self.plan.baseline.name
        if a is b:
            own_floor = noise_floor_pct(quads.kept, self.plan.seed)
            found = compare(quads.kept, None, self.plan.seed)
            if baseline:
                self.floors[kind] = own_floor
                if found.verdict != "not distinguishable":
                    self.warnings.add(
                        A_A_DIFFERS, f"rows {self.rows}, {kind}: {found.verdict}, ratio {found.ratio:.4f}"
                    )
                found = Comparison(found.ratio, found.interval, "not distinguishable", BASELINE_AGAINST_ITSELF)
            us = [1e6 * s for s in quads.seconds("A") + quads.seconds("B")]
            floor = own_floor
        else:
            floor = self.floors.get(kind)
            found = compare(quads.kept, floor, self.plan.seed)
            us = [1e6 * s for s in quads.seconds("B")]
        alone = a is b and not baseline
        return Timing(
            median_us=median(us),
            p10_us=percentile(us, 10),
            p90_us=percentile(us, 90),
            ratio=None if alone else found.ratio,
            ratio_ci=None if alone else found.interval,
            verdict=None if alone else found.verdict,
            reason=NO_BASELINE if alone else found.reason,
            quads=len(quads.kept),
            calls_per_block=calls,
            discarded=quads.discarded,
            noise_floor_pct=floor,
        )

    def _drift(self, kind: Kind, name: str, quads: Quads) -> None:
        drift = drift_pct(quads.kept)
        if abs(drift) > max(DRIFT_PCT, self.floors.get(kind) or 0.0):
            way = "slower" if drift > 0 else "faster"
            detail = f"rows {self.rows}, {kind}, beside {name}: the baseline's own blocks got {abs(drift):.1f} % {way}"
            self.warnings.add(DRIFT, detail)

    def _check_graph(self, judged: Judged, calls: CallSet, replay: Call) -> None:
        try:
            if self.device.l2_bytes and not self.plan.warm:
                self._cold_check(judged, calls)
            count_launches(self.device, judged, calls, replay, self.warnings)
        except Exception as error:  # the variant's declarations are foreign code too
            judged.fail(f"graph checks: {one_line(error)}")

    def _cold_check(self, judged: Judged, calls: CallSet) -> None:
        """Time one captured call after a rotation, after emptying the L2, and right after itself."""
        device = self.device
        runs = self._run_calls(judged, calls)
        rotation, call = device.capture(runs[: len(self.workloads)]), device.capture(runs[:1])

        def typical_us(*before: Call) -> float:
            times = [device.seconds_after([device.flush_l2, *before], call) for _ in range(COLD_REPEATS)]
            return 1e6 * median(times)

        rotated, cold, warm = typical_us(rotation), typical_us(), typical_us(call)
        if warm_l2(rotated, cold, warm):
            detail = f"{rotated:.1f} µs after a rotation, {cold:.1f} µs with the L2 emptied, {warm:.1f} µs right again"
            judged.findings.add(WARM_L2, detail)

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _calls(self, count: int) -> CallSet:
        return CallSet(self.plan.group, self.workloads, self.rows, count, self._seeds, self.plan.warm)

    def _run_calls(self, judged: Judged, calls: CallSet) -> list[Call]:
        def call(index: int) -> Call:
            run = judged.subject.runs[index % len(judged.subject.runs)]
            batch, out = calls.batches[index], calls.outs[index]
            return lambda: run(batch, out)

        return [call(index) for index in range(len(calls.outs))]

    def _launch(self, kind: Kind, judged: Judged, calls: CallSet) -> Call:
        runs = self._run_calls(judged, calls)
        if kind == "graph":
            return self.device.capture(runs)

        def eager() -> None:
            for run in runs:
                run()

        return eager

    def _timed(self, kind: Kind, judged: Judged, calls: CallSet) -> Timed:
        return Timed(self._launch(kind, judged, calls), OutputCheck(judged, calls, graph=kind == "graph"))

    def _seconds(self, launch: Call) -> float:
        self.device.synchronize()
        start = self.device.now()
        launch()
        self.device.synchronize()
        return self.device.now() - start

    # --- the result -------------------------------------------------------------------------------------------------

    def _result(self, judged: Judged, identity: IdentityFound) -> VariantResult:
        variant, times = judged.subject.variant, self._times[judged.subject.name]
        launches = syncs = call_bytes = None
        if not judged.dead:
            try:
                calls = self._calls(len(self.workloads))
                launches, syncs = count_launches(self.device, judged, calls, None, self.warnings)
                pairs = zip(calls.workloads, calls.batches, strict=True)
                call_bytes = round(fmean(variant.bytes_moved(workload, batch) for workload, batch in pairs))
            except Exception as error:
                judged.fail(f"profiled call: {one_line(error)}")
        self.tick(f"{variant.name}: launches counted")
        rate_kind: Kind | None = "graph" if times.graph else ("eager" if times.eager else None)
        timing = times.graph or times.eager
        rate = floor = None
        if timing is not None and call_bytes is not None:
            rate = rate_gb_s(call_bytes, timing.median_us)
            if self.ceiling_gb_s is not None:
                floor = floor_us(call_bytes, self.ceiling_gb_s)
                self._impossible(judged, times, call_bytes)
        reasons = judged.findings.reasons()
        return VariantResult(
            name=variant.name,
            rows=self.rows,
            ok=not reasons,
            contract=str(variant.contract),
            identical=identity.identical,
            max_abs_err=identity.max_abs_err,
            rel_err=identity.rel_err,
            differing=identity.differing,
            timings=Timings(times.eager, times.graph, times.note),
            bytes=call_bytes,
            gb_s=rate,
            floor_us=floor,
            floor_ratio=timing.median_us / floor if timing is not None and floor else None,
            rate_timing=rate_kind if call_bytes is not None else None,
            launches=launches,
            syncs=syncs,
            reasons=reasons,
        )

    def _impossible(self, judged: Judged, times: _Times, call_bytes: int) -> None:
        if self.plan.warm or self.ceiling_gb_s is None:
            return  # what is in cache may be read faster than memory can be copied
        for kind, timing in (("eager", times.eager), ("graph", times.graph)):
            if timing is None:
                continue
            rate = rate_gb_s(call_bytes, timing.median_us)
            if rate > self.ceiling_gb_s:
                detail = f"{kind}: {rate:.0f} GB/s, above the {self.ceiling_gb_s:.0f} GB/s that this device copies"
                judged.findings.add(IMPOSSIBLE_RATE, detail)
