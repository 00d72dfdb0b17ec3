"""The program that ncu profiles: one decode step of a GLQ variant between cudaProfilerStart and Stop.

    PYTHONPATH=.:kernels ncu --profile-from-start off … python3 benchmarks/ncu_target.py --variant v3b

Only what lies between the two calls is profiled: warm-up calls have built the extension and filled the caches of the
allocator before it.
"""

from __future__ import annotations

import argparse

import torch

from glqprof.bench.registry import Registry
from glqprof_kernels.glq import variants


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="v3b")
    parser.add_argument("--geometry", default="cascade2-30b")
    parser.add_argument("--layers", type=int, default=2, help="one of two stages, one of three, in the mixed layers")
    options = parser.parse_args()
    registry = Registry()
    variants.register(registry)
    group = registry.groups[variants.GROUP]
    workload = group.workload(options.geometry, options.layers, 0, "cuda", {})
    run = registry.variants[variants.GROUP, options.variant].build(workload)
    batch = group.batch(workload, 1, 100)
    out = group.out(workload, batch)
    for _ in range(2):
        run(batch, out)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run(batch, out)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
