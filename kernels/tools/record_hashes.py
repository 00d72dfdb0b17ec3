"""Hash what the GPU computes for the recorded inputs, so that machines without a GPU can check the CPU against it.

    PYTHONPATH=.:kernels python3 kernels/tools/record_hashes.py [OUTPUT] [--commit SHA]

Writes ``gpu_hashes.json`` (default: beside the inputs, tests/kernels/data): SHA-256 of every output by case and
variant, with GPU, driver, CUDA, torch and commit, and of the input file that they belong to.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from pathlib import Path

import torch

from glqprof_kernels.glq import fixtures, ops

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "kernels" / "data"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def record(commit: str) -> dict[str, object]:
    """Run every case and variant on the current GPU."""
    inputs = DATA / "glq_inputs.npz"
    hashes: dict[str, dict[str, str]] = {}
    for case in fixtures.load(inputs, "cuda"):
        hashes[case.name] = {
            variant: fixtures.digest(
                ops.moe(case.layer, case.x, case.ids, case.weights, variant=variant, warn_overflow=False)
            )
            for variant in ops.EXACT
        }
    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "commit": commit or _output("git", "rev-parse", "HEAD"),
        "inputs_sha256": hashlib.sha256(inputs.read_bytes()).hexdigest(),
        "hashes": hashes,
    }


def main() -> None:
    """Record and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, nargs="?", default=DATA / "gpu_hashes.json")
    parser.add_argument("--commit", default="", help="what the code is, where git cannot say")
    options = parser.parse_args()
    found = record(options.commit)
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{options.output.name}: {sum(map(len, found['hashes'].values()))} hashes on {found['gpu']}")


if __name__ == "__main__":
    main()
