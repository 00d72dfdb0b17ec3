"""Decode Cascade-2-30B by several paths in one process: importing and building the model cost more than decoding.

    python benchmarks/decode_paths.py OUT PATH... [--workload W] [--device D] [--prompt N] [--tokens N] [--layers N]

A PATH is a variant and how its tokens run, such as fused:glqprof:graph (`glqprof.workloads.nemotron_h.paths`). Each
leaves OUT/decode-<PATH>.json, what `glqprof decode --format json` prints, with ":" as "+"; paths whose file is there
are skipped. Paths of one variant share a model; it is let go before the next one is made, so that no path sees
another's memory. Exits with 1 where a path failed, and with 3, at once, where the GPU's context is lost: run it again
for the rest. --command PATH prints the path as options of `glqprof decode`, and does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from glqprof.cli.decode import with_commit
from glqprof.errors import InputError
from glqprof.workloads.nemotron_h.paths import How, parse_path
from glqprof.workloads.nemotron_h.variants import find_variant

LOST = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--workload", default="cascade2-30b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--command")
    arguments = parser.parse_args()
    if arguments.command:
        variant, how = parse_path(arguments.command)
        print(shlex.join(["--variant", variant, *how.options()]))
        return 0
    todo = []
    for path in dict.fromkeys(arguments.paths):
        variant, how = parse_path(path)
        how.settled(find_variant(variant, f"path {path}"), arguments.device)  # all are told before any runs
        if not file_of(arguments.out, path).exists():
            todo.append((variant, how, path))
    variants = list(dict.fromkeys(variant for variant, _, _ in todo))
    todo.sort(key=lambda item: variants.index(item[0]))
    return run_all(arguments, todo)


def file_of(out: Path, path: str) -> Path:
    """Where a path's result goes."""
    return out / f"decode-{path.replace(':', '+')}.json"


def run_all(arguments: argparse.Namespace, todo: list[tuple[str, How, str]]) -> int:
    from glqprof.workloads.nemotron_h.decode import decode_loaded, load

    arguments.out.mkdir(parents=True, exist_ok=True)
    loaded: Any = None
    failed = 0
    for variant, how, path in todo:
        start = time.monotonic()
        try:
            if loaded is None or loaded.variant.name != variant:
                loaded = None
                let_go(arguments.device)
                loaded = load(arguments.workload, variant, arguments.device, layers=arguments.layers)
            result = decode_loaded(loaded, how, prompt=arguments.prompt, tokens=arguments.tokens)
        except (InputError, RuntimeError) as error:
            failed += 1
            print(f"FAILED {path}: {' '.join(str(error).split())[:400]}", flush=True)
            if context_lost(arguments.device):
                return LOST
            continue
        result = with_commit(result)
        file_of(arguments.out, path).write_text(json.dumps(result.to_json(), indent=1) + "\n")
        print(
            f"{path:28} {result.tok_s:8.2f} tok/s {result.ms_per_token:8.3f} ms  p90 {result.spread_ms['p90']:8.3f}"
            f"  prompt {result.prefill_ms:7.0f} ms  {(result.peak_gpu_bytes or 0) / 1e9:5.1f} GB  "
            f"{result.token_sha[:12]}  {time.monotonic() - start:5.1f} s  {'; '.join(result.warnings)}",
            flush=True,
        )
    return 1 if failed else 0


def let_go(device: str) -> None:
    """Free what the last model held, and say what is still held."""
    gc.collect()
    if device == "cuda":
        import torch

        torch.cuda.empty_cache()
        if held := torch.cuda.memory_allocated():
            print(f"note: {held / 1e9:.2f} GB of the GPU are still held before the next model", flush=True)


def context_lost(device: str) -> bool:
    """Whether an error of a kernel made every later call fail."""
    if device != "cuda":
        return False
    import torch

    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
