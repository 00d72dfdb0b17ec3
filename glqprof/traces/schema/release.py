"""What a release-note specification says: which runs stand in which order, and the author's words around them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

import msgspec

from glqprof.traces.schema.bench import BenchResult
from glqprof.traces.schema.manifest import Gpu

NO_GPU = "none (CPU)"
"""What a run on the CPU says of its GPU."""


class RowSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A path through the program: its sources (paths from ``root``), at least one of them.

    ``variant`` and ``bench_rows`` pick one result of ``bench``. ``notes`` is the author's Markdown.
    """

    label: str
    capture: str | None = None
    decode: str | None = None
    bench: str | None = None
    variant: str | None = None
    bench_rows: int = 1
    notes: str = ""


class KernelsSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kernels measured alone: variants of a bench file (none named: all) at numbers of rows."""

    bench: str
    variants: list[str] = []
    bench_rows: list[int] = msgspec.field(default_factory=lambda: [1])
    notes: str = ""


class ChangeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section about one change; ``before`` and ``after`` name rows whose captures give its figures."""

    heading: str
    text: str = ""
    before: str | None = None
    after: str | None = None


class FloorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least time of a token of the reference, in one of three ways: ``ms_per_token`` with its ``source``;
    ``bytes_per_token`` with its ``source``, at the copy rate of ``bench``; or the ``floor_us`` of a ``variant`` in
    ``bench``, which covers the benched operation only."""

    source: str = ""
    ms_per_token: float | None = None
    bytes_per_token: int | None = None
    bench: str | None = None
    variant: str | None = None
    bench_rows: int = 1


class GapSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the last row is held against: a row's label, and the floor of that row."""

    reference: str
    text: str = ""
    floor: FloorSpec | None = None


class ReleaseSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A specification, checked. ``reference``: rows outside the accumulation. ``buckets``: a file of bucket rules."""

    title: str
    row: list[RowSpec]
    root: str = "."
    summary: str = ""
    buckets: str | None = None
    change: list[ChangeSpec] = []
    reference: list[RowSpec] = []
    kernels: list[KernelsSpec] = []
    gap: GapSpec | None = None
    not_measured: list[str] = []

    @property
    def rows(self) -> list[RowSpec]:
        """The rows, then the references."""
        return [*self.row, *self.reference]


class DecodeRun(msgspec.Struct, frozen=True):
    """An untraced decode (``glqprof.decode/1``): the fields that are read; others are let through.

    ``token_sha``: over the decoded token ids: ``warmup`` ones, then the ``tokens`` timed ones. ``prompt``: its
    tokens. ``batch``: sequences at once. ``layers``: how many of the model's were built. ``device``: cuda or cpu.
    """

    tok_s: float
    ms_per_token: float
    workload: str = ""
    variant: str = ""
    gpu: str | list[str] | Gpu = ""
    token_sha: str | None = None
    batch: int | None = None
    prompt: int | None = None
    tokens: int | None = None
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    transformers: str = ""
    device: str = ""
    layers: int | None = None
    warmup: int | None = None
    seed: int | None = None
    commit: str = ""
    dirty: bool = False
    warnings: list[str] = []

    @property
    def gpus(self) -> list[str]:
        """Names of the GPUs, where the file has them; of a run on the CPU, that it was one."""
        if self.device == "cpu":
            return [NO_GPU]
        names = [self.gpu.name] if isinstance(self.gpu, Gpu) else [self.gpu] if isinstance(self.gpu, str) else self.gpu
        return [name for name in names if name]


@dataclass(frozen=True)
class NamedBench:
    """A bench result under the name that the specification gives its file."""

    name: str
    result: BenchResult


@dataclass(frozen=True)
class NamedDecode:
    """A decode run under the name that the specification gives its file."""

    name: str
    run: DecodeRun


def shown_name(path: str) -> str:
    """How a source is called in the notes: as the specification has it, of an absolute path only the last part."""
    pure = PurePath(path)
    return pure.name if pure.is_absolute() else pure.as_posix()
