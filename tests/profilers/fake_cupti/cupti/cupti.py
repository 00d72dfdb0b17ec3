"""The activity API over a GPU that exists only here; `launch` and its like are what a program does to it."""

from __future__ import annotations

import enum
import os
import threading
import time
from types import SimpleNamespace


class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    DEVICE = 8
    CONCURRENT_KERNEL = 10
    OVERHEAD = 17
    MEMCPY2 = 22
    SYNCHRONIZATION = 38


class ActivityOverheadKind(enum.IntEnum):
    DRIVER_COMPILER = 1


class ActivityThreadIdType(enum.IntEnum):
    DEFAULT = 0
    SYSTEM = 1


class CallbackDomain(enum.IntEnum):
    DRIVER_API = 1
    RUNTIME_API = 2
    RESOURCE = 3


class CallbackIdResource(enum.IntEnum):
    GRAPHNODE_CREATED = 14
    GRAPHNODE_CLONED = 18


class GraphData:
    @classmethod
    def from_ptr(cls, pointer):
        return graph_data[pointer]


NAMES = {
    (CallbackDomain.RUNTIME_API, 211): "cudaLaunchKernel_v7000",
    (CallbackDomain.RUNTIME_API, 131): "cudaStreamSynchronize_v3020",
    (CallbackDomain.DRIVER_API, 307): "cuLaunchKernel",
}
enabled: set[int] = set()
pending: list[SimpleNamespace] = []
graph_data: dict[int, SimpleNamespace] = {}
callbacks: list = [None, None]
subscribed: list = []
correlation = 0


def get_timestamp():
    return time.time_ns()


def set_thread_id_type(kind):
    assert kind == ActivityThreadIdType.SYSTEM


def get_callback_name(domain, cbid):
    return NAMES[domain, cbid]


def get_graph_node_id(node):
    return node


def activity_register_callbacks(requested, completed):
    assert requested()[1] == 0
    callbacks[:] = [requested, completed]


def activity_enable(kind):
    enabled.add(int(kind))
    if kind == ActivityKind.DEVICE:
        _record(
            ActivityKind.DEVICE, id=0, name="Pretend GPU", l2cache_size=1 << 20, global_memory_size=1 << 30,
            num_multiprocessors=4, compute_capability_major=9, compute_capability_minor=0,
        )  # fmt: skip


def activity_disable(kind):
    enabled.discard(int(kind))


def activity_flush_all(_flag):
    callbacks[1](pending[:])
    pending.clear()


def subscribe(callback, userdata):
    subscribed.append((callback, userdata))
    return 7


def enable_callback(_enable, subscriber, _domain, _cbid):
    assert subscriber == 7


def _record(kind, **fields):
    if int(kind) in enabled:
        pending.append(SimpleNamespace(kind=int(kind), **fields))


def launch(name="_Z4gemvPf", us=30, node=0):
    """A launch as CUPTI reports it: the runtime call, the driver call inside it, the kernel after both."""
    global correlation
    correlation += 1
    outer, correlation = correlation, correlation + 1
    start = get_timestamp()
    call = {"process_id": os.getpid(), "thread_id": threading.get_native_id(), "return_value": 0}
    _record(ActivityKind.DRIVER, start=start + 100, end=start + 900, cbid=307, correlation_id=correlation, **call)
    _record(ActivityKind.RUNTIME, start=start, end=start + 1000, cbid=211, correlation_id=outer, **call)
    _record(
        ActivityKind.CONCURRENT_KERNEL, start=start + 2000, end=start + 2000 + us * 1000, name=name, device_id=0,
        context_id=1, stream_id=7, correlation_id=correlation, launch_type=0, registers_per_thread=32, grid_x=8,
        grid_y=1, grid_z=1, block_x=128, block_y=1, block_z=1, static_shared_memory=0, dynamic_shared_memory=0,
        graph_node_id=node,
    )  # fmt: skip
    thread = SimpleNamespace(pt=SimpleNamespace(process_id=os.getpid(), thread_id=threading.get_native_id()))
    for kind in (1, 99):
        _record(
            ActivityKind.OVERHEAD, start=start, end=start + 10, overhead_kind=kind, object_kind=2, object_id=thread,
            correlation_id=outer,
        )  # fmt: skip
    time.sleep(us / 1e6)


def make_graph_node(node, original=None):
    """A node is captured, or cloned when its graph is instantiated."""
    graph_data[node] = SimpleNamespace(node=node, original_node=original)
    event = CallbackIdResource.GRAPHNODE_CREATED if original is None else CallbackIdResource.GRAPHNODE_CLONED
    for callback, userdata in subscribed:
        callback(userdata, CallbackDomain.RESOURCE, int(event), SimpleNamespace(resource_descriptor=node))


def copy_to_host(size):
    """A copy of the GPU's memory to the host's, pinned."""
    start = get_timestamp()
    _record(
        ActivityKind.MEMCPY, start=start, end=start + 500, device_id=0, context_id=1, stream_id=13,
        correlation_id=99999, bytes=size, copy_kind=2, src_kind=3, dst_kind=2, graph_node_id=0,
    )  # fmt: skip
