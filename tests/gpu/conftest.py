"""The GPU suite: skipped without a GPU; with GLQPROF_GPU_RECORD=FILE it writes what ran, on what, at which commit."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

RECORD = "GLQPROF_GPU_RECORD"
COMMIT = "GLQPROF_COMMIT"
"""Tells the commit where the tree under test is no git checkout, or one that was made before the commit."""

_outcomes: dict[str, dict[str, object]] = {}


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    if not mine:
        return
    import torch

    for item in mine:
        item.add_marker(pytest.mark.gpu)
        if not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = {"outcome": report.outcome, "seconds": round(report.duration, 3)}


def pytest_sessionfinish(session, exitstatus):
    target = os.environ.get(RECORD)
    if not target:
        return
    from glqprof.bench.cuda import CudaDevice

    device = CudaDevice().describe()
    counts = [entry["outcome"] for entry in _outcomes.values()]
    record = {
        "schema": "glqprof.gpu-test/1",
        "gpu": device.name,
        "capability": device.capability,
        "driver": device.driver,
        "cuda": device.cuda,
        "torch": device.torch,
        **_commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "tool": os.environ.get("GLQPROF_SANITIZER", "none"),
        "exit_status": int(exitstatus),
        "passed": counts.count("passed"),
        "failed": counts.count("failed"),
        "skipped": counts.count("skipped"),
        "tests": _outcomes,
    }
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    part.replace(path)


def _commit() -> dict[str, object]:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()

    if COMMIT in os.environ:
        return {"commit": os.environ[COMMIT], "dirty": None}
    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": "unknown", "dirty": None}
