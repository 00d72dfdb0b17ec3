"""Executables that stand in for nsys and ncu: they run the program and then do what the real ones were seen to do.

Their behaviour is chosen by variables of the environment, so that a test can change it between two commands.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "captures" / "h200-toy-cuda-graph-node" / "trace.sqlite.gz"

NSYS = r"""
import os, shutil, subprocess, sys
mode = os.environ.get("STAND_IN", "")
arguments = sys.argv[1:]
if arguments == ["--version"]:
    if mode == "broken":
        sys.exit("nsys: error while loading shared libraries: libfoo.so.1: cannot open shared object file")
    print("NVIDIA Nsight Systems version " + ("2021.2.4.12-8d5e2b1" if mode == "old" else "2025.3.2.0-253236389321v0"))
    sys.exit(0)
assert arguments[0] == "profile", arguments
at = arguments.index("-o")
options, stem, command = arguments[1:at], arguments[at + 1], arguments[at + 2:]
log = os.environ.get("STAND_IN_LOG")
if log:
    with open(log, "a") as file: print(repr((options, command)), file=file)
status = subprocess.run(command).returncode
if status:
    print(f"The target application returned non-zero exit code {status}" if mode != "silent" else "")
if mode == "disk":
    print("Failed to write the report: No space left on device"); sys.exit(1)
if mode == "none":
    print("No reports were generated"); sys.exit(0)
if mode == "importer":
    open(stem + ".qdstrm", "w").write("x")
    print("/opt/nsys/host-linux-x64/QdstrmImporter: error while loading shared libraries: libdw.so.1: cannot open "
          "shared object file: No such file or directory")
    sys.exit(1)
print("Generating '/tmp/nsys-report-4279.qdstrm'")
print(f"[1/1] [========================100%] {os.path.basename(stem)}.nsys-rep")
open(stem + ".nsys-rep", "w").write("closed")
shutil.copy(os.environ["STAND_IN_EXPORT"], stem + ".sqlite")
print(f"Generated:\n    {stem}.nsys-rep\n    {stem}.sqlite")
sys.exit(status)
"""

NCU = r"""
import os, subprocess, sys
mode = os.environ.get("STAND_IN", "")
arguments = sys.argv[1:]
if arguments == ["--version"]:
    version = "2019.5.0" if mode == "old" else "2025.3.1.0"
    print("NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2025 NVIDIA Corporation")
    print(f"Version {version} (build 36398880) (public-release)")
    sys.exit(0)
if arguments[0] == "--import":
    page = arguments[arguments.index("--page") + 1]
    sys.stdout.write(open(os.environ["STAND_IN_PAGES"] + "/" + page + ".csv").read())
    sys.exit(0)
at = arguments.index("-o")
options, stem, command = arguments[:at], arguments[at + 1], arguments[at + 2:]
log = os.environ.get("STAND_IN_LOG")
if log:
    with open(log, "a") as file: print(repr((options, command)), file=file)
print(f"==PROF== Connected to process {os.getpid()} ({command[0]})")
if mode == "permission":
    print("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on "
          "the target device 0. For instructions on enabling permissions and to get more information see "
          "https://developer.nvidia.com/ERR_NVGPUCTRPERM")
status = subprocess.run(command).returncode
print("==PROF== Disconnected from process 1")
if mode == "permission": sys.exit(1)
if status:
    print(f"==ERROR== The application returned an error code ({status}).")
if mode == "zero":
    print("==WARNING== No kernels were profiled."); sys.exit(0)
if mode == "disk":
    print("==ERROR== Failed to save report: No space left on device"); sys.exit(1)
if mode == "none": sys.exit(0)
open(stem + ".ncu-rep", "wb").write(b"NVR\0closed")
print(f"==PROF== Report: {stem}.ncu-rep")
sys.exit(status)
"""

_IDENTITY = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC"'
)
RAW_PAGE = (
    _IDENTITY
    + ',"gpu__time_duration.sum","launch__registers_per_thread"\n'
    + '"","","","","","","","","","","","ns","register/thread"\n'
    + '"0","77","python3","gpu-host-7","gemv<float, 4>(float *)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0",'
    + '"2000","40"\n'
    + '"1","77","python3","gpu-host-7","norm(float *)","1","7","(128, 1, 1)","(1, 1, 1)","0","9.0","3000","16"\n'
)
_DETAILS = ',"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description"\n'
DETAILS_PAGE = (
    _IDENTITY
    + _DETAILS
    + '"0","77","python3","gpu-host-7","gemv<float, 4>(float *)","1","7","(256, 1, 1)","(64, 1, 1)","0","9.0",'
    + '"GPU Speed Of Light Throughput","Duration","ns","2000","","",""\n'
    + '"1","77","python3","gpu-host-7","norm(float *)","1","7","(128, 1, 1)","(1, 1, 1)","0","9.0",'
    + '"GPU Speed Of Light Throughput","Duration","ns","3000","","",""\n'
)


def install(folder: Path) -> dict[str, str]:
    """Make the stand-ins in ``folder``; the environment that finds them and what they replay."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name, text in (("nsys", NSYS), ("ncu", NCU)):
        (programs / name).write_text(f"#!{sys.executable}\n{text}")
        (programs / name).chmod(0o755)
    export = folder / "export.sqlite"
    with gzip.open(RECORDED, "rb") as source, export.open("wb") as target:
        shutil.copyfileobj(source, target)
    (folder / "raw.csv").write_text(RAW_PAGE)
    (folder / "details.csv").write_text(DETAILS_PAGE)
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "STAND_IN_EXPORT": str(export),
        "STAND_IN_PAGES": str(folder),
        "STAND_IN_LOG": str(folder / "log.txt"),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "kernels")]),
    }


@dataclass(frozen=True)
class Ran:
    """One command of glqprof, run in this process."""

    status: int
    out: str
    err: str


def glqprof(*arguments: object) -> Ran:
    """Run as `glqprof ARGUMENTS` would."""
    from glqprof.cli.app import main

    out, err, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Ran(status, out.getvalue(), err.getvalue())


def manifest_of(folder: Path) -> dict[str, object]:
    """The manifest, checked against its schema."""
    import jsonschema

    content = json.loads((folder / "capture.json").read_text())
    schema = REPOSITORY / "glqprof" / "data" / "schemas" / "capture-1.schema.json"
    jsonschema.validate(content, json.loads(schema.read_text()))
    return content
