"""The SSM CUDA source, run on the CPU as fibers: the exact implementation's bytes from every schedule."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from kernels.ssm_emulated import ORDERS, build

from glqprof_kernels import geometry, ssm
from glqprof_kernels.glq import factory as glq_factory
from glqprof_kernels.glq import fused
from glqprof_kernels.glq.extension import CSRC as GLQ_CSRC
from glqprof_kernels.glq.workload import MoeWorkload, make_batch
from glqprof_kernels.ssm import exact, factory
from glqprof_kernels.ssm.extension import CSRC
from glqprof_kernels.ssm.factory import TINY, Sizes

SIZES = {
    "tiny": TINY,
    "odd-rows": Sizes(heads=6, head_dim=20, state=32, groups=2),  # 60 rows: 28 in the last chunk
    "one-group": Sizes(heads=3, head_dim=5, state=16, groups=1, taps=3, conv_bias=False),
    "two-taps": Sizes(heads=2, head_dim=64, state=64, groups=1, taps=2),
    "wide": Sizes(heads=1, head_dim=64, state=128, groups=1),
    "widest": Sizes(heads=4, head_dim=16, state=256, groups=1, taps=1),
    "three-chunks": Sizes(heads=3, head_dim=32, state=16, groups=1),
}
SCHEDULES = [
    {"fused": False},
    {"exchange": "counter"},
    {"exchange": "counter", "early": False},
    {"capability": 80},
    {"exchange": "auto"},
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    return build(tmp_path_factory.mktemp("ssm"))


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bytes; a NaN of a state is any NaN, since what a GPU makes of one is not stated."""
    if a.dtype == torch.float32:
        a, b = (torch.where(t.isnan(), torch.nan, t) for t in (a, b))
        return torch.equal(a.view(torch.int32), b.view(torch.int32))
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def check(emulated, weights, projected, states, want, wanted_states, **config):
    """One step of clones; the launches."""
    mine = [t.clone() for t in states]
    out, launches = emulated.step(weights, projected, *mine, **config)
    assert same_bytes(out, want), config
    assert same_bytes(mine[0], wanted_states[0]), config
    assert same_bytes(mine[1], wanted_states[1]), config
    return launches


@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_bits_in_any_thread_order(emulated, sizes, state_dtype) -> None:
    weights = factory.layer(sizes, 1, "cpu")
    for batch in (1, 2):
        projected = factory.projected(weights, batch, 2)
        states = factory.states(weights, batch, 3, state_dtype)
        wanted_states = [t.clone() for t in states]
        want = ssm.step(weights, projected, *wanted_states)
        for order in ORDERS[: 3 if batch == 1 else 1]:
            for schedule in SCHEDULES:
                launches = check(emulated, weights, projected, states, want, wanted_states, order=order, **schedule)
                assert len(launches) == (1 if schedule.get("fused", True) else 3)


@pytest.mark.parametrize(("sizes", "chunks"), [("odd-rows", 1), ("odd-rows", 2), ("two-taps", 2), ("wide", 1)])
def test_clusters_of_any_size(emulated, sizes, chunks) -> None:
    weights = factory.layer(SIZES[sizes], 4, "cpu")
    projected, states = factory.projected(weights, 2, 5), factory.states(weights, 2, 6)
    wanted_states = [t.clone() for t in states]
    want = ssm.step(weights, projected, *wanted_states)
    for order in ORDERS:
        for early in (False, True):
            config = {"exchange": "cluster", "chunks": chunks, "order": order, "early": early}
            launches = check(emulated, weights, projected, states, want, wanted_states, **config)
            assert launches == [f"(ssm_fused_kernel<kState, kNarrow, {chunks}, kCluster>)"]


def test_sixteen_blocks_of_one_group(emulated) -> None:
    """cascade2-30b's group: 8 heads of 64, one chunk or two a block."""
    weights = factory.layer(Sizes(heads=8, head_dim=64, state=128, groups=1), 4, "cpu")
    projected, states = factory.projected(weights, 1, 5), factory.states(weights, 1, 6)
    wanted_states = [t.clone() for t in states]
    want = ssm.step(weights, projected, *wanted_states)
    for chunks in (1, 2):
        check(emulated, weights, projected, states, want, wanted_states, chunks=chunks, order=2)
    check(emulated, weights, projected, states, want, wanted_states, exchange="counter", order=2)


