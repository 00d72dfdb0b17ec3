"""The CUDA source itself, run on the CPU as fibers: the same bytes as the exact implementations."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from glqprof_kernels import geometry
from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import factory, ops
from glqprof_kernels.glq.exact import v3b
from glqprof_kernels.glq.exact.host import HostCall, Log, host_layer
from glqprof_kernels.glq.exact.stated_exp import stated_exp
from glqprof_kernels.glq.extension import CSRC
from glqprof_kernels.glq.workload import MoeWorkload, adversarial, make_batch

TINY = geometry.load("tiny-odd")
ODD = Geometry("odd", 1048, 136, 3, 2, 1, "relu2", 0.0)  # 131 blocks: three windows, an odd last block
GATED = Geometry("gated", 88, 40, 3, 2, 1, "swiglu", 10.0)
ORDERS = (0, 1, 2)  # threads ascending, descending, shuffled at each barrier


def setup(shape: Geometry, stages: int, split_blocks: int = 64):
    layer = factory.layer(shape, stages, "cpu", stages=stages, split_blocks=split_blocks)
    return layer, MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("variant", list(ops.EXACT))
@pytest.mark.parametrize("shape", [TINY, GATED], ids=lambda shape: shape.name)
@pytest.mark.parametrize(("stages", "split_blocks"), [(1, 64), (2, 16), (3, 32), (4, 64)])
def test_small(emulated, shape, stages, split_blocks, variant) -> None:
    layer, workload = setup(shape, stages, split_blocks)
    inputs = make_batch(workload, 2, seed=1).per_layer[0]
    want = ops.moe(layer, *inputs, variant=variant)
    for order in ORDERS:
        assert same_bits(emulated.moe(layer, *inputs, variant, order=order)[0], want)


@pytest.mark.parametrize(("stages", "split_blocks"), [(2, 16), (2, 32), (3, 64)])
def test_several_windows_and_splits(emulated, stages, split_blocks) -> None:
    layer, workload = setup(ODD, stages, split_blocks)
    inputs = make_batch(workload, 1, seed=1).per_layer[0]
    for variant in ("v3a", "v3b"):
        assert same_bits(emulated.moe(layer, *inputs, variant, order=2)[0], ops.moe(layer, *inputs, variant=variant))


@pytest.mark.parametrize("shape", [TINY, GATED], ids=lambda shape: shape.name)
def test_adversarial(emulated, shape) -> None:
    layer, workload = setup(shape, 3, 16)
    for label, batch in adversarial(workload, 2):
        x, ids, weights = batch.per_layer[0]
        for variant in ops.EXACT:
            before = int(layer.overflow)
            want = ops.moe(layer, x, ids, weights, variant=variant, warn_overflow=False)
            got, overflow, _ = emulated.moe(layer, x, ids, weights, variant)
            assert same_bits(got, want), (label, variant)
            assert overflow == int(layer.overflow) - before, (label, variant)


@pytest.mark.parametrize("variant", list(ops.EXACT))
def test_launches_are_those_that_the_exact_schedule_logs(emulated, variant) -> None:
    layer, workload = setup(TINY, 2)
    x, ids, weights = make_batch(workload, 2, seed=1).per_layer[0]
    log = Log()
    ops.EXACT[variant](host_layer(layer), HostCall(x.numpy(), ids.numpy(), weights.numpy()), log)
    launched = emulated.moe(layer, x, ids, weights, variant)[2]
    names = [name.strip("()").replace("<STAGES>", "<2>").split("<k")[0] for name in launched]
    assert names == log.kernels


@pytest.mark.parametrize("length", [8, 40, 88, 2688, 1856, 4096, 8200])
def test_input_transform_in_any_thread_order(emulated, length) -> None:
    rng = np.random.default_rng(length)
    x = rng.standard_normal(length).astype(np.float16)
    sv = rng.choice(np.array([-1, 1], np.float16), length)
    want = v3b._transform(x.astype(np.float32) * sv.astype(np.float32))
    for order in ORDERS:
        assert (emulated.input_rht(x, sv, order).view(np.uint32) == want.view(np.uint32)).all()


def test_misaligned_inputs(emulated) -> None:
    """Views that start two bytes off take the narrow loads."""
    layer, workload = setup(ODD, 2)
    x, ids, weights = make_batch(workload, 1, seed=3).per_layer[0]
    want = ops.moe(layer, x, ids, weights)
    for matrix in (layer.up, layer.down):
        for s, plane in enumerate(matrix.planes):
            shifted = torch.empty(plane.numel() + 1, dtype=torch.int16)
            shifted[1:] = plane.reshape(-1)
            matrix.planes[s] = shifted[1:].view(plane.shape)
    wide = torch.empty(x.numel() + 1, dtype=torch.float16)
    wide[1:] = x.reshape(-1)
    assert same_bits(emulated.moe(layer, wide[1:].view(x.shape), ids, weights)[0], want)


def test_ids(emulated) -> None:
    layer, workload = setup(TINY, 2)
    x, ids, weights = make_batch(workload, 2, seed=3).per_layer[0]
    for bad in (-1, 5):
        ids[1, 0] = bad
        with pytest.raises(ValueError, match=rf"ids\[1, 0\] is {bad}, but the experts are 0 .. 4"):
            emulated.moe(layer, x, ids, weights)
        masked = emulated.moe(layer, x, ids, weights, mask_invalid=True)[0]
        assert same_bits(masked, ops.moe(layer, x, ids, weights, mask_invalid=True))


def test_expert_offsets_are_64_bits(emulated) -> None:
    """E*M*N/8 > 2^31: the host loop's offset of the last expert of a layer of 288 x 8192 x 8192."""
    assert emulated.library.emulated_plane_offset(287, 8192, 8192) == 287 * 8192 * 1024 > 2**31


def test_scalars_of_the_device_code(emulated) -> None:
    t = np.concatenate([np.linspace(-110, 95, 4001), [np.inf, -np.inf, 0.0, -0.0, 1e-40]]).astype(np.float32)
    got = np.array([emulated.library.emulated_exp(float(v)) for v in t], dtype=np.float32)
    assert (got.view(np.uint32) == stated_exp(t).view(np.uint32)).all()
    assert emulated.library.emulated_round_to_half(float("nan")) == 0x7FFF


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("hadamard.cuh", "__syncthreads();", ""),
        ("matvec.cuh", "__syncwarp();", ""),
        ("block_dot.cuh", "add(add(p[0], p[4]), add(p[2], p[6]))", "add(add(p[0], p[2]), add(p[4], p[6]))"),
        ("host_loop.h", "launch_cast(ws.transformed, ws.down_x, down.cols, stream);", ""),
    ],
)
def test_planted_faults_are_seen(emulation_builder, tmp_path, file, old, new) -> None:
    """A missing barrier, a wrong order of sums, a launch left out: bytes differ in some thread order."""
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC, csrc)
    source = (csrc / file).read_text()
    assert old in source
    (csrc / file).write_text(source.replace(old, new))
    broken = emulation_builder(tmp_path, csrc)
    layer, workload = setup(ODD, 2, 16)
    inputs = make_batch(workload, 1, seed=1).per_layer[0]
    want = ops.moe(layer, *inputs, variant="v3b")
    assert not all(same_bits(broken.moe(layer, *inputs, "v3b", order=order)[0], want) for order in (0, 1))
