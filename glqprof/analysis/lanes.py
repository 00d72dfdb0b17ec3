"""Rows to draw spans in: spans that share a row must not overlap, or must nest, or a viewer drops some of them."""

from __future__ import annotations

import heapq

import numpy as np

from glqprof.analysis.nesting import nest

Array = np.ndarray


def apart(start: Array, end: Array) -> Array:
    """A lane (int32, from 0) per span, in start order, so that no two of one lane overlap; the lowest that is free.

    An empty span takes one instant, so that none shares its start in a lane.
    """
    end = np.maximum(end, start + 1)
    lane = np.zeros(len(start), np.int32)
    if len(start) < 2 or bool((start[1:] >= np.maximum.accumulate(end)[:-1]).all()):
        return lane
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    lanes = 0
    for i, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane[i] = heapq.heappop(free)
        else:
            lane[i], lanes = lanes, lanes + 1
        heapq.heappush(busy, (finish, int(lane[i])))
    return lane


def overlap_label(lane: int) -> str:
    """What a stream's lane is called after the stream: nothing for the first."""
    return "" if lane == 0 else " (overlapping)" if lane == 1 else f" (overlapping {lane})"


def nested(start: Array, end: Array) -> tuple[Array, Array]:
    """A lane and a depth in it (int32, from 0) per span: spans of one lane are apart or one encloses the other.

    Calls and ranges of one thread nest by nature and share lane 0. Only records that overlap without nesting (ranges
    begun and ended by hand, broken records) need more. Of spans that start together the longer one is outer.
    """
    lane, depth = np.zeros(len(start), np.int32), np.zeros(len(start), np.int32)
    if _nests(start, end, depth):
        return lane, depth
    order = np.lexsort((-end, start))
    stacks: list[list[int]] = []
    for i in order.tolist():
        begin, finish = int(start[i]), int(end[i])
        number = 0
        while True:
            if number == len(stacks):
                stacks.append([])
            stack = stacks[number]
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or stack[-1] >= finish:
                break
            number += 1
        lane[i], depth[i] = number, len(stack)
        stack.append(finish)
    return lane, depth


def _nests(start: Array, end: Array, depth: Array) -> bool:
    """Whether all spans nest properly; if so, ``depth`` holds how deep."""
    parent = nest(start, end).parent
    pending = np.flatnonzero(parent >= 0)
    while len(pending):  # one round a level
        deeper = depth[parent[pending]] + 1
        changed = deeper != depth[pending]
        depth[pending] = deeper
        pending = pending[changed]
    # In a proper forest the spans open at a start are exactly its ancestors. An empty span crosses nothing.
    real = np.flatnonzero(end > start)
    order = real[np.lexsort((-end[real], start[real]))]
    opened = np.arange(len(order)) - np.searchsorted(np.sort(end[real]), start[order], "right")
    return bool((opened == depth[order]).all())