def test_choice_of_the_schedule(emulated) -> None:
    """Clusters where the device has them and the chunks make a power of two; two chunks a block where 16 do not fit."""
    cluster, counter = "kCluster", "kCounter"
    cases = [
        ("two-taps", {}, f"1, {cluster}"),
        ("two-taps", {"capability": 120, "largest_cluster": 2}, f"2, {cluster}"),
        ("two-taps", {"capability": 89}, f"1, {counter}"),
        ("two-taps", {"largest_cluster": 1}, f"1, {counter}"),
        ("three-chunks", {}, f"1, {counter}"),
    ]
    for sizes, config, want in cases:
        weights = factory.layer(SIZES[sizes], 1, "cpu")
        launches = emulated.step(weights, factory.projected(weights, 1, 1), *factory.states(weights, 1, 1), **config)[1]
        assert launches == [f"(ssm_fused_kernel<kState, kNarrow, {want}>)"], (sizes, config)
    weights = factory.layer(SIZES["three-chunks"], 1, "cpu")
    arguments = (weights, factory.projected(weights, 1, 1), *factory.states(weights, 1, 1))
    with pytest.raises(ValueError, match="a group of 3 chunks makes no cluster on this device"):
        emulated.step(*arguments, exchange="cluster")
    with pytest.raises(ValueError, match="one chunk a block"):
        emulated.step(*arguments, exchange="counter", chunks=2)


def test_parameters_of_fp32(emulated) -> None:
    weights = factory.layer(TINY, 7, "cpu")
    wide = [t.float() + 0.001 for t in (weights.conv_bias, weights.dt_bias, weights.d, weights.norm_weight)]
    changed = ssm.StepWeights(weights.conv_weight, wide[0], wide[1], weights.a, *wide[2:], 1e-5, 4, 16, 16, 2)
    projected, states = factory.projected(weights, 2, 5), factory.states(weights, 2, 6)
    wanted_states = [t.clone() for t in states]
    want = ssm.step(changed, projected, *wanted_states)
    assert not same_bytes(want, ssm.step(weights, projected, *[t.clone() for t in states]))
    for schedule in SCHEDULES:
        check(emulated, changed, projected, states, want, wanted_states, **schedule)


def test_strides_and_new_states_elsewhere(emulated) -> None:
    weights = factory.layer(SIZES["odd-rows"], 8, "cpu")
    projected, states = factory.projected(weights, 3, 5), factory.states(weights, 3, 6)
    wanted_states = [t.clone() for t in states]
    want = ssm.step(weights, projected, *wanted_states)

    def spread(t: torch.Tensor) -> torch.Tensor:
        """The same values, every sequence followed by NaN."""
        wide = torch.full((2 * t.shape[0], *t.shape[1:]), torch.nan, dtype=t.dtype)
        wide[::2] = t
        return wide[::2]

    for schedule in SCHEDULES:
        mine = [spread(t) for t in states]
        into = [spread(torch.zeros_like(t)) for t in states]
        out, _ = emulated.step(weights, spread(projected), *mine, into, **schedule)
        assert same_bytes(out, want)
        for k in range(2):
            assert same_bytes(mine[k].contiguous(), states[k])
            assert same_bytes(into[k].contiguous(), wanted_states[k])
            assert into[k]._base[1::2].isnan().all()


def test_many_steps_and_one_workspace(emulated) -> None:
    """States evolve as the exact ones do; counters return to zero by themselves, as graph replay needs."""
    weights = factory.layer(SIZES["three-chunks"], 9, "cpu")
    states = factory.states(weights, 2, 6)
    mine = {index: [t.clone() for t in states] for index in range(len(SCHEDULES))}
    workspace = emulated.workspace(weights, 2)
    for token in range(6):
        projected = factory.projected(weights, 2, 100 + token)
        want = ssm.step(weights, projected, *states)
        for index, schedule in enumerate(SCHEDULES):
            out, _ = emulated.step(weights, projected, *mine[index], workspace=workspace, **schedule)
            assert same_bytes(out, want)
            assert all(same_bytes(a, b) for a, b in zip(mine[index], states, strict=True))
            assert (workspace[: emulated.counter_bytes(weights, 2)] == 0).all()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3e38, 1e-40, -0.0])
