"""Look at everything that a capture needs, before an hour is lost to one of them."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from glqprof.profilers.capture import MIN_FREE_BYTES
from glqprof.profilers.cupti import Cupti
from glqprof.profilers.machine import Reader, busy_warnings, machine_reader
from glqprof.profilers.ncu import Ncu, counters_permitted
from glqprof.profilers.nsys import Nsys, missing_library
from glqprof.profilers.processes import run
from glqprof.profilers.profiler import NO_PERMISSION, Profiler, last_error
from glqprof.profilers.torch_profiler import TorchProfiler
from glqprof.traces.schema.doctor import FAIL, NOTE, OK, Check, Diagnosis

TOOLS = ("nsys", "ncu", "cupti", "torch")
TRIAL_TIMEOUT_S = 90.0
IMPORTER_FIX = "install {library} (Debian, Ubuntu: apt install libdw1 libelf1), or put it on LD_LIBRARY_PATH"


def diagnose(wanted: tuple[str, ...], read: Reader | None = None) -> Diagnosis:
    """Check what the ``wanted`` tools need on this machine; ``read`` stands in for the GPU's driver in tests."""
    profilers: dict[str, Profiler] = {"nsys": Nsys(), "ncu": Ncu(), "cupti": Cupti(), "torch": TorchProfiler()}
    checks = [_driver(read or machine_reader())]
    for name in wanted:
        checks.append(_tool(name, profilers[name]))
        if name == "nsys" and checks[-1].status == OK:
            checks.append(_importer())
    if "ncu" in wanted:
        checks.append(_permission())
    checks += [_torch(), _nvtx(), _nvml(), _disk(Path.cwd())]
    return Diagnosis(tuple(checks), wanted)


def _driver(read: Reader) -> Check:
    seen = read()
    if not seen.gpus:
        return Check(
            "GPU and driver",
            FAIL,
            "no NVIDIA GPU or driver answers",
            "run where nvidia-smi works; in a container start it with --gpus all",
            TOOLS,
        )
    names = ", ".join(sorted({gpu.name for gpu in seen.gpus}))
    found = f"{len(seen.gpus)} × {names}, driver {seen.driver or 'unknown'}"
    busy = busy_warnings(seen)
    if busy:
        return Check("GPU and driver", NOTE, f"{found}; {busy[0]}", "wait until it is idle before you measure", TOOLS)
    return Check("GPU and driver", OK, found, "", TOOLS)


def _tool(name: str, profiler: Profiler) -> Check:
    availability = profiler.availability()
    title = {"cupti": "cupti-python", "torch": "torch"}.get(name, name)
    if availability.ok:
        return Check(title, OK, availability.version, "", (name,))
    if availability.problem.startswith("ERR_NVGPUCTRPERM"):  # a check of its own, below
        return Check(title, OK, availability.version, "", (name,))
    return Check(title, FAIL, availability.problem, availability.fix, (name,))


def _importer() -> Check:
    """Record nothing with nsys and see whether an export comes out: only then all of its libraries are there."""
    with tempfile.TemporaryDirectory(prefix="glqprof-doctor-") as folder:
        stem = Path(folder) / "trial"
        line = ["nsys", "profile", "--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--export=sqlite"]
        finished = run([*line, "-o", str(stem), sys.executable, "-c", "pass"], timeout_s=TRIAL_TIMEOUT_S, quiet=True)
        if stem.with_suffix(".sqlite").exists():
            return Check("nsys importer", OK, "a trial run was recorded and exported", "", ("nsys",))
    library = missing_library(finished)
    if library:
        fix = IMPORTER_FIX.format(library=library)
        return Check("nsys importer", FAIL, f"{library} is missing", fix, ("nsys",))
    why = "timed out" if finished.timed_out else last_error(finished)
    return Check("nsys importer", FAIL, f"a trial run gave no export ({why})", "reinstall Nsight Systems", ("nsys",))


def _permission() -> Check:
    if counters_permitted():
        return Check("GPU counters", OK, "permitted to this user", "", ("ncu",))
    fix = NO_PERMISSION.partition("; ")[2]
    return Check("GPU counters", FAIL, "ERR_NVGPUCTRPERM: for administrators only", fix, ("ncu",))


def _torch() -> Check:
    """Versions without importing torch, which takes seconds."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        return Check("torch and CUDA", NOTE, "torch is not installed here", "needed by capture torch only", ("torch",))
    build = found.partition("+")[2]
    if build == "cpu":
        fix = "install a CUDA build of torch where GPU work is to be captured"
        return Check("torch and CUDA", NOTE, f"torch {found}: a build without CUDA", fix, ("torch",))
    cuda = f", CUDA {build[2:-1]}.{build[-1]}" if build.startswith("cu") and build[2:].isdigit() else ""
    return Check("torch and CUDA", OK, f"torch {found}{cuda}", "", ("torch",))


def _nvtx() -> Check:
    if importlib.util.find_spec("nvtx") is not None:
        return Check("nvtx", OK, _version("nvtx"))
    return Check("nvtx", NOTE, "not installed: glqprof.annotate uses torch.cuda.nvtx", "pip install nvtx", ("nsys",))


def _nvml() -> Check:
    if importlib.util.find_spec("pynvml") is not None:
        return Check("nvidia-ml-py", OK, _version("nvidia-ml-py"))
    return Check("nvidia-ml-py", NOTE, "not installed: throttling during a run goes unseen", "pip install nvidia-ml-py")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "present"


def _disk(folder: Path) -> Check:
    places = {"this folder": folder, "the temporary folder": Path(tempfile.gettempdir())}
    free = {name: shutil.disk_usage(path).free for name, path in places.items()}
    found = ", ".join(f"{size / 2**30:.1f} GiB in {name}" for name, size in free.items())
    if min(free.values()) < MIN_FREE_BYTES:
        return Check("disk space", FAIL, found, "free space, capture elsewhere with -o, or set TMPDIR", TOOLS)
    return Check("disk space", OK, found, "", TOOLS)
