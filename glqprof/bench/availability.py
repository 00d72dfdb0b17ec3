"""What is bundled, and whether it can run here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from glqprof.bench.discovery import Problem
from glqprof.bench.registry import Registry, Variant
from glqprof.traces.schema.bench import KernelGroup, KernelList, KernelVariant, RunsHere


@dataclass(frozen=True)
class Machine:
    """What a variant could need: ``capability`` is the GPU's, None without one; ``programs`` are those on the PATH."""

    torch: bool
    capability: tuple[int, int] | None
    gpu_name: str
    programs: frozenset[str]


def this_machine(programs: Sequence[str]) -> Machine:
    """Look for torch, a GPU, and the programs that variants name in ``needs``."""
    found = frozenset(program for program in programs if shutil.which(program))
    try:
        import torch
    except ImportError:
        return Machine(False, None, "", found)
    if not torch.cuda.is_available():
        return Machine(True, None, "", found)
    major, minor = torch.cuda.get_device_capability()
    return Machine(True, (major, minor), str(torch.cuda.get_device_name()), found)


def runs_on(variant: Variant, device: str, machine: Machine) -> RunsHere:
    """Say whether a variant can run on ``cuda`` or ``cpu`` of this machine, and if not, why not."""
    why = ""
    if device not in variant.devices:
        why = f"runs on {', '.join(variant.devices)} only"
    elif not machine.torch:
        why = "needs glqprof[torch]"
    elif library := variant.unavailable(device):
        why = library
    elif device == "cuda":
        missing = [program for program in variant.needs if program not in machine.programs]
        if machine.capability is None:
            why = "no CUDA GPU here"
        elif machine.capability < variant.min_capability:
            needed = ".".join(map(str, variant.min_capability))
            why = f"needs compute capability {needed}, {machine.gpu_name} has {'.'.join(map(str, machine.capability))}"
        elif missing:
            why = f"{', '.join(missing)} not found on the PATH"
    return RunsHere(device, not why, why)


def list_kernels(registry: Registry, problems: Sequence[Problem], machine: Machine) -> KernelList:
    """Return every group with its variants, what they promise and whether they can run on ``machine``."""
    groups = tuple(
        KernelGroup(
            name=group.name,
            summary=group.summary,
            baseline=group.baseline,
            geometries=group.geometries,
            variants=tuple(
                KernelVariant(
                    name=variant.name,
                    summary=variant.summary,
                    contract=str(variant.contract),
                    dtype=variant.dtype,
                    min_capability=".".join(map(str, variant.min_capability)),
                    graph="yes" if variant.capturable else variant.capture_note or "no",
                    runs=tuple(runs_on(variant, device, machine) for device in ("cuda", "cpu")),
                )
                for variant in registry.of_group(group.name)
            ),
        )
        for group in registry.groups.values()
    )
    return KernelList(groups, tuple(f"{problem.module}: {problem.why}" for problem in problems))


def programs_needed(registry: Registry) -> list[str]:
    """Return every program that some variant names in ``needs``."""
    return sorted({program for variant in registry.variants.values() for program in variant.needs})
