"""What a kernel variant and its group declare, and the table in which the bench finds them.

A *group* is one operation that can be computed in several ways (``glq-moe``); a *variant* is one of those ways. The
declarations are claims that the bench checks: kernels and syncs are counted, bytes are compared, rates are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Tensor = Any  # torch.Tensor: named here without importing torch


class Workload(Protocol):
    """The weights of every layer of one model, on one device; made by a group's ``workload``."""

    geometry: str
    layers: int
    device: str


class Batch(Protocol):
    """The inputs of one call (all layers of one decode step), made by a group's ``batch``."""

    rows: int

    def input_tensors(self) -> Sequence[Tensor]:
        """Every tensor that a call reads besides the weights, for hashing and for proving that it was fresh."""
        ...


Run = Callable[[Any, Tensor], None]
"""``run(batch, out)``: computes every layer and writes ``out`` ([layers, rows, hidden]) in full."""


@dataclass(frozen=True)
class SameBits:
    """The variant's output equals the named variant's, byte for byte."""

    as_variant: str

    def __str__(self) -> str:
        """Return the contract in the words of the tables."""
        return f"same bits as {self.as_variant}"


@dataclass(frozen=True)
class Tolerance:
    """The variant's output is within ``rel_err`` of float64: ‖out − ref‖₂ ÷ ‖ref‖₂."""

    rel_err: float

    def __str__(self) -> str:
        """Return the contract in the words of the tables."""
        return f"within {self.rel_err:g} of float64"


@dataclass
class LaunchLog:
    """What a CPU implementation did in the place of launches, so that counts are checked without a GPU too.

    A variant's CPU run appends the kernel's name where its CUDA schedule launches that kernel, and counts its host
    synchronisations. The bench calls ``clear`` before one call and reads the fields after it.
    """

    kernels: list[str] = field(default_factory=list)
    syncs: int = 0
    blocking_copies: int = 0

    def clear(self) -> None:
        """Forget what was logged so far."""
        self.kernels.clear()
        self.syncs = 0
        self.blocking_copies = 0


@dataclass(frozen=True)
class Variant:
    """One way to compute a group's operation.

    ``build(workload)`` does everything that happens once (compile, re-lay weights out, allocate scratch) and returns
    the ``Run`` that is timed. ``kernels(workload, batch)`` maps a regular expression on the kernel name to the launches
    expected in one call (−1: any number, for a library's own kernels, which differ between its versions); a launch that
    no expression matches means that a fallback ran. ``syncs`` and
    ``blocking_copies`` are the host synchronisations of one call: the bench counts every wait of the host (calls named
    ``*Synchronize`` and blocking copies) and compares it with their sum, since torch's ``.item()`` and ``.cpu()`` are
    both one copy and one wait. ``bytes_moved`` is the least device memory traffic of one call in bytes: each input read
    once, each output written once. ``launch_log`` is what the CPU implementation writes to; without it, launches and
    syncs are not counted on the CPU. ``needs`` names programs that must be present, such as ``nvcc``, to run on CUDA.
    ``unavailable(device)`` says why the variant cannot run on ``cuda`` or ``cpu`` here, such as a library that is not
    installed, "" if it can; a bench leaves unavailable variants out, and refuses one that is asked for by name.
    """

    name: str
    group: str
    summary: str
    contract: SameBits | Tolerance
    build: Callable[[Any], Run]
    kernels: Callable[[Any, Any], Mapping[str, int]]
    bytes_moved: Callable[[Any, Any], int]
    syncs: Callable[[Any, Any], int] = lambda workload, batch: 0
    blocking_copies: Callable[[Any, Any], int] = lambda workload, batch: 0
    devices: tuple[str, ...] = ("cuda", "cpu")
    min_capability: tuple[int, int] = (8, 0)
    dtype: str = "float16"
    capturable: bool = True
    capture_note: str = ""
    launch_log: LaunchLog | None = None
    needs: tuple[str, ...] = ()
    unavailable: Callable[[str], str] = lambda device: ""


@dataclass(frozen=True)
class Group:
    """One operation with several variants.

    ``workload(geometry, layers, seed, device, options)`` makes the weights; ``batch(workload, rows, seed)`` makes fresh
    inputs; ``adversarial(workload, rows)`` yields (label, batch) of hostile inputs; ``reference(workload, batch)`` is
    the float64 result, [layers, rows, hidden].
    """

    name: str
    summary: str
    geometries: tuple[str, ...]
    baseline: str
    workload: Callable[..., Any]
    batch: Callable[[Any, int, int], Any]
    adversarial: Callable[[Any, int], Sequence[tuple[str, Any]]]
    reference: Callable[[Any, Any], Tensor]
    out: Callable[[Any, Any], Tensor]
    """``out(workload, batch)``: an uninitialised output tensor of the right shape, dtype and device."""
    cpu_geometry: str = ""
    """The geometry of ``--device cpu`` unless one is named: small enough for exact CPU arithmetic; "" is the first."""
    cpu_layers: int = 2
    cuda_layers: int = 1
    """Layers of the model that are built unless ``--layers`` says how many."""
    rel_err: float = 1e-2
    """‖out − ref‖₂ ÷ ‖ref‖₂ that no correct variant exceeds, whatever it has the same bits as."""


@dataclass
class Registry:
    """Groups and their variants by name; ``add_variant`` refuses a name that is taken."""

    groups: dict[str, Group] = field(default_factory=dict)
    variants: dict[tuple[str, str], Variant] = field(default_factory=dict)

    def add_group(self, group: Group) -> None:
        """Add a group; raises ValueError if its name is taken."""
        if group.name in self.groups:
            raise ValueError(f"group {group.name!r} is registered already")
        self.groups[group.name] = group

    def add_variant(self, variant: Variant) -> None:
        """Add a variant; raises ValueError if its group is unknown or its name is taken."""
        if variant.group not in self.groups:
            raise ValueError(f"variant {variant.name!r} names an unknown group {variant.group!r}")
        key = (variant.group, variant.name)
        if key in self.variants:
            raise ValueError(f"variant {variant.name!r} of {variant.group!r} is registered already")
        self.variants[key] = variant

    def of_group(self, group: str) -> list[Variant]:
        """The group's variants in the order in which they were registered."""
        return [v for (g, _), v in self.variants.items() if g == group]
