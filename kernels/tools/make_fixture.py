"""Write the inputs whose GPU outputs are recorded: tests/kernels/data/glq_inputs.npz.

    PYTHONPATH=.:kernels python3 kernels/tools/make_fixture.py

Run once; the file's bytes are what counts from then on, and recorded hashes belong to them.
"""

from __future__ import annotations

from pathlib import Path

import torch

from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import factory, fixtures
from glqprof_kernels.glq.workload import MoeWorkload, adversarial, make_batch

OUTPUT = Path(__file__).resolve().parents[2] / "tests" / "kernels" / "data" / "glq_inputs.npz"

# 536 = 512 + 16 + 8 is 67 blocks, an odd number: five splits of 16, the last of 3 blocks. 136 = 128 + 8.
ODD = Geometry("odd", 536, 136, 3, 2, 1, "relu2", 0.0)
TINY = Geometry("tiny", 88, 40, 5, 2, 1, "relu2", 0.0)
GATED = Geometry("gated", 88, 40, 3, 2, 1, "swiglu", 10.0)
LAYERS = {"odd-2-stages": (ODD, 2, 32), "odd-3-stages": (ODD, 3, 16), "tiny-4-stages": (TINY, 4, 64)}
LAYERS |= {"gated-3-stages": (GATED, 3, 64)}


def main() -> None:
    """Draw weights and inputs, save their bytes."""
    layers, inputs = {}, {}
    for index, (name, (shape, stages, split)) in enumerate(LAYERS.items()):
        layer = factory.layer(shape, seed=40 + index, device="cpu", stages=stages, split_blocks=split)
        layers[name] = layer
        workload = MoeWorkload(shape.name, 1, "cpu", [layer], shape, torch.zeros(1, dtype=torch.int64))
        batches = [(f"{rows} rows", make_batch(workload, rows, seed=50 + rows)) for rows in (1, 2, 4)]
        for label, batch in batches + adversarial(workload, 2):
            inputs[f"{name}/{label}"] = batch.per_layer[0]
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    fixtures.save(OUTPUT, layers, inputs)
    print(f"{OUTPUT.name}: {len(layers)} layers, {len(inputs)} inputs, {OUTPUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
