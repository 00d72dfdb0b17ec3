"""Events of the Trace Event Format, as far as the export writes them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType, field


class GpuArgs(Struct, omit_defaults=True):
    """Arguments of GPU work, under Kineto's names where it has one."""

    device: int
    context: int
    stream: int
    correlation: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    src_kind: str | UnsetType = field(default=UNSET, name="src kind")
    dst_kind: str | UnsetType = field(default=UNSET, name="dst kind")
    grid: list[int] | UnsetType = UNSET
    block: list[int] | UnsetType = UNSET
    registers: int | UnsetType = field(default=UNSET, name="registers per thread")
    shared_memory: int | UnsetType = field(default=UNSET, name="shared memory")
    graph_node: int | UnsetType = field(default=UNSET, name="graph node id")
    layer: str | UnsetType = UNSET
    step: str | UnsetType = UNSET
    process: int | UnsetType = field(default=UNSET, name="glqprof process")


class HostArgs(Struct, omit_defaults=True):
    """Arguments of calls and ranges. ``thread``, ``process``: where it ran, when its track has another number."""

    correlation: int | UnsetType = UNSET
    return_value: int | UnsetType = field(default=UNSET, name="return value")
    thread: int | UnsetType = field(default=UNSET, name="glqprof thread")
    process: int | UnsetType = field(default=UNSET, name="glqprof process")
    crosses_threads: bool | UnsetType = field(default=UNSET, name="crosses threads")
    is_open: bool | UnsetType = field(default=UNSET, name="never closed")


class Slice(Struct, omit_defaults=True, tag_field="ph", tag="X"):
    """A complete event."""

    name: str
    cat: str
    pid: int
    tid: int
    ts: float
    dur: float
    args: GpuArgs | HostArgs | UnsetType = UNSET


class Flow(Struct, omit_defaults=True):
    """One end of an arrow from a launch call to its work."""

    ph: str
    id: int
    pid: int
    tid: int
    ts: float
    bp: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    cat: str | UnsetType = UNSET


class Counter(Struct, tag_field="ph", tag="C"):
    """A value that holds until the next one."""

    name: str
    pid: int
    ts: float
    args: dict[str, float]


class Meta(Struct, omit_defaults=True, tag_field="ph", tag="M"):
    """A metadata event: the name or the place of a process or thread."""

    name: str
    pid: int
    args: dict[str, str | int]
    tid: int = 0
