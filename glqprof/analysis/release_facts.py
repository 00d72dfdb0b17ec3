"""What the sources of a release note say of where and what they ran, and whether they may stand in one table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from glqprof.analysis.breakdown import Breakdown
from glqprof.traces.schema.bench import BenchDevice, BenchResult
from glqprof.traces.schema.release import DecodeRun

LIKE = {"GPU": "GPUs", "workload": "workloads", "batch": "batch sizes", "prompt": "prompt lengths",
        "layers": "numbers of layers"}  # fmt: skip
"""What must agree between all sources, and its plural."""


@dataclass
class Facts:
    """What one source says: by property, only what it does say."""

    owner: str
    source: int
    said: dict[str, str] = field(default_factory=dict)


def capture_facts(owner: str, source: int, b: Breakdown) -> Facts:
    """From the manifest, the GPU from the trace where it names it."""
    names = [d.name for d in b.devices if d.name]
    said = {"GPU": _counted(names), "profiler": f"{b.trace.info.tool} {b.trace.info.tool_version}".strip()}
    m = b.manifest
    if m:
        said |= {"workload": m.workload, "batch": str(m.batch), "driver": m.driver, "CUDA": m.cuda, "torch": m.torch}
        said |= {"transformers": m.transformers, "profiler": f"{m.tool} {m.tool_version}".strip()}
        if m.git:
            said["commit"] = m.git.commit + (" with changes" if m.git.dirty else "")
    return Facts(owner, source, _kept(said))


def decode_facts(owner: str, source: int, run: DecodeRun) -> Facts:
    """From an untraced decode."""
    said = {"GPU": _counted(run.gpus), "workload": run.workload, "driver": run.driver, "CUDA": run.cuda}
    said |= {"torch": run.torch, "transformers": run.transformers}
    for name, value in (("batch", run.batch), ("prompt", run.prompt), ("layers", run.layers)):
        if value is not None:
            said[name] = str(value)
    if run.commit:
        said["commit"] = run.commit + (" with changes" if run.dirty else "")
    return Facts(owner, source, _kept(said))


def bench_facts(owner: str, source: int, result: BenchResult) -> Facts:
    """From a bench: its geometry is the workload."""
    device: BenchDevice = result.device
    said = {"GPU": device.name, "workload": result.geometry, "driver": device.driver, "CUDA": device.cuda}
    return Facts(owner, source, _kept(said | {"torch": device.torch}))


def differences(facts: Iterable[Facts]) -> list[str]:
    """Sentences on what must agree and does not, with whose it is."""
    found = []
    for name, plural in LIKE.items():
        values = by_value(facts, name)
        if len(values) > 1:
            listed = ", ".join(f"{v} ({', '.join(dict.fromkeys(f.owner for f in who))})" for v, who in values.items())
            found.append(f"different {plural}: {listed}")
    return found


def unsaid(facts: Iterable[Facts]) -> list[str]:
    """Sentences on what could not be compared, since a source does not say it."""
    facts = list(facts)
    found = []
    for name in ("GPU", "workload"):
        silent = list(dict.fromkeys(f.owner for f in facts if name not in f.said))
        if silent:
            found.append(f"{name} of {', '.join(silent)}: not recorded, so not known to be the others'")
    return found


def by_value(facts: Iterable[Facts], name: str) -> dict[str, list[Facts]]:
    """The sources by what they say of one property."""
    values: dict[str, list[Facts]] = {}
    for f in facts:
        if name in f.said:
            values.setdefault(f.said[name], []).append(f)
    return values


def _counted(names: list[str]) -> str:
    kinds = dict.fromkeys(names)
    return " + ".join(f"{n} x {kind}" if (n := names.count(kind)) > 1 else kind for kind in kinds)


def _kept(said: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in said.items() if value}
