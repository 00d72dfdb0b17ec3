"""The closed account as shares inside shares that add up as printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glqprof.analysis.account import HOST_UNKNOWN, LAUNCH_LATENCY
from glqprof.analysis.breakdown import Breakdown

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("expert kernels", ("matvec", "rht", "reduce", "moe")),
    ("Mamba state space", ("ssm",)),
    ("attention", ("attention",)),
    ("rest of the model", ("gemm", "norm", "router", "elementwise", "sampling")),
    ("copies and fills", ("copy", "memset")),
    ("communication between GPUs", ("comm",)),
    ("CUDA graphs traced as a whole", ("graph",)),
    ("matched by no rule", ("other",)),
)
BUSY, IDLE, HOST, OWN = "GPU busy", "GPU idle", "the host keeps it waiting", "buckets of the given rules"
PER_MILLE = 1000


@dataclass(frozen=True)
class Share:
    """One line of the nested account.

    ``ns``: integer nanoseconds, of all GPUs together. ``tenths``: of a percent of the traced wall time, rounded so that
    every line is the sum of those inside it and the whole is 1000; ``busy_tenths`` the same of the busy time, None for
    idle lines. ``leaf``: a row of the account itself.
    """

    depth: int
    name: str
    ns: int
    tenths: int
    busy_tenths: int | None
    leaf: bool


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Whole numbers in proportion to ``parts`` that sum to ``total``, by largest remainder (ties: the first part)."""
    whole = sum(parts)
    if whole == 0:
        return [0] * len(parts)
    floors = [part * total // whole for part in parts]
    order = sorted(range(len(parts)), key=lambda i: (-(parts[i] * total % whole), i))
    for i in order[: total - sum(floors)]:
        floors[i] += 1
    return floors


def nested_shares(b: Breakdown) -> list[Share]:
    """Busy by group and bucket, idle by state, largest first within each; empty where idle time is not known."""
    ns: dict[tuple[str, str], int] = {}
    for r in b.wall.itertuples():
        key = (str(r.kind), str(r.row))
        ns[key] = ns.get(key, 0) + int(r.ns)
    if not sum(ns.values()):
        return []
    keys = list(ns)
    tenths = dict(zip(keys, apportion([ns[k] for k in keys], PER_MILLE), strict=True))
    busy = [k for k in keys if k[0] == "gpu"]
    busy_tenths = dict(zip(busy, apportion([ns[k] for k in busy], PER_MILLE), strict=True))

    def line(depth: int, name: str, members: list[tuple[str, str]], leaf: bool = False) -> Share:
        of_busy = sum(busy_tenths[k] for k in members) if all(k in busy_tenths for k in members) else None
        return Share(depth, name, sum(ns[k] for k in members), sum(tenths[k] for k in members), of_busy, leaf)

    def tree(name: str, groups: list[tuple[str, list[tuple[str, str]]]]) -> list[Share]:
        lines = [line(0, name, [k for _, members in groups for k in members])]
        for group, members in sorted(groups, key=lambda g: -sum(ns[k] for k in g[1])):
            alone = len(members) == 1
            lines.append(line(1, members[0][1] if alone and name == IDLE else group, members, leaf=alone))
            if not alone:
                lines += [line(2, k[1], [k], leaf=True) for k in sorted(members, key=lambda k: -ns[k])]
        return lines

    return tree(BUSY, _busy_groups(busy)) + tree(IDLE, _idle_groups([k for k in keys if k[0] == "idle"]))


def _busy_groups(keys: list[tuple[str, str]]) -> list[tuple[str, list[tuple[str, str]]]]:
    known = {bucket for _, buckets in GROUPS for bucket in buckets}
    named = [*GROUPS, (OWN, tuple(k[1] for k in keys if k[1] not in known))]
    groups = [(name, [k for k in keys if k[1] in buckets]) for name, buckets in named]
    # A group of one bucket is named by it.
    return [
        (name if len(m) > 1 else m[0][1] if m[0][1] in name else f"{m[0][1]} ({name})", m) for name, m in groups if m
    ]


def _idle_groups(keys: list[tuple[str, str]]) -> list[tuple[str, list[tuple[str, str]]]]:
    host = [k for k in keys if k[1].startswith("host-") and k[1] != HOST_UNKNOWN]
    apart = [k for k in keys if k not in host]
    assert all(k[1] in (LAUNCH_LATENCY, HOST_UNKNOWN, "profiler") for k in apart), apart
    return [*([(HOST, host)] if host else []), *((k[1], [k]) for k in apart)]
