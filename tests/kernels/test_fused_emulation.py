"""The fused CUDA source, run on the CPU as fibers: v3b's bytes from every configuration, fused-fast near float64."""

from __future__ import annotations

import shutil

import pytest
import torch

from glqprof_kernels import geometry
from glqprof_kernels.geometry import Geometry
from glqprof_kernels.glq import factory, fused, ops, reference
from glqprof_kernels.glq.extension import CSRC
from glqprof_kernels.glq.workload import MoeWorkload, adversarial, make_batch

TINY = geometry.load("tiny-odd")
ODD = Geometry("odd", 1048, 136, 3, 2, 1, "relu2", 0.0)  # 131 blocks: splits with an odd last block
GATED = Geometry("gated", 88, 40, 3, 2, 1, "swiglu", 10.0)
WIDE = Geometry("wide", 136, 552, 4, 3, 1, "swiglu", 0.0)  # several unit batches and slots a block
ORDERS = (0, 1, 2)


def setup(shape: Geometry, stages: int, split_blocks: int = 64):
    layer = factory.layer(shape, stages, "cpu", stages=stages, split_blocks=split_blocks)
    workload = MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow)
    return layer, fused.pack_layer(layer), workload


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def is_empty(workspace: torch.Tensor) -> bool:
    """As before the first call: no word is there (padding included)."""
    return bool((workspace == 0xFF).all())


