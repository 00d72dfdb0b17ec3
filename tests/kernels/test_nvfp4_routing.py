"""The routing plan against a count of its own."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glqprof_kernels.nvfp4.routing import ITEM_ROWS, make_plan, max_items


def listed(plan) -> list[tuple[int, list[int]]]:
    """(expert, rows) of each item."""
    return [
        (int(e), plan.rows[s : s + c].tolist()) for e, s, c in zip(plan.expert, plan.start, plan.count, strict=True)
    ]


def test_a_plan_written_out() -> None:
    ids = np.array([[2, 0], [2, 2], [0, 4]])
    assert listed(make_plan(ids, 5)) == [(0, [1, 4]), (2, [0, 2, 3]), (4, [5])]


def test_weight_zero_of_either_sign_is_left_out_and_nan_is_not() -> None:
    ids = np.array([[0, 1], [1, 0]])
    weights = np.array([[0.0, 1.0], [-0.0, float("nan")]], dtype=np.float32)
    assert listed(make_plan(ids, 2, weights)) == [(0, [3]), (1, [1])]


def test_seventeen_rows_make_two_items() -> None:
    plan = make_plan(np.zeros((17, 1), dtype=np.int64), 3)
    assert listed(plan) == [(0, list(range(16))), (0, [16])]


@pytest.mark.parametrize("bad", [-1, 4, 2**40])
def test_ids_of_no_expert(bad) -> None:
    ids = np.array([[0, 1], [2, bad]])
    with pytest.raises(ValueError, match=rf"ids\[1, 1\] is {bad}, but the experts are 0 .. 3"):
        make_plan(ids, 4)
    assert listed(make_plan(ids, 4, mask_invalid=True)) == [(0, [0]), (1, [1]), (2, [2])]
    with pytest.raises(ValueError, match="ids\\[1, 1\\]"):  # in a slot of weight 0 too: the router is wrong
        make_plan(ids, 4, np.array([[1, 1], [1, 0]], dtype=np.float32))


def test_shapes() -> None:
    with pytest.raises(ValueError, match="ids must be"):
        make_plan(np.zeros(3, dtype=np.int64), 4)
    with pytest.raises(ValueError, match="weights have shape"):
        make_plan(np.zeros((3, 2), dtype=np.int64), 4, np.zeros((2, 3)))
    assert make_plan(np.zeros((0, 2), dtype=np.int64), 4).items == 0


@given(st.data())
def test_every_row_is_in_one_item_of_its_expert(data) -> None:
    experts = data.draw(st.integers(1, 9))
    tokens, top_k = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 4))
    slots = tokens * top_k
    ids = data.draw(st.lists(st.integers(-2, experts + 1), min_size=slots, max_size=slots))
    weights = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=slots, max_size=slots))
    plan = make_plan(
        np.array(ids, dtype=np.int64).reshape(tokens, top_k),
        experts,
        np.array(weights, dtype=np.float32).reshape(tokens, top_k),
        mask_invalid=True,
    )
    want = defaultdict(list)
    for row, (expert, weight) in enumerate(zip(ids, weights, strict=True)):
        if 0 <= expert < experts and weight:
            want[expert].append(row)
    got = defaultdict(list)
    for expert, rows in listed(plan):
        assert 1 <= len(rows) <= ITEM_ROWS
        assert len(got[expert]) % ITEM_ROWS == 0  # only an expert's last item is not full
        got[expert].extend(rows)
    assert dict(got) == dict(want)
    assert list(plan.expert) == sorted(plan.expert)
    assert plan.items <= max_items(tokens, top_k, experts)


def test_the_most_items_can_be_reached() -> None:
    """300 rows of top 8 on 288 experts: one row each, and the rest on full items of one expert."""
    slots = [*range(288), *[0] * (2400 - 288)]
    assert make_plan(np.array(slots).reshape(300, 8), 288).items == max_items(300, 8, 288) == 288 + 2112 // 16
