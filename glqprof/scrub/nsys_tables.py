"""Which tables and columns of an nsys export are kept: those that an analysis reads, and their lists of labels."""

from __future__ import annotations

import re

_TIMES = ("start", "end")
_PLACE = ("deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid", "graphNodeId", "graphId")
_CALL = (*_TIMES, "eventClass", "globalTid", "correlationId", "nameId", "returnValue")
_GRID = tuple(f"{what}{axis}" for what in ("grid", "block", "cluster") for axis in "XYZ")

COLUMNS: dict[str, tuple[str, ...]] = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *_TIMES, *_PLACE, *_GRID, "demangledName", "shortName", "mangledName", "launchType", "cacheConfig",
        "registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal",
        "gridId", "sharedMemoryExecuted", "sharedMemoryLimitConfig",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _CALL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        *_TIMES, *_PLACE, "bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "srcContextId", "dstDeviceId",
        "dstContextId", "migrationCause", "copyCount",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*_TIMES, *_PLACE, "value", "bytes", "memKind"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (*_TIMES, *_PLACE, "syncType", "eventId", "eventSyncId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_TIMES, *_PLACE, "graphExecId", "endGraphNodeId"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": (*_CALL, "overheadType"),
    "PROFILER_OVERHEAD": (*_CALL, "overheadType"),
    "OSRT_API": _CALL,
    "CUDA_GRAPH_NODE_EVENTS": (*_CALL, "graphNodeId", "originalGraphNodeId"),
    "NVTX_EVENTS": (
        *_TIMES, "eventType", "rangeId", "category", "color", "text", "textId", "globalTid", "endGlobalTid", "domainId",
    ),
    "TARGET_INFO_GPU": (
        "vmId", "id", "name", "isDiscrete", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount",
        "chipName", "cuDevice", "revision", "constantMemory", "maxIPC", "maxRegistersPerBlock", "maxShmemPerBlock",
        "maxShmemPerBlockOptin", "maxShmemPerSm", "maxRegistersPerSm", "threadsPerWarp", "asyncEngines",
        "maxWarpsPerSm", "maxBlocksPerSm", "maxThreadsPerBlock",
        *(f"max{what}Dim{axis}" for what in ("Block", "Grid") for axis in "XYZ"),
        "computeMajor", "computeMinor", "smMajor", "smMinor",
    ),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        "nullStreamId", "hwId", "vmId", "processId", "deviceId", "contextId", "parentContextId", "isGreenContext",
    ),
    "TARGET_INFO_CUDA_STREAM": ("streamId", "hwId", "vmId", "processId", "contextId", "priority", "flag"),
    "ANALYSIS_DETAILS": ("globalVid", "duration", "startTime", "stopTime"),
    "DIAGNOSTIC_EVENT": ("timestamp", "timestampType", "source", "severity", "text", "globalPid"),
    "StringIds": ("id", "value"),
}  # fmt: skip
META_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
META_NAMES = re.compile(r"^EXPORT_(?:PRODUCT|SCHEMA|PARAM_TIME_SHIFT)\w*$")
ENUM_TABLE = re.compile(r"^ENUM_[A-Z0-9_]+$")
ENUM_COLUMNS = ("id", "name", "label")
# Columns that hold ids of strings, wherever they stand.
STRING_COLUMNS = frozenset({"demangledName", "shortName", "mangledName", "nameId", "textId"})
# Columns of free text that the captured program or the profiler chose.
TEXT_COLUMNS = {"NVTX_EVENTS": ("text",), "DIAGNOSTIC_EVENT": ("text",), "StringIds": ("value",)}

# What each dropped table is, for the person who reads what was removed.
KINDS = {
    "TARGET_INFO_SYSTEM_ENV": "environment",
    "META_DATA_CAPTURE": "environment",
    "PROCESSES": "processes and threads",
    "ThreadNames": "processes and threads",
    "ProcessStreams": "program output",
    "SCHED_EVENTS": "operating system",
    "COMPOSITE_EVENTS": "call stacks",
    "SAMPLING_CALLCHAINS": "call stacks",
    "CUDA_CALLCHAINS": "call stacks",
    "OSRT_CALLCHAINS": "call stacks",
    "TARGET_INFO_SESSION_START_TIME": "date and time zone",
    "TARGET_INFO_NIC_INFO": "network",
    "TARGET_INFO_COMPONENT": "environment",
}

# The profiler's own messages; any other diagnostic may quote a path, a command or the program's output.
_COUNT = r"[\d,]+"
_MESSAGES = (
    r"Profiling has (?:started|stopped)\.",
    r"Profiling (?:started|stopped) due to [\w ]+ API invoked in the application\.",
    rf"Number of [\w() ]+ (?:events|samples) (?:collected|produced): \s*{_COUNT}(?:, CUPTI buffers: {_COUNT})?\.",
    r"[\w ]+ injection (?:library )?initialized successfully\.",
    r"Not all [\w ]+ events might have been collected\.",
    r"No [\w ]+ events collected\. Does the process use [\w ]+\?",
    r"Enabling trace for device graph launch",
    r"Buffers holding CUDA trace data will be flushed on CudaProfilerStop\(\) call\. See [\w-]+ to control this "
    r"behavior\.",
    r"(?:CUPTI|CUDA|NVTX) events? (?:were |was |have been )?(?:dropped|lost)[\w ,.:]*",
    rf"{_COUNT} [\w ]*(?:events|records)[\w ]* (?:dropped|lost)[\w ,.:]*",
    r"[\w ]*(?:CUDA|CUPTI)?[\w ]*driver version [\w. ()]*not supported[\w. ,()]*",
    r"[\w ]*(?:ActivityFlushAll|cuptiActivity\w+) returned [\w ():.]*",
    r"[\w .,()]*(?:[Ii]nsufficient privilege|NVGPUCTRPERM|permission)[\w .,()]*",
    r"glqprof: [\w ,.:()]*",
)
DIAGNOSTIC = re.compile(r"\s*(?:" + "|".join(_MESSAGES) + r")\s*")


def kept_columns(table: str, present: list[str]) -> list[str]:
    """Which of a table's columns stay, in their order; none for a table that does not stay."""
    if table in META_TABLES:
        allowed: tuple[str, ...] = ("name", "value")
    elif ENUM_TABLE.match(table):
        allowed = ENUM_COLUMNS
    else:
        allowed = COLUMNS.get(table, ())
    return [column for column in present if column in allowed]
