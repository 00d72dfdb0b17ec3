"""What four tools saw of one program: its inflation under each, and whether the timelines agree.

    python benchmarks/capture_table.py FOLDER [--docs docs/capture.md]

FOLDER holds captures toy-<tool> (device_capture.sh makes them). Prints tables; exits with 1 when a capture is missing
or over 2 MB, kernel counts differ, or the summed time of kernels of 20 µs and more differs by over 3 %. With --docs,
writes the inflation table between the markers of that page.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import glqprof
from glqprof.errors import InputError
from glqprof.traces.schema.manifest import Manifest, read_manifest

TOOLS = ("nsys", "cupti", "torch", "ncu")
LONG_NS, TOLERANCE, MAX_BYTES = 20_000, 0.03, 2_000_000
BEGIN, END = "<!-- inflation: begin -->", "<!-- inflation: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--docs", type=Path)
    arguments = parser.parse_args()
    manifests: dict[str, Manifest] = {}
    for tool in TOOLS:
        folder = arguments.folder / f"toy-{tool}"
        try:
            manifests[tool] = read_manifest(folder)
        except InputError as error:
            print(error)
    table = inflation_table(manifests)
    print(table)
    problems = [f"{tool}: no capture" for tool in TOOLS if tool not in manifests]
    problems += too_large(arguments.folder, manifests)
    problems += disagreements(arguments.folder, [tool for tool in manifests if tool != "ncu"])
    if arguments.docs and manifests:
        write_into(arguments.docs, table, manifests)
    for problem in problems:
        print(f"PROBLEM: {problem}")
    return bool(problems)


def inflation_table(manifests: dict[str, Manifest]) -> str:
    rows = [
        "| tool | version | untraced ms/token | traced ms/token | inflation | untraced tok/s |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for tool, m in manifests.items():
        untraced = f"{m.untraced.ms_per_token:.3f}" if m.untraced else "–"
        traced = f"{m.traced.ms_per_token:.3f}" if m.traced else "–"
        inflation = f"{m.inflation:.2f}×" if m.inflation else "–"
        tok_s = f"{m.untraced.tok_s:.1f}" if m.untraced else "–"
        rows.append(f"| {tool} | {m.tool_version} | {untraced} | {traced} | {inflation} | {tok_s} |")
    return "\n".join(rows)


def too_large(folder: Path, manifests: dict[str, Manifest]) -> list[str]:
    sizes = {t: sum(p.stat().st_size for p in (folder / f"toy-{t}").iterdir()) for t in manifests}
    print("bytes: " + ", ".join(f"{tool} {size:,}" for tool, size in sizes.items()))
    return [f"{tool}: {size:,} bytes" for tool, size in sizes.items() if size > MAX_BYTES]


def disagreements(folder: Path, tools: list[str]) -> list[str]:
    counts: dict[str, int] = {}
    long_ns: dict[str, int] = {}
    problems: list[str] = []
    for tool in tools:
        try:
            result = glqprof.breakdown(glqprof.load(folder / f"toy-{tool}", launch_config=False))
        except InputError as error:
            problems.append(str(error))
            continue
        kernels, window = result.prepared.trace.kernels, result.window
        inside = kernels[(kernels["start_ns"] >= window.start_ns) & (kernels["start_ns"] < window.end_ns)]
        lengths = inside["end_ns"] - inside["start_ns"]
        counts[tool] = len(inside)
        long_ns[tool] = int(lengths[lengths >= LONG_NS].sum())
        answers = ", ".join(f"{name} {answer.answer}" for name, answer in result.answers.items())
        print(
            f"{tool:6} window {window.selector}: {len(window.steps)} steps, {len(inside)} kernels, "
            f"{int(lengths.sum()) / 1e6:.3f} ms, of {LONG_NS // 1000} µs and more {long_ns[tool] / 1e6:.3f} ms, "
            f"{len(result.prepared.trace.copies)} copies; {answers}"
        )
    if len(set(counts.values())) > 1:
        problems.append(f"kernel counts differ: {counts}")
    if long_ns and max(long_ns.values()) > (1 + TOLERANCE) * min(long_ns.values()):
        problems.append(f"summed time of long kernels differs by more than {TOLERANCE:.0%}: {long_ns}")
    return problems


def write_into(page: Path, table: str, manifests: dict[str, Manifest]) -> None:
    first = next(iter(manifests.values()))
    gpu = first.gpus[0].name if first.gpus else "an unknown GPU"
    caption = (
        f"`python -m glqprof.workloads.toy_decode` on {gpu}, driver {first.driver}, torch {first.torch}, "
        f"{first.captured_at[:10]}; written by `benchmarks/capture_table.py`. One run each: read the order of "
        "magnitude, not the digits."
    )
    text = page.read_text(encoding="utf-8")
    block = f"{BEGIN}\n{caption}\n\n{table}\n{END}"
    if BEGIN not in text:
        raise SystemExit(f"{page}: has no line {BEGIN}")
    page.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: block, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
