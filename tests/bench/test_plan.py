from __future__ import annotations

import pytest

from bench.toys import FakeDevice, honest, toy_group, variant
from glqprof.bench.calls import MAX_SETS, CallSet, Seeds, calls_per_block, sets_needed
from glqprof.bench.plan import make_plan, parse_options, parse_rows
from glqprof.bench.registry import Registry, SameBits
from glqprof.errors import InputError


@pytest.fixture
def registry():
    registry = Registry()
    registry.add_group(toy_group(cpu_geometry="tiny", geometries=("million", "tiny")))
    device = FakeDevice()
    registry.add_variant(variant(device, "base", honest()))
    registry.add_variant(variant(device, "a", honest(), contract=SameBits("base")))
    registry.add_variant(variant(device, "b", honest(), contract=SameBits("a"), devices=("cpu", "cuda")))
    return registry


def test_defaults_follow_the_device(registry):
    cpu = make_plan(registry, "toy", "cpu")
    assert [v.name for v in cpu.variants] == ["base", "a", "b"]
    assert (cpu.geometry, cpu.layers, cpu.quads, cpu.rows) == ("tiny", 2, 6, (1,))
    with pytest.raises(InputError, match="'a', which does not run on cuda"):
        make_plan(registry, "toy", "cuda")


def test_the_baseline_is_always_benched_first_and_anchors_come_along(registry):
    plan = make_plan(registry, "toy", "cpu", variants=["b"])
    assert [v.name for v in plan.variants] == ["base", "b"]
    assert [v.name for v in plan.anchors] == ["a"]
    assert [v.name for v in make_plan(registry, "toy", "cpu", variants=["base", "a"], baseline="a").variants] == [
        "a",
        "base",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group_name": "nope"}, "nope: no such group; there is toy"),
        ({"variants": ["x"]}, "x: no such variant of toy; there is base, a, b"),
        ({"baseline": "x"}, "x: no such variant"),
        ({"geometry": "huge"}, "huge: no such geometry of toy; there is million, tiny"),
        ({"rows": ()}, "--rows"),
        ({"rows": (0,)}, "--rows"),
        ({"layers": 0}, "--layers"),
        ({"quads": 0}, "--repeats"),
        ({"device": "cuda", "variants": ["a"]}, "a: runs on cpu only"),
    ],
)
def test_what_does_not_exist_is_said(registry, arguments, message):
    with pytest.raises(InputError, match=message):
        make_plan(registry, **{"group_name": "toy", "device": "cpu", **arguments})


def test_a_variant_that_cannot_run_here_is_left_out_and_refused_by_name(registry):
    registry.add_variant(variant(FakeDevice(), "lib", honest(), unavailable=lambda device: f"no lib for {device}"))
    assert [v.name for v in make_plan(registry, "toy", "cpu").variants] == ["base", "a", "b"]
    with pytest.raises(InputError, match="lib: cannot run here: no lib for cpu"):
        make_plan(registry, "toy", "cpu", variants=["lib"])


def test_a_contract_with_itself_or_with_nobody_is_refused(registry):
    for target in ("self", "nobody"):
        registry.variants.pop(("toy", "self"), None)
        registry.add_variant(variant(FakeDevice(), "self", honest(), contract=SameBits(target)))
        with pytest.raises(InputError, match=f"its contract names '{target}'"):
            make_plan(registry, "toy", "cpu", variants=["self"])


def test_options_and_rows_are_parsed():
    assert parse_options(["stages=3", "scale=0.5", "mode=mixed"]) == {"stages": 3, "scale": 0.5, "mode": "mixed"}
    assert parse_rows("1,2, 4") == (1, 2, 4)
    with pytest.raises(InputError, match="KEY=VALUE"):
        parse_options(["stages"])
    with pytest.raises(InputError, match="--rows 1;2"):
        parse_rows("1;2")


def test_cold_needs_three_times_the_l2_between_two_uses():
    assert sets_needed(60_000_000, 860_000_000, warm=False) == 1
    assert sets_needed(60_000_000, 37_000_000, warm=False) == 5
    assert sets_needed(60_000_000, 1_000_000, warm=True) == 1
    assert sets_needed(0, 1, warm=False) == 1
    with pytest.raises(InputError, match=f"{MAX_SETS} weight sets do not fill"):
        sets_needed(60_000_000, 1000, warm=False)


def test_a_block_is_whole_rotations_within_its_time():
    assert calls_per_block(1, 1e-3, 1e-3, 5e-3, 0.2) == 5
    assert calls_per_block(4, 1e-3, 1e-3, 5e-3, 0.2) == 4
    assert calls_per_block(1, 1e-4, 0.1, 5e-3, 0.2) == 2  # the slower one keeps the block under 0.2 s
    assert calls_per_block(7, 10.0, 10.0, 5e-3, 0.2) == 7  # at least one rotation
    assert calls_per_block(5, 1e-9, 1e-9, 5e-3, 0.2) % 5 == 0


def test_no_two_blocks_or_calls_share_a_seed():
    seeds = Seeds(3)
    drawn = [seeds.call(block, index) for block in range(50) for index in range(512)]
    assert len(set(drawn)) == len(drawn)
    assert not {Seeds(4).call(0, 0)} & set(drawn)


def test_refilled_buffers_stay_in_place_and_their_content_is_new():
    group = toy_group()
    calls = CallSet(group, [group.workload("tiny", 2, 0, "cpu", {})], 1, 3, Seeds(0), warm=False)
    where = [batch.x.data_ptr() for batch in calls.batches]
    calls.refill(1)
    first = list(calls.inputs)
    calls.refill(2)
    assert [batch.x.data_ptr() for batch in calls.batches] == where
    assert len({*first, *calls.inputs}) == 6
    calls.refill(1)
    assert calls.inputs == first
    warm = CallSet(group, calls.workloads[:1], 1, 3, Seeds(0), warm=True)
    warm.refill(1)
    assert len(set(warm.inputs)) == 1


def test_the_registry_refuses_taken_names_and_unknown_groups(registry):
    with pytest.raises(ValueError, match="group 'toy' is registered already"):
        registry.add_group(toy_group())
    with pytest.raises(ValueError, match="'a' of 'toy' is registered already"):
        registry.add_variant(variant(FakeDevice(), "a", honest()))
    with pytest.raises(ValueError, match="names an unknown group 'toy'"):
        Registry().add_variant(variant(FakeDevice(), "a", honest()))
