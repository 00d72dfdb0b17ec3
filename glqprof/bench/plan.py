"""What a bench is asked to do, resolved against the registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glqprof.bench.registry import Group, Registry, SameBits, Variant
from glqprof.bench.stats import MIN_QUADS
from glqprof.errors import InputError


@dataclass(frozen=True)
class Plan:
    """One bench: a group's variants at one geometry and several numbers of rows.

    ``quads`` is the number of A B B A quads of each comparison. A block of calls lasts at least ``block_s`` seconds
    for the faster variant, and at most ``limit_s`` for the slower one where a rotation of the inputs allows it.
    """

    group: Group
    variants: tuple[Variant, ...]
    baseline: Variant
    anchors: tuple[Variant, ...]
    geometry: str
    layers: int
    rows: tuple[int, ...]
    quads: int
    seed: int
    warm: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    block_s: float = 5e-3
    limit_s: float = 0.2
    random_batches: int = 3


def make_plan(
    registry: Registry,
    group_name: str,
    device: str,
    variants: Sequence[str] = (),
    baseline: str | None = None,
    geometry: str | None = None,
    layers: int | None = None,
    rows: Sequence[int] = (1,),
    quads: int | None = None,
    seed: int = 0,
    warm: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """Resolve names and defaults for ``device``; raises InputError for whatever does not exist or makes no sense."""
    group = registry.groups.get(group_name)
    if group is None:
        raise InputError(group_name, f"no such group; there is {_names(registry.groups)}")
    by_name = {variant.name: variant for variant in registry.of_group(group_name)}
    fits = [name for name, variant in by_name.items() if device in variant.devices]
    here = [name for name in fits if not by_name[name].unavailable(device)]
    chosen = list(dict.fromkeys(variants)) or here
    for name in [*chosen, *([baseline] if baseline else [])]:
        if name not in by_name:
            raise InputError(name, f"no such variant of {group_name}; there is {_names(by_name)}")
        if name in fits and name not in here:
            raise InputError(name, f"cannot run here: {by_name[name].unavailable(device)}")
        if name not in here:
            raise InputError(
                name, f"runs on {', '.join(by_name[name].devices)} only; --device {device} has no way to it"
            )
    base = baseline or (group.baseline if group.baseline in here else (here[0] if here else ""))
    if not base:
        raise InputError(group_name, f"no variant of it runs on {device}")
    if geometry is not None and geometry not in group.geometries:
        raise InputError(geometry, f"no such geometry of {group_name}; there is {_names(group.geometries)}")
    if not rows or min(rows) < 1:
        raise InputError("--rows", "must be positive numbers such as 1,2,4")
    depth = layers if layers is not None else (group.cpu_layers if device == "cpu" else group.cuda_layers)
    if depth < 1:
        raise InputError("--layers", "must be at least 1")
    count = quads if quads is not None else (MIN_QUADS if device == "cpu" else 20)
    if count < 1:
        raise InputError("--repeats", "must be at least 1")
    selected = [by_name[base], *(by_name[name] for name in chosen if name != base)]
    return Plan(
        group=group,
        variants=tuple(selected),
        baseline=by_name[base],
        anchors=_anchors(selected, by_name, device),
        geometry=geometry or (group.cpu_geometry if device == "cpu" and group.cpu_geometry else group.geometries[0]),
        layers=depth,
        rows=tuple(dict.fromkeys(rows)),
        quads=count,
        seed=seed,
        warm=warm,
        options=dict(options or {}),
    )


def _anchors(selected: Sequence[Variant], by_name: Mapping[str, Variant], device: str) -> tuple[Variant, ...]:
    """Return the variants that a contract names and that are not benched: they run untimed, for their bytes."""
    names = {variant.name for variant in selected}
    found: dict[str, Variant] = {}
    for variant in selected:
        if not isinstance(variant.contract, SameBits):
            continue
        target = variant.contract.as_variant
        if target == variant.name or target not in by_name:
            raise InputError(variant.name, f"its contract names {target!r}, which is no other variant of the group")
        if device not in by_name[target].devices:
            raise InputError(variant.name, f"its contract names {target!r}, which does not run on {device}")
        if target not in names:
            found[target] = by_name[target]
    return tuple(found.values())


def _names(names: Any) -> str:
    return ", ".join(names) or "none"


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse ``key=value`` pairs; a value that reads as an integer or a float becomes one. Raises InputError."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign or not key:
            raise InputError(f"--option {pair}", "must be KEY=VALUE")
        options[key] = _number(text)
    return options


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_rows(text: str) -> tuple[int, ...]:
    """Parse ``1,2,4``; raises InputError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--rows {text}", "must be positive numbers such as 1,2,4") from None
