"""The capture manifest, ``capture.json``: what was run, where, and how fast it ran untraced."""

from __future__ import annotations

from pathlib import Path

import msgspec

from glqprof.errors import InputError

MANIFEST_NAME = "capture.json"
MANIFEST_SCHEMA = "glqprof.capture/1"
UNFINISHED_NAME = "UNFINISHED"
"""The file in a capture folder for as long as it has no manifest; its first line says why it has none."""


class GpuState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A GPU at one moment, as NVML or nvidia-smi tells it (None: not told).

    ``sm_mhz``, ``mem_mhz``: clocks. ``utilization_pct``: share of the last second with a kernel running.
    ``throttled``: reasons for running slower than wanted, joined by commas. ``processes``: other processes on the GPU.
    """

    sm_mhz: int | None = None
    mem_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    utilization_pct: int | None = None
    throttled: str = ""
    processes: int | None = None


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU of the machine that was captured; ``before`` the first run and ``after`` the last."""

    name: str
    memory_bytes: int | None = None
    sm_count: int | None = None
    ecc: bool | None = None
    power_limit_w: float | None = None
    before: GpuState | None = None
    after: GpuState | None = None


class Git(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commit of the code that ran, and whether its tree had changes."""

    commit: str
    dirty: bool


class UntracedRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run without a profiler: mean milliseconds a token, over ``tokens`` tokens."""

    ms_per_token: float
    tokens: int | None = None
    token_ms: list[float] = []


class Untraced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast the same command ran without a profiler.

    ``tok_s``: tokens a second. ``ms_per_token``: milliseconds a token. ``statistic``: what these two are of the run
    (mean, or median of 16 tokens). ``runs``: every repeat, for a confidence interval.
    """

    tok_s: float
    ms_per_token: float
    statistic: str = "mean"
    runs: list[UntracedRun] = []


class Traced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The run under the profiler, timed by the same marks and the same clock as the untraced one."""

    ms_per_token: float
    tokens: int | None = None
    token_ms: list[float] = []


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A capture folder's ``capture.json`` (schema ``glqprof.capture/1``).

    ``files``: what the tool wrote, relative to the folder; the first is the trace. ``tokens``: tokens decoded inside
    the marked steps, all sequences of the batch together (None: one a step). ``inflation``: mean milliseconds a token
    traced ÷ untraced. ``token_sha``: a hash over the decoded token ids, equal where two runs decoded the same text.
    ``scrubbed``: the files went through `glqprof scrub` (None: recorded before it said so).
    """

    schema: str
    name: str
    tool: str
    tool_version: str
    files: list[str]
    command: list[str] = []
    workload: str = ""
    variant: str = ""
    gpus: list[Gpu] = []
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    transformers: str = ""
    git: Git | None = None
    batch: int = 1
    tokens: int | None = None
    untraced: Untraced | None = None
    traced: Traced | None = None
    inflation: float | None = None
    token_sha: str | None = None
    scrubbed: bool | None = None
    captured_at: str = ""
    source: str = ""
    warnings: list[str] = []


def read_manifest(folder: Path) -> Manifest:
    """Read and check a capture folder's manifest.

    Raises InputError when it is absent (an unfinished capture), unreadable, or of another schema.
    """
    path = folder / MANIFEST_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        why = unfinished_reason(folder)
        if why is not None:
            raise InputError(folder, f"is an unfinished capture ({why}); capture it again") from None
        raise InputError(
            folder, f"has no {MANIFEST_NAME}: not a capture, or one that did not finish; capture it again"
        ) from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); check its permissions") from None
    try:
        declared = msgspec.json.decode(raw, type=dict[str, object]).get("schema")
    except msgspec.DecodeError as error:
        raise InputError(path, f"is not JSON ({error}); restore it or capture again") from None
    if declared != MANIFEST_SCHEMA:
        raise InputError(path, f"has schema {declared!r}, this version reads {MANIFEST_SCHEMA!r}; update glqprof")
    try:
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.ValidationError as error:
        raise InputError(path, f"does not follow {MANIFEST_SCHEMA} ({error}); mend it or capture again") from None


def unfinished_reason(folder: Path) -> str | None:
    """Why a folder is an unfinished capture, or None where it is none."""
    try:
        text = (folder / UNFINISHED_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason was written")


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as `read_manifest` takes it; a field that holds nothing is left out."""
    empty: tuple[object, ...] = (None, "", [])
    needed = ("schema", "name", "tool", "tool_version", "files")
    fields = msgspec.to_builtins(manifest).items()
    content = {key: value for key, value in fields if key in needed or value not in empty}
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
