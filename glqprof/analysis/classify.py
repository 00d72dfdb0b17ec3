"""Put every GPU activity into a bucket, and into the layer and step whose range its launch call stood in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from glqprof.analysis.ranges import RangeForest, glob_matcher
from glqprof.analysis.work import COPY, GRAPH, KERNEL, MEMSET, GpuWork
from glqprof.traces.schema.buckets import BucketRule
from glqprof.traces.schema.trace import Trace

Array = np.ndarray
LAYER_GLOB = "layer_*"
FIXED = {COPY: "copy", MEMSET: "memset", GRAPH: "graph"}


@dataclass(frozen=True)
class Attribution:
    """Per activity: ``range_index`` (innermost enclosing range of its launch call, -1 none), ``layer`` and ``step``
    (indices of ranges, -1 none) and ``bucket`` (index into ``bucket_names``)."""

    range_index: Array
    layer: Array
    step: Array
    bucket: Array
    bucket_names: list[str]


def attribute(
    trace: Trace, work: GpuWork, forest: RangeForest, rules: Sequence[BucketRule], step_matches: object
) -> Attribution:
    """Attribute every activity of ``work``.

    A graph's kernels take the token from the range around the graph's launch, and the layer (and so any ``nvtx`` rule)
    from the ranges that stood when their node was captured, where ``originalGraphNodeId`` leads there.
    """
    launch_range = _launch_ranges(trace, work, forest)
    nearest_layer = forest.nearest(glob_matcher(LAYER_GLOB))
    nearest_step = forest.nearest(step_matches)  # type: ignore[arg-type]
    place = _graph_ranges(trace, work, forest, launch_range)
    layer = np.where(place >= 0, nearest_layer[place], -1) if len(nearest_layer) else place
    step = np.where(launch_range >= 0, nearest_step[launch_range], -1) if len(nearest_step) else launch_range
    bucket, names = _buckets(trace, work, forest, rules, place)
    return Attribution(place, layer, step, bucket, names)


def _launch_ranges(trace: Trace, work: GpuWork, forest: RangeForest) -> Array:
    found = np.full(len(work), -1, np.int32)
    if not len(forest.start):
        return found
    known = np.flatnonzero(work.api_row >= 0)
    call = work.api_row[known]
    api = trace.api
    found[known] = forest.enclosing(
        api["process"].to_numpy()[call],
        api["thread"].to_numpy()[call],
        api["start_ns"].to_numpy()[call],
        api["end_ns"].to_numpy()[call],
    )
    return found


def _graph_ranges(trace: Trace, work: GpuWork, forest: RangeForest, launch_range: Array) -> Array:
    """Like `launch_range`, but for a graph's kernel the range at capture time (-1 where it cannot be found)."""
    kernels = np.flatnonzero(work.kind == KERNEL)
    node = trace.kernels["graph_node_id"].to_numpy()[work.row[kernels]]
    in_graph = kernels[node >= 0]
    if not len(in_graph):
        return launch_range
    place = launch_range.copy()
    place[in_graph] = -1
    nodes = trace.graph_nodes
    if not len(nodes) or not len(forest.start):
        return place
    created = np.flatnonzero(nodes["original_graph_node_id"].to_numpy() < 0)
    ids, first = np.unique(nodes["graph_node_id"].to_numpy()[created], return_index=True)
    created = created[first]
    cloned = np.flatnonzero(nodes["original_graph_node_id"].to_numpy() >= 0)
    original = dict(
        zip(
            nodes["graph_node_id"].to_numpy()[cloned].tolist(),
            nodes["original_graph_node_id"].to_numpy()[cloned].tolist(),
            strict=True,
        )
    )
    wanted, inverse = np.unique(node[node >= 0], return_inverse=True)
    source = np.array([original.get(n, n) for n in wanted.tolist()], np.int64)
    at = np.minimum(np.searchsorted(ids, source), max(len(ids) - 1, 0))
    hit = (ids[at] == source) if len(ids) else np.zeros(len(source), bool)
    row = created[at] if len(ids) else at
    moment = nodes["start_ns"].to_numpy()[row]
    captured = forest.enclosing(nodes["process"].to_numpy()[row], nodes["thread"].to_numpy()[row], moment, moment)
    place[in_graph] = np.where(hit, captured, -1)[inverse]
    return place


def _buckets(
    trace: Trace, work: GpuWork, forest: RangeForest, rules: Sequence[BucketRule], place: Array
) -> tuple[Array, list[str]]:
    names: dict[str, int] = {}
    bucket = np.zeros(len(work), np.int16)
    for kind, name in FIXED.items():
        members = work.kind == kind
        if members.any():
            bucket[members] = names.setdefault(name, len(names))
    kernels = np.flatnonzero(work.kind == KERNEL)
    if not len(kernels):
        return bucket, list(names)
    # One bit per distinct glob says whether it matches a name on the kernel's path; a rule is then a function of the
    # kernel's name and these bits, of which there are few combinations.
    globs = list(dict.fromkeys(rule.nvtx for rule in rules if rule.nvtx is not None))
    bits_of_range = np.zeros(len(forest.start) + 1, np.int64)  # the last one is for kernels in no range, index -1
    for bit, pattern in enumerate(globs):
        bits_of_range[:-1] |= (forest.nearest(glob_matcher(pattern)) >= 0).astype(np.int64) << bit
    column = trace.kernels["name"].cat
    combined = bits_of_range[place[kernels]] * len(column.categories)
    combined += column.codes.to_numpy()[work.row[kernels]]
    inverse, distinct = pd.factorize(combined)
    chosen = np.empty(len(distinct), np.int16)
    for i, value in enumerate(distinct.tolist()):
        bits, code = divmod(value, len(column.categories))
        found = _first_match(rules, globs, str(column.categories[code]), bits)
        chosen[i] = names.setdefault(found, len(names))
    bucket[kernels] = chosen[inverse]
    return bucket, list(names)


def _first_match(rules: Sequence[BucketRule], globs: list[str], kernel: str, bits: int) -> str:
    for rule in rules:
        in_place = rule.nvtx is None or bits >> globs.index(rule.nvtx) & 1
        if in_place and rule.kernel.search(kernel):
            return rule.bucket
    return "other"
