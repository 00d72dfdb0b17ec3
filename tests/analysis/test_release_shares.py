"""The nested account adds up as printed, whatever the account holds."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glqprof.analysis.account import IDLE_ROWS
from glqprof.analysis.release_shares import GROUPS, Share, apportion, nested_shares
from glqprof.traces.schema.buckets import BUCKETS

NS = st.integers(0, 10**12)


@given(st.lists(NS, max_size=40), st.sampled_from([100, 1000, 12345]))
def test_parts_sum_to_the_total_and_none_is_a_unit_off(parts: list[int], total: int) -> None:
    found = apportion(parts, total)
    whole = sum(parts)
    assert sum(found) == (total if whole else 0)
    for part, share in zip(parts, found, strict=True):
        assert not whole or abs(share - part * total / whole) < 1


def account(busy: dict[str, int], idle: dict[str, int], devices: int = 1) -> SimpleNamespace:
    rows = [(d, row, kind, ns) for d in range(devices) for kind, part in (("gpu", busy), ("idle", idle))
            for row, ns in part.items()]  # fmt: skip
    return SimpleNamespace(wall=pd.DataFrame(rows, columns=["device", "row", "kind", "ns"]))


def children(lines: list[Share]) -> list[tuple[Share, list[Share]]]:
    found = []
    for i, line in enumerate(lines):
        inside = []
        for later in lines[i + 1 :]:
            if later.depth <= line.depth:
                break
            if later.depth == line.depth + 1:
                inside.append(later)
        found.append((line, inside))
    return found


@given(
    st.dictionaries(st.sampled_from([*BUCKETS, "mine", "host-like"]), NS, max_size=18),
    st.dictionaries(st.sampled_from(IDLE_ROWS), NS, max_size=9),
    st.integers(1, 3),
)
def test_lines_add_up_to_the_whole_and_to_those_inside(busy, idle, devices) -> None:
    lines = nested_shares(account(busy, idle, devices))
    total = devices * (sum(busy.values()) + sum(idle.values()))
    if not total:
        assert lines == []
        return
    leaves = [line for line in lines if line.leaf]
    assert sum(line.tenths for line in leaves) == 1000
    assert sum(line.ns for line in leaves) == total
    assert len(leaves) == len(busy) + len(idle)  # every row of the account once
    for line, inside in children(lines):
        assert line.leaf == (not inside) or line.depth == 0
        if inside:
            assert sum(x.tenths for x in inside) == line.tenths
            assert sum(x.ns for x in inside) == line.ns
            if line.busy_tenths is not None:
                assert sum(x.busy_tenths or 0 for x in inside) == line.busy_tenths
    assert [line.name for line in lines if line.depth == 0] == ["GPU busy", "GPU idle"]
    assert sum(line.busy_tenths or 0 for line in lines if line.depth == 0) == (1000 if sum(busy.values()) else 0)


def test_every_bundled_bucket_has_one_group() -> None:
    assert sorted(bucket for _, buckets in GROUPS for bucket in buckets) == sorted(BUCKETS)


@pytest.mark.parametrize(
    ("busy", "name"),
    [({"ssm": 1}, "ssm (Mamba state space)"), ({"attention": 1}, "attention"),
     ({"matvec": 1}, "matvec (expert kernels)"),
     ({"mine": 1}, "mine (buckets of the given rules)")],
)  # fmt: skip
def test_a_group_of_one_is_named_by_its_bucket(busy, name) -> None:
    assert [line.name for line in nested_shares(account(busy, {"host-code": 1}))] == [
        "GPU busy", name, "GPU idle", "host-code",
    ]  # fmt: skip
