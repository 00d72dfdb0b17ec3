"""What an A/B bench of kernel variants found: the objects behind ``glqprof.bench/1`` (JSON contract in DESIGN.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

BENCH_SCHEMA = "glqprof.bench/1"

Verdict = Literal["faster", "slower", "not distinguishable"]


@dataclass(frozen=True)
class Reason:
    """Why a variant is not ok, or a warning: a stable ``code`` (docs/bench.md lists all) and one sentence."""

    code: str
    detail: str

    def __str__(self) -> str:
        """Return the line that the tables print."""
        return f"{self.code}: {self.detail}"


@dataclass(frozen=True)
class Clocks:
    """SM and memory clock in MHz and the names of the active throttle reasons ("" = none), as read at one instant."""

    sm_mhz: int
    mem_mhz: int
    throttled: str = ""


@dataclass(frozen=True)
class ClockSummary:
    """The lowest and highest clocks in MHz over all timed blocks, and how many blocks were discarded for throttling.

    ``source`` says who read them (``nvml``, ``nvidia-smi``, or why nobody could).
    """

    source: str
    sm_mhz: tuple[int, int] | None = None
    mem_mhz: tuple[int, int] | None = None
    throttled_blocks: int = 0
    throttle_reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Differing:
    """How far a variant's output lies from the baseline's, over all identity batches.

    ``count`` of ``elements`` differ in at least one byte; ``share`` is their ratio. ``max_abs`` is the largest
    difference among elements finite on both sides, ``max_rel`` the same as a share of the batch's largest finite
    baseline output, and ``batch`` the label of the batch where the most elements differ.
    """

    count: int
    share: float
    elements: int
    max_abs: float
    max_rel: float
    batch: str


@dataclass(frozen=True)
class Timing:
    """One timing of one variant: microseconds of one call (all layers of one decode step).

    ``ratio`` is candidate time ÷ baseline time: the median over quads (A B B A), each √(B₁·B₂ ÷ (A₁·A₂)), and
    ``ratio_ci`` its bootstrap 95 % interval; for the baseline it is A against A. ``reason`` explains the verdict by a
    code of ``glqprof.bench.stats``. ``discarded`` counts quads thrown away because a block was throttled.
    """

    median_us: float
    p10_us: float
    p90_us: float
    ratio: float | None
    ratio_ci: tuple[float, float] | None
    verdict: Verdict | None
    reason: str
    quads: int
    calls_per_block: int
    discarded: int
    noise_floor_pct: float | None


@dataclass(frozen=True)
class Timings:
    """``eager``: as called, host included. ``graph``: replay of a CUDA graph; ``graph_note`` says why there is none."""

    eager: Timing | None
    graph: Timing | None
    graph_note: str = ""


@dataclass(frozen=True)
class VariantResult:
    """Everything found about one variant at one number of rows.

    ``identical`` is against the baseline over random and adversarial batches (None: could not be compared);
    ``max_abs_err`` and ``rel_err`` (‖out − ref‖₂ ÷ ‖ref‖₂, the worst layer) are against float64 on the random ones.
    ``bytes`` is the declared least traffic of a call, ``gb_s`` and ``floor_ratio`` (time ÷ ``floor_us``) use the
    timing named by ``rate_timing``. ``launches`` and ``syncs`` (every wait of the host) were counted in one call.
    ``ok`` is false when any reason stands.
    """

    name: str
    rows: int
    ok: bool
    contract: str
    identical: bool | None
    max_abs_err: float | None
    rel_err: float | None
    differing: Differing | None
    timings: Timings
    bytes: int | None
    gb_s: float | None
    floor_us: float | None
    floor_ratio: float | None
    rate_timing: str | None
    launches: int | None
    syncs: int | None
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True)
class BenchDevice:
    """Where it ran. ``copy_gb_s``: device copy (read + written) measured in this run, the ceiling of every rate."""

    kind: str
    name: str
    capability: str = ""
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    l2_bytes: int = 0
    copy_gb_s: float | None = None


@dataclass(frozen=True)
class CacheState:
    """``state``: ``cold``, ``warm`` or ``uncontrolled``; ``sets`` weight sets rotate, ``bytes`` pass between reuses."""

    state: str
    sets: int
    bytes: int


@dataclass(frozen=True)
class BenchResult:
    """One ``glqprof bench``: the variants at each number of rows, and what a reader needs to believe them."""

    group: str
    geometry: str
    layers: int
    device: BenchDevice
    baseline: str
    variants: tuple[VariantResult, ...]
    rows: tuple[int, ...]
    noise_floor_pct: float | None
    clocks: ClockSummary
    contract: dict[str, str]
    cache: CacheState
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[Reason, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every variant passed every check."""
        return all(variant.ok for variant in self.variants)

    def to_json(self) -> dict[str, Any]:
        """Return the object of the JSON contract: plain dicts, lists and numbers; non-finite numbers become null."""
        plain: dict[str, Any] = {"schema": BENCH_SCHEMA, **asdict(self)}
        return {key: _plain(value) for key, value in plain.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None  # JSON has no NaN; a reader must not get a file that other parsers refuse
    return value


KERNELS_SCHEMA = "glqprof.kernels/1"


@dataclass(frozen=True)
class RunsHere:
    """Whether a variant can run on ``device`` (``cuda`` or ``cpu``) of this machine; ``why`` not ("" if it can)."""

    device: str
    can: bool
    why: str


@dataclass(frozen=True)
class KernelVariant:
    """What ``glqprof kernels`` tells of one variant; ``graph`` is "yes" or the reason why it cannot be captured."""

    name: str
    summary: str
    contract: str
    dtype: str
    min_capability: str
    graph: str
    runs: tuple[RunsHere, ...]


@dataclass(frozen=True)
class KernelGroup:
    """One operation, its geometries and its variants."""

    name: str
    summary: str
    baseline: str
    geometries: tuple[str, ...]
    variants: tuple[KernelVariant, ...]


@dataclass(frozen=True)
class KernelList:
    """All that is bundled or loaded; ``problems`` are modules that could not be imported, and why."""

    groups: tuple[KernelGroup, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object of ``glqprof.kernels/1``."""
        return {"schema": KERNELS_SCHEMA, **_plain(asdict(self))}