def test_hostile_inputs(emulated, value) -> None:
    weights = factory.layer(SIZES["odd-rows"], 10, "cpu")
    w = weights
    for at in (3, w.inter + 5, w.inter + w.inter + 1, w.inter + w.inter + 70, w.inter + w.conv_dim + 2):
        projected, states = factory.projected(weights, 1, 5), factory.states(weights, 1, 6)
        projected[0, at] = value
        states[1][0, 1, 2, 3] = value
        wanted_states = [t.clone() for t in states]
        want = ssm.step(weights, projected, *wanted_states)
        for schedule in SCHEDULES[:2]:
            check(emulated, weights, projected, states, want, wanted_states, **schedule)


def test_softplus_of_the_source(emulated) -> None:
    z = np.concatenate([np.linspace(-110, 110, 2001), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40]]).astype(np.float32)
    got = np.array([emulated.library.emulated_ssm_softplus(float(v)) for v in z], dtype=np.float32)
    np.testing.assert_array_equal(got.view(np.uint32), exact.softplus(z).view(np.uint32))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("fused.cuh", "  __syncthreads();\n\n  float gate = 0.0f;", "\n  float gate = 0.0f;"),
        ("fused.cuh", "  __syncthreads();\n\n  float gated", "\n  float gated"),
        ("fused.cuh", "    cluster_arrive();\n    cluster_wait();\n    if (has_row)", "    if (has_row)"),
        ("fused.cuh", "    if (blockIdx.x == 0) store_shared_windows();\n", ""),
        ("fused.cuh", "    if (shared.last) call.counters[which] = 0;\n", ""),
        ("fused.cuh", "  store_shared_windows();\n}", "}"),
        (
            "fused.cuh",
            "shared.bc[thread + j * kStateThreads] = channels[j]",
            "channels[j].store_window(call, sequence, channel_of(j)), "
            "shared.bc[thread + j * kStateThreads] = channels[j]",
        ),
        ("state_rows.cuh", "row(pass) * STATE +", "row(pass) * (STATE - 4) +"),
        (
            "arithmetic.cuh",
            "window[0] = static_cast<uint16_t>(packed.x >> 16);",
            "window[0] = static_cast<uint16_t>(packed.x & 0xFFFFu);",
        ),
    ],
)
def test_planted_faults_are_seen(tmp_path, file, old, new) -> None:
    shutil.copytree(GLQ_CSRC, tmp_path / "glq" / "csrc")
    csrc = tmp_path / "ssm" / "csrc"
    shutil.copytree(CSRC, csrc)
    source = (csrc / file).read_text()
    assert source.count(old) == 1
    (csrc / file).write_text(source.replace(old, new))
    broken = build(tmp_path, csrc, "-O0")  # compiles in a third of the time
    weights = factory.layer(Sizes(heads=2, head_dim=32, state=16, groups=1), 1, "cpu")
    workspace = broken.workspace(weights, 2)
    states = factory.states(weights, 2, 3)
    wrong = False
    for seed in range(2):
        projected = factory.projected(weights, 2, seed)
        wanted_states = [t.clone() for t in states]
        want = ssm.step(weights, projected, *wanted_states)
        for order in ORDERS:
            for exchange in ("cluster", "counter"):
                mine = [t.clone() for t in states]
                try:
                    out, _ = broken.step(weights, projected, *mine, exchange=exchange, order=order, workspace=workspace)
                except ValueError:
                    wrong = True
                    continue
                wrong = wrong or not same_bytes(out, want)
                wrong = wrong or not all(same_bytes(a, b) for a, b in zip(mine, wanted_states, strict=True))
    assert wrong


def test_another_librarys_cooperative_launch_changes_nothing_here(emulated, emulated_fused) -> None:
    """Emulated libraries of one process once shared a machine, and with it what the last launch had asked for."""
    shape = geometry.load("tiny-odd")
    layer = glq_factory.layer(shape, 1, "cpu", stages=2)
    inputs = make_batch(MoeWorkload(shape.name, 1, "cpu", [layer], shape, layer.overflow), 1, seed=2).per_layer[0]
    emulated_fused.moe(fused.pack_layer(layer), *inputs)
    weights = factory.layer(SIZES["tiny"], 1, "cpu")
    projected, states = factory.projected(weights, 3, 2), factory.states(weights, 3, 3)
    wanted_states = [t.clone() for t in states]
    want = ssm.step(weights, projected, *wanted_states)
    for schedule in SCHEDULES:
        check(emulated, weights, projected, states, want, wanted_states, **schedule)
