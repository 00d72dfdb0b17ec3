"""`NcuReport`: one schema for what Nsight Compute measured, whether it came as ``.ncu-rep`` or as CSV.

Metrics carry ncu's own names (``gpu__time_duration.sum``), in base units: nanoseconds for times, bytes, hertz, and
``/s`` for rates; percentages stay percent. A metric that ncu printed as ``n/a``, that is not finite or that holds no
value is absent from the mapping: it is missing, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Dim3 = tuple[int, int, int]

_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
# ncu's time units by version: usecond (to 2023), us (from 2024).
_TIME_NS = {
    "ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6,
    "s": 1e9, "sec": 1e9, "second": 1e9, "m": 6e10, "minute": 6e10, "h": 3.6e12, "hour": 3.6e12,
}  # fmt: skip
_SCALED = re.compile(r"^([KMGTP]?)(byte|hz)$", re.IGNORECASE)


def base_unit(unit: str) -> tuple[str, float]:
    """The base unit of a printed unit and the factor that turns a value into it.

    >>> base_unit("Gbyte/s")
    ('byte/s', 1000000000.0)
    >>> base_unit("usecond")
    ('ns', 1000.0)
    >>> base_unit("cycle/nsecond")
    ('hz', 1000000000.0)

    Units that ncu does not scale (``%``, ``inst/cycle``, ``register/thread``) come back as they are.
    """
    top, slash, bottom = unit.strip().partition("/")
    if not slash:
        if top in _TIME_NS:
            return "ns", _TIME_NS[top]
        return _scaled(top)
    name, factor = _scaled(top)
    if bottom in _TIME_NS:
        factor *= 1e9 / _TIME_NS[bottom]
        return ("hz" if name == "cycle" else f"{name}/s"), factor
    under, divisor = _scaled(bottom)
    return f"{name}/{under}", factor / divisor


def _scaled(unit: str) -> tuple[str, float]:
    match = _SCALED.match(unit)
    if match is None:
        return unit, 1.0
    return match[2].lower(), _SCALE[match[1].upper()]


@dataclass(frozen=True)
class RuleResult:
    """One result of ncu's own rules: ``kind`` is OPT, INF, WRN or ERR; ``speedup_pct`` is ncu's own estimate, of the
    whole kernel (``scope`` "global") or of one part ("local"); None where it gave none."""

    rule: str
    section: str
    kind: str
    text: str
    speedup_pct: float | None = None
    scope: str = ""


@dataclass(frozen=True)
class Launch:
    """One profiled launch. ``id`` is ncu's own and unique in a report, names are not.

    ``workload``: kernel, or range, graph … where ncu profiled more than one kernel at once (those have no grid).
    ``metrics``: numbers in base units, ``texts``: metrics that are words.
    """

    id: int
    name: str
    grid: Dim3 | None
    block: Dim3 | None
    device: int | None = None
    compute_capability: str = ""
    context: int | None = None
    stream: str = ""
    process: int | None = None
    workload: str = "kernel"
    metrics: Mapping[str, float] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[RuleResult, ...] = ()

    def first(self, *names: str) -> float | None:
        """The first of these metrics that was measured; names differ between GPUs and ncu versions."""
        for name in names:
            if name in self.metrics:
                return self.metrics[name]
        return None


@dataclass(frozen=True)
class NcuReport:
    """The launches of one report, in the order of their ids, with the base unit of each metric.

    ``source``: ncu-rep, raw or details (CSV pages). ``notes``: what a reader should know of the file, in sentences.
    """

    name: str
    source: str
    launches: tuple[Launch, ...]
    units: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def frame(self, *names: str) -> pd.DataFrame:
        """Launches as rows (indexed by id), metrics as float64 columns; NaN is missing. Default: every metric."""
        import pandas as pd

        chosen: list[str] = list(names) or sorted({n for launch in self.launches for n in launch.metrics})
        data: dict[str, Any] = {"name": [launch.name for launch in self.launches]}
        columns = {n: [launch.metrics.get(n, float("nan")) for launch in self.launches] for n in chosen}
        return pd.DataFrame(data | columns, index=pd.Index([launch.id for launch in self.launches], name="id"))