def relative(out: torch.Tensor, want: torch.Tensor) -> float:
    return ((out.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("shape", [TINY, GATED, ODD, WIDE], ids=lambda shape: shape.name)
@pytest.mark.parametrize(("stages", "split_blocks"), [(1, 64), (2, 16), (2, 64), (3, 32), (4, 64)])
def test_bits_in_any_thread_order(emulated_fused, shape, stages, split_blocks) -> None:
    layer, packed, workload = setup(shape, stages, split_blocks)
    for rows in (1, 3):
        inputs = make_batch(workload, rows, seed=rows).per_layer[0]
        want = ops.moe(layer, *inputs)
        for order in ORDERS:
            got, launches = emulated_fused.moe(packed, *inputs, order=order)
            assert same_bits(got, want), (rows, order)
            assert len(launches) == 1
        got, launches = emulated_fused.moe(packed, *inputs, one_launch=0)
        assert same_bits(got, want)
        assert len(launches) == 2


@pytest.mark.parametrize("blocks", [1, 2, 7, 40])
def test_any_number_of_thread_blocks(emulated_fused, blocks) -> None:
    layer, packed, workload = setup(ODD, 2, 16)
    inputs = make_batch(workload, 2, seed=5).per_layer[0]
    want = ops.moe(layer, *inputs)
    for one_launch in (0, 1):
        assert same_bits(emulated_fused.moe(packed, *inputs, blocks=blocks, one_launch=one_launch)[0], want)


@pytest.mark.parametrize("shape", [ODD, WIDE], ids=lambda shape: shape.name)
def test_thread_blocks_in_any_turn(emulated_fused, shape) -> None:
    """A cooperative launch whose blocks go on in random turns, each until it waits for another's sums."""
    layer, packed, workload = setup(shape, 2, 16)
    workspace = emulated_fused.workspace(packed, 8 * shape.top_k)
    for seed in range(1, 7):
        rows = (1, 2, 8)[seed % 3]
        inputs = make_batch(workload, rows, seed=seed).per_layer[0]
        config = {"seed": seed, "blocks": 2 + seed, "workspace": workspace}
        got = emulated_fused.moe(packed, *inputs, order=2, **config)[0]
        assert same_bits(got, ops.moe(layer, *inputs)), seed
        assert is_empty(workspace), seed
        fast = emulated_fused.moe(packed, *inputs, order=2, fast=1, **config)[0]
        assert same_bits(fast, emulated_fused.moe(packed, *inputs, fast=1, one_launch=0)[0]), seed
        assert is_empty(workspace), seed


def test_sums_that_are_not_numbers_are_not_waited_for(emulated_fused) -> None:
    """NaN and infinite sums look like missing words at first sight."""
    layer, packed, workload = setup(TINY, 2)
    x, ids, weights = make_batch(workload, 2, seed=1).per_layer[0]
    x[0, 3], x[1, 5] = float("nan"), float("-inf")
    x.view(torch.int16)[0, 4] = -1  # the fp16 NaN whose bits are all ones
    want = ops.moe(layer, x, ids, weights, warn_overflow=False)
    assert same_bits(emulated_fused.moe(packed, x, ids, weights)[0], want)


@pytest.mark.parametrize("shared_kib", [227, 200, 99])
def test_less_shared_memory(emulated_fused, shared_kib) -> None:
    """Fewer vectors at a time, then the table in global memory: what sm_80 and sm_120 do."""
    for stages in (1, 2, 3, 4):
        layer, packed, workload = setup(WIDE, stages)
        inputs = make_batch(workload, 4, seed=6).per_layer[0]
        for fast in (0, 1):
            got = emulated_fused.moe(packed, *inputs, shared_bytes=shared_kib * 1024, fast=fast)[0]
            if fast:
                assert relative(got, reference.moe(layer, *inputs)) < 5e-4
            else:
                assert same_bits(got, ops.moe(layer, *inputs))


@pytest.mark.parametrize("shape", [TINY, GATED], ids=lambda shape: shape.name)
def test_adversarial(emulated_fused, shape) -> None:
    layer, packed, workload = setup(shape, 3, 16)
    for label, batch in adversarial(workload, 2):
        inputs = batch.per_layer[0]
        before = int(layer.overflow)
        want = ops.moe(layer, *inputs, warn_overflow=False)
        between = int(layer.overflow)
        assert same_bits(emulated_fused.moe(packed, *inputs)[0], want), label
        assert int(layer.overflow) - between == between - before, label  # both count in the layer's


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [TINY, GATED, ODD, WIDE], ids=lambda shape: shape.name)
def test_fast_is_nearer_to_float64_than_v3b(emulated_fused, shape, stages) -> None:
    layer, packed, workload = setup(shape, stages, 16)
    for rows in (1, 2):
        inputs = make_batch(workload, rows, seed=rows).per_layer[0]
        want = reference.moe(layer, *inputs)
        results = [emulated_fused.moe(packed, *inputs, fast=1, order=order)[0] for order in ORDERS]
        results.append(emulated_fused.moe(packed, *inputs, fast=1, blocks=1)[0])
        assert all(same_bits(results[0], other) for other in results)  # integer sums: no order shows
        assert relative(results[0], want) <= relative(ops.moe(layer, *inputs), want)


def test_fast_and_what_is_not_finite(emulated_fused) -> None:
    _, packed, workload = setup(TINY, 2)
    x, ids, weights = make_batch(workload, 2, seed=1).per_layer[0]
    for value in (float("inf"), float("nan")):
        spiked = x.clone()
        spiked[0, 3] = value
        out = emulated_fused.moe(packed, spiked, ids, weights, fast=1)[0]
        assert out[0].isnan().all()
        assert torch.isfinite(out[1]).all()
    assert (emulated_fused.moe(packed, torch.zeros_like(x), ids, weights, fast=1)[0] == 0).all()


def test_one_workspace_serves_many_calls(emulated_fused) -> None:
    """Words are cleared whatever the ids were: what graph replay needs."""
    layer, packed, workload = setup(TINY, 2)
    workspace = emulated_fused.workspace(packed, 4)
    for seed in range(6):
        x, ids, weights = make_batch(workload, 2, seed=seed).per_layer[0]
        if seed % 2:
            ids, weights = ids.clone(), weights.clone()
            ids[0, 0], weights[1] = -1, 0.0
        want = ops.moe(layer, x, ids, weights, mask_invalid=True)
        for config in ({}, {"blocks": 1}, {"fast": 1}):
            got = emulated_fused.moe(packed, x, ids, weights, workspace=workspace, mask_invalid=True, **config)[0]
            assert config.get("fast") or same_bits(got, want), (seed, config)
            assert is_empty(workspace), (seed, config)


@pytest.mark.parametrize("bad", [-1, 5, 2**40])
def test_ids_of_no_expert_are_skipped_and_counted(emulated_fused, bad) -> None:
    layer, packed, workload = setup(TINY, 2)
    x, ids, weights = make_batch(workload, 2, seed=3).per_layer[0]
    ids[1, 0] = bad
    want = ops.moe(layer, x, ids, weights, mask_invalid=True)
    assert same_bits(emulated_fused.moe(packed, x, ids, weights)[0], want)
    assert int(packed.errors) == 1
    assert same_bits(emulated_fused.moe(packed, x, ids, weights, mask_invalid=True)[0], want)
    assert int(packed.errors) == 1
    weights[1, 0] = 0
    emulated_fused.moe(packed, x, ids, weights)
    assert int(packed.errors) == 2


def test_strided_inputs(emulated_fused) -> None:
    layer, packed, workload = setup(ODD, 2)
    x, ids, weights = dict(adversarial(workload, 2))["non-contiguous views"].per_layer[0]
    assert not x.is_contiguous()
    assert same_bits(emulated_fused.moe(packed, x, ids, weights)[0], ops.moe(layer, x, ids, weights))


def test_layers_of_several_sizes_share_a_workspace(emulated_fused) -> None:
    made = [setup(shape, 2, 16) for shape in (TINY, ODD)]
    workspace = emulated_fused.workspace(made[1][1], 4)
    for _ in range(2):
        for layer, packed, workload in made:
            inputs = make_batch(workload, 2, seed=3).per_layer[0]
            assert same_bits(emulated_fused.moe(packed, *inputs, workspace=workspace)[0], ops.moe(layer, *inputs))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("fused_transform.cuh", "  __syncthreads();\n}\n\n// Transforms", "}\n\n// Transforms"),
        ("fused_output.cuh", "phase < 2; ++phase", "phase < 1; ++phase"),
        ("fused_output.cuh", "int phase = 0; phase < 2", "int phase = 1; phase < 2"),
        ("fused_output.cuh", ", 2 * kBytes, 0, 1);", ", 0, 0, 1);"),
        ("fused_output.cuh", "if (thread >= 0) clear_sums", "if (thread > 0) clear_sums"),
        ("fused_output.cuh", "slot + 1 == shared.first_slot[token + 1]", "slot == shared.first_slot[token]"),
        ("fused_output.cuh", "n * kBytes, last - from);", "n * kBytes, last - from - 1);"),
        ("fused_transform.cuh", "  } while (missing && (looks++ == 0 || keep_waiting()));", "  } while (false);"),
        ("fused_transform.cuh", "      words[q] = load_words(bytes + q / PARTS * apart + q % PARTS * 16);\n", ""),
        ("fused_exact_product.cuh", "  __syncthreads();\n  chain_pairs", "  chain_pairs"),
        (
            "fused_exact_product.cuh",
            "  }\n  __syncthreads();\n#pragma unroll 1\n  for (int row",
            "  }\n#pragma unroll 1\n  for (int row",
        ),
        ("fused_kernel.cuh", "by_items(shared.batch.share)", "by_items(shared.batch.begin)"),
        ("fused_kernel.cuh", "shared.first_slot[t] == shared.first_slot[t + 1]", "false"),
        ("fused_kernel.cuh", "shared.batch.end, shared.batch.last,", "shared.batch.end + 1, shared.batch.last,"),
    ],
)
def test_planted_faults_are_seen(fused_builder, tmp_path, file, old, new) -> None:
    csrc = tmp_path / "csrc"
    shutil.copytree(CSRC, csrc)
    source = (csrc / file).read_text()
    assert source.count(old) == 1
    (csrc / file).write_text(source.replace(old, new))
    broken = fused_builder(tmp_path, csrc)
    wrong = False
    for shape, blocks in ((ODD, 5), (ODD, 12), (WIDE, 1)):
        layer, packed, workload = setup(shape, 2, 16)
        workspace = broken.workspace(packed, 4 * shape.top_k)
        x, ids, weights = make_batch(workload, 4, seed=blocks).per_layer[0]
        weights[3] = 0
        want = ops.moe(layer, x, ids, weights)
        for order in ORDERS:
            config = {"workspace": workspace, "blocks": blocks, "seed": order + 1}
            try:
                got = broken.moe(packed, x, ids, weights, order=order, **config)[0]
            except RuntimeError:
                wrong = True
                break
            wrong = wrong or not same_bits(got, want) or not is_empty(workspace)
        if wrong:
            break
    assert wrong
