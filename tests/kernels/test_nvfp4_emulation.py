"""The NVFP4 CUDA source, run on the CPU as fibers: the exact implementation's bytes from all twelve variants."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest
import torch
from kernels.nvfp4_emulated import EmulatedNvfp4, build

from glqprof_kernels import geometry
from glqprof_kernels.nvfp4 import factory, routing, tiles
from glqprof_kernels.nvfp4.exact import moe as exact
from glqprof_kernels.nvfp4.exact.product import host_layer, linear
from glqprof_kernels.nvfp4.extension import CSRC, SHARED
from glqprof_kernels.nvfp4.ops import SCHEDULES, VARIANTS

ORDERS = (0, 1, 2)
GATED = (96, 64, 4, "swiglu", 0.0)  # k of gate-up ends in half a slot
CLAMPED = (128, 160, 3, "swiglu", 0.5)  # k of down does
PLAIN = (64, 96, 5, "relu2", 0.0)
ODD = (64, 448, 2, "swiglu", 0.0)  # down: 7 slots; the last stage of two has one, and a ring of three has come around
SHAPES = [GATED, CLAMPED, PLAIN]


@dataclass
class Case:
    """A layer of random weights, packed."""

    layer: object
    packed: tiles.PackedLayer

    def want(self, x, ids, weights, mask_invalid=False) -> torch.Tensor:
        bits = x.contiguous().view(torch.uint16).numpy()
        out = exact.moe(host_layer(self.layer), bits, ids.numpy(), weights.numpy(), mask_invalid=mask_invalid)
        return torch.from_numpy(out).view(torch.bfloat16)


def setup(shape, seed: int = 1) -> Case:
    hidden, inter, experts, activation, limit = shape
    layer = factory.layer(hidden, inter, experts, activation, limit, seed=seed, device="cpu")
    return Case(layer, tiles.pack_layer(layer))


def inputs(shape, rows: int, top_k: int = 2, seed: int = 0, hot: int = 0):
    """x, ids, weights; ``hot``: the first experts that all ids name (0: any)."""
    generator = torch.Generator().manual_seed(1000 * rows + seed)
    x = torch.randn(rows, shape[0], generator=generator).to(torch.bfloat16)
    ids = torch.randint(0, hot or shape[2], (rows, top_k), generator=generator)
    return x, ids, torch.rand(rows, top_k, generator=generator) + 0.1


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    kind = torch.int16 if a.dtype == torch.bfloat16 else torch.int32
    return torch.equal(a.view(kind), b.view(kind))


@pytest.fixture(scope="module")
def emulated(tmp_path_factory) -> EmulatedNvfp4:
    return build(tmp_path_factory.mktemp("nvfp4"))


@pytest.fixture(scope="module")
def below_sm_90(tmp_path_factory) -> EmulatedNvfp4:
    return build(tmp_path_factory.mktemp("nvfp4-80"), CSRC, "-DNVFP4_BULK=0")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[3]}-{shape[0]}-{shape[1]}")
def test_bits_of_the_exact_implementation(emulated, shape, variant) -> None:
    case = setup(shape)
    for rows in (1, 2, 5, 9, 20):
        for hot in (0, 1):
            given = inputs(shape, rows, hot=hot)
            got, _, launches = emulated.moe(case.packed, *given, variant)
            assert same_bits(got, case.want(*given)), (rows, hot)
            assert len(launches) == 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_thread_order_and_number_of_blocks(emulated, variant) -> None:
    case = setup(CLAMPED)
    given = inputs(CLAMPED, 11, top_k=3)
    want = case.want(*given)
    for order in ORDERS:
        assert same_bits(emulated.moe(case.packed, *given, variant, order=order)[0], want), order
    for config in ({"blocks": 1, "warps": 1}, {"blocks": 1}, {"blocks": 7}, {"warps": 3}):
        assert same_bits(emulated.moe(case.packed, *given, variant, order=2, **config)[0], want), config


MULTIPROCESSOR, RESERVED = 228 * 1024, 1024
"""Shared memory of one on an H200, and what every block takes of it beyond its own."""


@pytest.mark.parametrize("name", ["glm-5.3-flash", "qwen3.6-35b-a3b", "cascade2-30b"])
@pytest.mark.parametrize("variant", [v for v in VARIANTS if not v.endswith("regs")])
def test_one_block_of_each_kernel_a_multiprocessor(emulated, name, variant) -> None:
    shape = geometry.load(name)
    gated = shape.activation == "swiglu"
    for rows in (1, 2, 4):
        sizes = (shape.hidden, shape.expert_inter, shape.experts, shape.top_k, gated, rows)
        (warps, _, gate_up), (down_warps, _, down) = emulated.choice(*sizes, variant)
        # 128 registers a thread, 64 of quarter's: two such blocks are 65536.
        assert max(warps, down_warps) <= (16 if variant.startswith("quarter") else 8)
        assert gate_up + down + 2 * RESERVED <= MULTIPROCESSOR, rows
        assert 2 * (down + RESERVED) > MULTIPROCESSOR, rows
        assert down + 2 * gate_up + 3 * RESERVED > MULTIPROCESSOR, rows


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("depth", [2, 3, 4, 6, 16])
def test_every_depth(emulated, schedule, depth) -> None:
    for shape in (GATED, PLAIN):
        case = setup(shape)
        for rows, blocks in ((6, 1), (17, 2)):
            given = inputs(shape, rows)
            got = emulated.moe(case.packed, *given, f"{schedule}-deep", depth=depth, blocks=blocks, order=2)[0]
            assert same_bits(got, case.want(*given)), (shape, rows)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ring_deep_without_the_bulk_copy_engine(below_sm_90, schedule) -> None:
    for shape in SHAPES:
        case = setup(shape)
        for rows in (1, 6, 17):
            for depth in (0, 4, 12):
                given = inputs(shape, rows)
                got = below_sm_90.moe(case.packed, *given, f"{schedule}-deep", depth=depth, order=2)[0]
                assert same_bits(got, case.want(*given)), (shape, rows, depth)


@pytest.mark.parametrize("item_rows", [1, 2, 4, 8, 16])
def test_how_rows_are_grouped_changes_no_byte(emulated, item_rows) -> None:
    case = setup(GATED)
    given = inputs(GATED, 19, hot=2)
    for variant in ("base-ring", "waves-regs", "half-deep"):
        assert same_bits(emulated.moe(case.packed, *given, variant, item_rows=item_rows)[0], case.want(*given))
    for variant in ("quarter-regs", "quarter-ring", "quarter-deep"):
        if item_rows <= 8:
            assert same_bits(emulated.moe(case.packed, *given, variant, item_rows=item_rows)[0], case.want(*given))
        else:
            with pytest.raises(RuntimeError, match="items of 8 rows at most"):
                emulated.moe(case.packed, *given, variant, item_rows=item_rows)


@pytest.mark.parametrize("depth", [3, 4, 5, 6])
@pytest.mark.parametrize("ahead_kib", [0, 1, 64])
def test_stages_of_the_quarter_ring_and_what_is_asked_into_l2(emulated, depth, ahead_kib) -> None:
    for shape in (*SHAPES, ODD):
        case = setup(shape)
        for rows, blocks in ((1, 2), (6, 1), (17, 2)):
            given = inputs(shape, rows)
            config = {"depth": depth, "blocks": blocks, "order": 2, "ahead_kib": ahead_kib}
            got = emulated.moe(case.packed, *given, "quarter-ring", **config)[0]
            assert same_bits(got, case.want(*given)), (shape, rows)


@pytest.mark.parametrize("depth", [2, 7])
def test_a_quarter_ring_of_other_depths_is_refused(emulated, depth) -> None:
    with pytest.raises(RuntimeError, match="3 to 6 stages"):
        emulated.moe(setup(GATED).packed, *inputs(GATED, 1), "quarter-ring", depth=depth)


def test_a_multiprocessor_has_sixteen_warps_of_one_row_of_glm(emulated) -> None:
    """8 experts of 2048 columns by 8, and of 4096 by 16: 2048 units on 132 multiprocessors, 15.5 each."""
    shape = geometry.load("glm-5.3-flash")
    sizes = (shape.hidden, shape.expert_inter, shape.experts, shape.top_k, True, 1)
    gate_up, down = emulated.choice(*sizes, "quarter-ring")
    # A stage: 128 inputs of 16 rows, codes and scales, and of x.
    assert gate_up[:2] == down[:2] == [16, 4]
    assert gate_up[2] == 16 * 4 * (128 * 16 // 2 + 128 // 16 * 16 + 128 * 2)


@pytest.mark.parametrize("shared_kib", [163, 99])
def test_less_shared_memory(emulated, shared_kib) -> None:
    """sm_80 and sm_120: fewer warps a block, or fewer stages."""
    case = setup(GATED)
    given = inputs(GATED, 20, hot=2)
    for variant in VARIANTS:
        got = emulated.moe(case.packed, *given, variant, blocks=1, shared_bytes=shared_kib * 1024)[0]
        assert same_bits(got, case.want(*given)), variant


@pytest.mark.parametrize("limit", [0.0, 10.0])
def test_clamp_off_and_at_ten(emulated, limit) -> None:
    shape = (96, 64, 4, "swiglu", limit)
    case = setup(shape)
    x, ids, weights = inputs(shape, 4)
    x *= 64  # gates and ups beyond 10
    want = case.want(x, ids, weights)
    for variant in VARIANTS:
        assert same_bits(emulated.moe(case.packed, x, ids, weights, variant)[0], want), variant
    other = setup((96, 64, 4, "swiglu", 10.0 - limit))
    assert not same_bits(want, other.want(x, ids, weights))


@pytest.mark.parametrize("shape", [GATED, PLAIN], ids=lambda shape: shape[3])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38, 1e-40])
def test_values_that_are_not_ordinary(emulated, shape, value) -> None:
    case = setup(shape)
    x, ids, weights = inputs(shape, 3)
    x[1, 5] = value
    x[0] = torch.where(torch.arange(shape[0]) % 2 == 0, 0.0, -0.0)
    want = case.want(x, ids, weights)
    for variant in VARIANTS:
        got = emulated.moe(case.packed, x, ids, weights, variant)[0]
        assert same_bits(got, want), variant
        assert torch.isfinite(got[2]).all()


def test_weights_that_are_skipped_or_not_numbers(emulated) -> None:
    case = setup(GATED)
    x, ids, weights = inputs(GATED, 4, top_k=3)
    weights[0, 1], weights[1], weights[2, 0], weights[3, 2] = 0.0, 0.0, float("nan"), -0.0
    want = case.want(x, ids, weights)
    for variant in VARIANTS:
        got, plan, _ = emulated.moe(case.packed, x, ids, weights, variant)
        assert same_bits(got, want), variant
        assert (got[1] == 0).all()
        assert 1 not in plan["rows"]
    got, plan, _ = emulated.moe(case.packed, x, ids, torch.zeros_like(weights), "base-ring")
    assert (got.view(torch.int16) == 0).all()
    assert plan["expert"] == []


@pytest.mark.parametrize("rows", [1, 2, 16, 40, 300])
@pytest.mark.parametrize("hot", [0, 1, 3])
def test_the_plan_is_the_one_by_definition(emulated, rows, hot) -> None:
    shape = (32, 32, 37, "relu2", 0.0)
    case = setup(shape)
    x, ids, weights = inputs(shape, rows, top_k=8, hot=hot)
    ids[0, 0], ids[rows - 1, 7] = -1, 37
    weights[rows // 2, 3] = 0.0
    want = routing.make_plan(ids.numpy(), shape[2], weights.numpy(), mask_invalid=True)
    for order in ORDERS:
        got = emulated.moe(case.packed, x, ids, weights, "base-regs", mask_invalid=True, item_rows=16, order=order)[1]
        for name in ("rows", "expert", "start", "count"):
            assert got[name] == getattr(want, name).tolist(), name
    assert int(case.packed.errors) == 0


@pytest.mark.parametrize("bad", [-1, 4, 2**40, -(2**40), 2**32 + 1])
def test_ids_of_no_expert_are_skipped_and_counted(emulated, bad) -> None:
    case = setup(GATED)
    x, ids, weights = inputs(GATED, 3)
    ids[1, 0] = bad
    want = case.want(x, ids, weights, mask_invalid=True)
    for count, variant in enumerate(VARIANTS, 1):
        assert same_bits(emulated.moe(case.packed, x, ids, weights, variant)[0], want)
        assert int(case.packed.errors) == count
    assert same_bits(emulated.moe(case.packed, x, ids, weights, "base-ring", mask_invalid=True)[0], want)
    assert int(case.packed.errors) == len(VARIANTS)


def test_strided_inputs(emulated) -> None:
    case = setup(GATED)
    x, ids, weights = inputs(GATED, 5)
    wide_x = torch.full((5, 2 * 96 + 1), float("nan"), dtype=torch.bfloat16)
    wide_x[:, 1::2] = x
    wide_ids = torch.full((5, 6), -1)
    wide_ids[:, 2:4] = ids
    wide_weights = torch.zeros(6, 5).T
    wide_weights[:, 2:4] = weights
    padded = torch.zeros(5, 104, dtype=torch.bfloat16)
    padded[:, :96] = x
    odd = torch.zeros(5 * 96 + 1, dtype=torch.bfloat16)
    odd[1:] = x.flatten()
    want = case.want(x, ids, weights)
    for seen in (wide_x[:, 1::2], padded[:, :96], odd[1:].view(5, 96)):
        for variant in ("base-regs", "half-ring", "waves-deep", "quarter-ring"):
            got = emulated.moe(case.packed, seen, wide_ids[:, 2:4], wide_weights[:, 2:4], variant, order=2)[0]
            assert same_bits(got, want), (seen.stride(), variant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_of_the_experts(emulated, dtype) -> None:
    case = setup(PLAIN)
    x, ids, weights = inputs(PLAIN, 3)
    weights[1, 1] = 0.0
    host = host_layer(case.layer)
    for variant in VARIANTS:
        got, _, launches = emulated.moe(case.packed, x, ids, weights, variant, experts_as=dtype)
        assert len(launches) == 3
        for token in range(3):
            for k in range(2):
                if (token, k) == (1, 1):
                    assert got[token, k].isnan().all()  # as it was
                    continue
                row = exact.from_bf16(x[token : token + 1].view(torch.uint16).numpy())
                expert = int(ids[token, k])
                y = linear(host.down, expert, exact.activation(host, linear(host.gate_up, expert, row)))
                assert same_bits(got[token, k], torch.from_numpy(y)[0].to(dtype)), (variant, token, k)


FAULTS = [
    ("ring.cuh", "wait_copy_groups<DEPTH - 2>()", "wait_copy_groups<DEPTH - 1>()"),
    ("ring.cuh", "copy_next<true, true>(stages.before, other_at);", "copy_next<true, true>(stages.now, other_at);"),
    ("ring.cuh", "copy16_group_if(lane < kBusyLanes,", "copy16_group_if(true,"),
    ("ring.cuh", "copy16_group_if(left > i % kSlots,", "copy16_group_if(left > 0 && i % kSlots == 0,"),
    ("bulk.cuh", "      fill(stage, barrier);", "      fill(stages.now, stages.barrier);"),
    ("bulk.cuh", "parity ^= 1;", "parity ^= 0;"),
    ("bulk.cuh", "for (int row = 1; row < count; ++row)", "for (int row = 2; row < count; ++row)"),
    ("decode.cuh", "const float scale[2] = {block ? upper.y", "const float scale[2] = {block ? upper.x"),
    ("unit.cuh", "if (row < unit.count) {", "if (row + 1 < unit.count) {"),
    ("combine.cuh", "static_cast<int64_t>(k) * hidden", "static_cast<int64_t>(k ^ 1) * hidden"),
    ("regs.cuh", "if (k < m.inputs) x =", "x ="),
]


@pytest.mark.parametrize(("name", "old", "new"), FAULTS, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(FAULTS)])
def test_planted_faults_are_seen(tmp_path, name, old, new) -> None:
    csrc = tmp_path / "nvfp4" / "csrc"
    shutil.copytree(CSRC, csrc)
    shutil.copytree(SHARED, tmp_path / "glq" / "csrc")
    source = (csrc / name).read_text()
    assert old in source
    (csrc / name).write_text(source.replace(old, new))
    broken = build(tmp_path, csrc, "-O1")
    wrong = False
    for shape in (GATED, CLAMPED):
        case = setup(shape)
        x, ids, weights = inputs(shape, 6, hot=2)
        weights[2, 0] = 0.0
        buffer = torch.full((6, 160), float("nan"), dtype=torch.bfloat16)
        buffer[:, : shape[0]] = x
        x = buffer[:, : shape[0]]  # beyond k lies what must not be read
        want = case.want(x, ids, weights)
        for variant in ("base-regs", "base-ring", "half-ring", "half-deep", "quarter-ring"):
            depth = 3 if variant == "quarter-ring" else 2
            try:
                got = broken.moe(case.packed, x, ids, weights, variant, order=1, blocks=1, warps=2, depth=depth)[0]
            except RuntimeError:
                wrong = True
                continue
            wrong = wrong or not same_bits(got, want)
    assert wrong
