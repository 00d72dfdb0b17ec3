"""Which interval is innermost at each instant, for intervals that nest as calls on one thread do.

Millions of intervals are usual, so the common shapes (no nesting, proper nesting) are done in numpy; only groups of
intervals that overlap without nesting, which broken or cross-thread records contain, go through a Python sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Nesting:
    """A piecewise-constant owner of time.

    ``times``: ascending int64 boundaries; ``owner`` (int32): index of the innermost interval open from ``times[i]``
    on, -1 for none (where boundaries coincide the last one counts). ``parent``: per interval, the innermost other
    interval that encloses it, -1 for none.
    """

    times: Array
    owner: Array
    parent: Array

    def at(self, instants: Array) -> Array:
        """Index of the innermost interval open at each instant (start inclusive, end exclusive), -1 for none."""
        if len(self.times) == 0:
            return np.full(len(instants), -1, np.int32)
        position = np.searchsorted(self.times, instants, "right") - 1
        return np.where(position >= 0, self.owner[position], -1)


def nest(start: Array, end: Array) -> Nesting:
    """Nest intervals [start, end); zero-length ones own no time but get a parent.

    Innermost is the open interval that started last; of those that started together, the shorter one.
    """
    count = len(start)
    parent = np.full(count, -1, np.int32)
    order = _order(start, end)
    if len(order) == 0:
        return Nesting(np.zeros(0, np.int64), np.zeros(0, np.int32), parent)
    times = np.empty(2 * len(order), np.int64)
    owner = np.full(2 * len(order), -1, np.int32)
    s, e = times[0::2], times[1::2]  # views: a large capture holds millions of calls, each copy counts
    np.take(start, order, out=s)
    np.take(end, order, out=e)
    owner[0::2] = order
    reach = np.maximum.accumulate(e)
    opens_group = np.ones(len(order), bool)
    opens_group[1:] = s[1:] >= reach[:-1]
    if not opens_group.all():
        # An interval is alone when it opens a group and so does the next one.
        alone = opens_group & np.append(opens_group[1:], True)
        nested = np.flatnonzero(~alone)
        group = np.cumsum(opens_group[nested])
        block_times, block_owner, block_parent = _nest_groups(s[nested], e[nested], group)
        local = order[nested]
        parent[local] = np.where(block_parent >= 0, local[block_parent], -1)
        # A group of n intervals has 2n boundaries, and its members are adjacent: they fit where they stood.
        slots = np.sort(np.concatenate([2 * nested, 2 * nested + 1]))
        times[slots] = block_times
        owner[slots] = np.where(block_owner >= 0, local[block_owner], -1)
    nesting = Nesting(times, owner, parent)
    empty = np.flatnonzero(end <= start)
    if len(empty):
        parent[empty] = nesting.at(start[empty])
    return nesting


def _ascending(values: Array) -> bool:
    return bool(np.all(values[1:] > values[:-1]))


def _order(start: Array, end: Array) -> Array:
    """Indices (int32) of the intervals that have a length, by start; of those that start together the longest first."""
    real = np.flatnonzero(end > start).astype(np.int32)
    if _ascending(start):
        return real
    # Records of a thread come nearly sorted, which a stable sort uses; ties in start are rare.
    by_start = real[np.argsort(start[real], kind="stable")]
    s = start[by_start]
    if _ascending(s):
        return by_start
    return real[np.lexsort((-end[real], start[real]))]


def _nest_groups(s: Array, e: Array, group: Array) -> tuple[Array, Array, Array]:
    """Boundaries, owners and parents of intervals sorted by (start, -end), in groups that do not touch."""
    n = len(s)
    index = np.arange(n)
    time = np.concatenate([s, e])
    is_start = np.concatenate([np.ones(n, np.int8), np.zeros(n, np.int8)])
    # At one instant, ends come before starts; starts keep their order (longer first), ends close the later one first.
    tie = np.concatenate([index, -index])
    events = np.lexsort((tie, is_start, time))
    who = np.concatenate([index, index])[events]
    opening = is_start[events] == 1
    depth = np.cumsum(np.where(opening, 1, -1))
    owner, above = _last_opened(depth, opening, who)
    parent = np.full(n, -1, np.int64)
    parent[who[opening]] = above[opening]
    has_parent = parent >= 0
    broken_child = has_parent.copy()
    broken_child[has_parent] = e[parent[has_parent]] < e[has_parent]
    if broken_child.any():
        for number in np.unique(group[broken_child]):
            members = np.flatnonzero(group == number)
            slots = np.flatnonzero(group[who] == number)
            owner[slots] = _sweep(who[slots], opening[slots], members, e, parent)
    return time[events], owner, parent


def _last_opened(depth: Array, opening: Array, who: Array) -> tuple[Array, Array]:
    """For each event: the interval opened last at the depth that holds after it, and at the depth below that."""
    count = len(depth)
    position = np.arange(count)
    stride = count + 1
    opened = np.flatnonzero(opening)
    keys = depth[opened] * stride + opened
    by_key = np.argsort(keys, kind="stable")
    keys, holder = keys[by_key], who[opened][by_key]

    def lookup(level: Array) -> Array:
        found = np.searchsorted(keys, level * stride + position, "right") - 1
        safe = np.maximum(found, 0)
        valid = (level > 0) & (found >= 0) & (keys[safe] // stride == level)
        return np.where(valid, holder[safe], -1)

    return lookup(depth), lookup(depth - 1)


def _sweep(who: Array, opening: Array, members: Array, e: Array, parent: Array) -> Array:
    """Owners after each event of one group whose intervals overlap without nesting; sets `parent` of its members."""
    stack: list[int] = []
    closed: set[int] = set()
    owners = np.empty(len(who), np.int64)
    parent[members] = -1
    for slot, (interval, opens) in enumerate(zip(who.tolist(), opening.tolist(), strict=True)):
        if opens:
            enclosing = [i for i in reversed(stack) if i not in closed and e[i] >= e[interval]]
            parent[interval] = enclosing[0] if enclosing else -1
            stack.append(interval)
        else:
            closed.add(interval)
            while stack and stack[-1] in closed:
                stack.pop()
        owners[slot] = stack[-1] if stack else -1
    return owners
