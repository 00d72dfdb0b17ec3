"""Kernels measured alone, and whether their bits are the baseline's: what a bench file holds of a variant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glqprof.errors import InputError
from glqprof.traces.schema.bench import BenchResult, VariantResult
from glqprof.traces.schema.release import NamedBench


@dataclass(frozen=True)
class KernelLine:
    """One variant at one number of rows; ``bench`` is the whole result it is from."""

    variant: VariantResult
    group: str
    baseline: str
    source: int
    bench: NamedBench

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelLine) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, int, int]:
        return self.variant.name, self.variant.rows, self.source

    @property
    def failed(self) -> str:
        """The reason codes of a variant that did not pass: its times are then no result."""
        return "" if self.variant.ok else ", ".join(dict.fromkeys(r.code for r in self.variant.reasons)) or "not ok"


@dataclass(frozen=True)
class Bits:
    """A variant's bytes against the baseline's at every number of rows that its file holds.

    ``identical``: True where all were equal, False where some differed, None where any could not be compared.
    ``differing``: rows, share of the output elements that differ, largest difference as a share of the largest output.
    """

    variant: str
    baseline: str
    contract: str
    identical: bool | None
    rows: tuple[int, ...]
    elements: int
    differing: tuple[tuple[int, float, float], ...]
    source: int


def kernel_line(bench: NamedBench, variant: str, rows: int, source: int) -> KernelLine:
    """Find a variant in a bench; raises InputError where it is not in it."""
    return KernelLine(variant_at(bench, variant, rows), bench.result.group, bench.result.baseline, source, bench)


def variant_at(bench: NamedBench, variant: str, rows: int) -> VariantResult:
    """A variant at a number of rows; raises InputError that names what the file has instead."""
    for found in bench.result.variants:
        if (found.name, found.rows) == (variant, rows):
            return found
    names = ", ".join(dict.fromkeys(v.name for v in bench.result.variants))
    counts = ", ".join(str(r) for r in dict.fromkeys(v.rows for v in bench.result.variants))
    raise InputError(bench.name, f"holds no {variant!r} at {rows} rows; it has {names} at {counts} rows")


def bits_of(lines: Iterable[KernelLine]) -> list[Bits]:
    """One for each variant of ``lines`` but the baselines, in their order."""
    found: dict[tuple[str, int], Bits] = {}
    for line in lines:
        key = (line.variant.name, line.source)
        if key not in found and line.variant.name != line.baseline:
            found[key] = _bits(line.bench.result, line.variant.name, line.source)
    return list(found.values())


def _bits(result: BenchResult, variant: str, source: int) -> Bits:
    mine = [v for v in result.variants if v.name == variant]
    answers = [v.identical for v in mine]
    identical = False if False in answers else None if None in answers else True
    return Bits(
        variant=variant,
        baseline=result.baseline,
        contract=mine[0].contract or result.contract.get(variant, ""),
        identical=identical,
        rows=tuple(v.rows for v in mine),
        elements=sum(v.differing.elements for v in mine if v.differing),
        differing=tuple(
            (v.rows, v.differing.share, v.differing.max_rel) for v in mine if v.differing and v.differing.count
        ),
        source=source,
    )
