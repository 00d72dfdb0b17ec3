"""One sentence that says what a result shows."""

from __future__ import annotations

from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.compare import Comparison


def breakdown_sentence(b: Breakdown) -> str:
    """Where most of the time of a capture went."""
    gpu = b.wall[b.wall["kind"] == "gpu"]
    idle = b.wall[b.wall["kind"] == "idle"]
    if not len(b.wall):
        return f"{b.name}: this capture cannot tell idle from busy ({b.answers['gpu_idle']})."
    wall = float(b.wall["ns"].sum())
    most = idle.loc[idle["ns"].idxmax()] if len(idle) else None
    kernel = gpu.loc[gpu["ns"].idxmax()] if len(gpu) else None
    text = f"{b.name} is {b.verdict}: the GPU is busy {gpu['ns'].sum() / wall:.1%} of the traced wall time"
    if kernel is not None:
        text += f", most of it {kernel['row']} ({kernel['ns'] / wall:.1%})"
    if most is not None:
        text += f", and waits {most['ns'] / wall:.0%} of it for {most['row']}"
    return text + "."


def compare_sentence(c: Comparison) -> str:
    """What changed most, and whether it is evidence."""
    parts = []
    for key, word in (("syncs", "syncs"), ("launches", "launches"), ("blocking_copies", "blocking copies")):
        pair = c.totals.get(key)
        if pair and pair.delta:
            parts.append(f"{abs(pair.delta):,.0f} {'fewer' if pair.delta < 0 else 'more'} {word}")
    counts = ", ".join(parts) or "no change in counts"
    summed = c.totals["kernel_sum_ms"].delta
    text = f"{c.cand.name} has {counts} and {summed:+.2f} ms of summed kernel time against {c.base.name}"
    if c.untraced and c.untraced.ratio:
        text += f"; untraced it runs {c.untraced.base:.2f} → {c.untraced.cand:.2f} tok/s ({c.untraced.ratio - 1:+.0%})"
        text += f", while the traced wall time changed by {c.wall.delta:+.2f} ms a {c.unit}, which is no evidence"
    return text + "."
