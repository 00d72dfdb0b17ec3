"""Judging the outputs of the timed calls themselves: fresh, written in full, and right.

Staleness is found by digests: the same output bytes of a layer for other inputs cannot have been computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glqprof.bench.calls import OTHER_POISON, CallSet, digest, poison
from glqprof.bench.identity import as_integers, difference, differs, errors, holds
from glqprof.bench.reasons import (
    INPUT_MODIFIED,
    INPUTS_REPEATED,
    OUTPUT_CACHE,
    OUTSIDE_CAPTURE,
    STALE_REPLAY,
    UNWRITTEN,
    WRONG_BITS,
    WRONG_VALUES,
)
from glqprof.bench.subject import Judged


class OutputCheck:
    """Judges block after block of one variant under one timing; what it finds goes to ``judged.findings``."""

    def __init__(self, judged: Judged, calls: CallSet, graph: bool) -> None:
        """``graph``: the blocks are replays, whose faults have names of their own."""
        self.judged = judged
        self._calls = calls
        self._graph = graph
        self._outputs: dict[bytes, bytes] = {}
        self._inputs: dict[bytes, int] = {}
        self._blocks = 0

    @property
    def _where(self) -> str:
        return "graph" if self._graph else "eager"

    def block(self, number: int) -> None:
        """Judge the outputs that the block's calls left in the call set, before anything else touches them."""
        findings = self.judged.findings
        calls = self._calls
        if calls.input_digests() != calls.inputs:
            findings.add(INPUT_MODIFIED, f"{self._where} block {number} changed its inputs")
            return
        for seen in calls.inputs:
            if self._inputs.setdefault(seen, number) != number:
                findings.add(INPUTS_REPEATED, f"block {number} got the inputs of block {self._inputs[seen]}")
        expected = self._expected()
        for index, out in enumerate(calls.outs):
            label = f"{self._where} block {number} call {index}"
            if bool(holds(out).all()):
                self._unwritten(label, out.numel(), out.numel())
            elif not self._stale(out, calls.inputs[index], label):
                self._compare(index, out, expected[index], label)
        if self._blocks == 0:  # identical and wrong is still wrong; float64 is too slow for every block
            self._reference()
        self._blocks += 1

    def _reference(self) -> None:
        calls, judged = self._calls, self.judged
        reference = calls.group.reference(calls.workloads[0], calls.batches[0])
        relative = errors(calls.outs[0], reference)[1]
        if not relative <= judged.reference_bound:
            detail = f"{self._where}: a timed output is {relative:.3g} from float64, allowed {judged.reference_bound:g}"
            judged.findings.add(WRONG_VALUES, detail)

    def _expected(self) -> Sequence[Any]:
        """Run the anchor on the block's inputs: after the timed calls, so that it can prepare nothing for them."""
        calls = self._calls
        outs = []
        for index, (workload, batch) in enumerate(zip(calls.workloads, calls.batches, strict=True)):
            out = calls.group.out(workload, batch)
            self.judged.anchor.run(index, batch, out)
            outs.append(out)
        return outs

    def _stale(self, out: Any, inputs: bytes, label: str) -> bool:
        for layer, values in enumerate(out.cpu()):  # one copy, and not one a layer
            raw = as_integers(values)
            if bool((raw == raw[0]).all()):
                continue  # constant, such as all zeros of weight-0 rows: equal for honest reasons
            key = digest(values)
            before = self._outputs.setdefault(key, inputs)
            if before != inputs:
                code = STALE_REPLAY if self._graph else OUTPUT_CACHE
                self.judged.findings.add(code, f"{label}, layer {layer}: the bytes of an earlier call on other inputs")
                return True
        return False

    def _compare(self, index: int, out: Any, expected: Any, label: str) -> None:
        findings, judged = self.judged.findings, self.judged
        if judged.bits:
            wrong = differs(out, expected)
            missing = self._really_unwritten(index, out, wrong & holds(out))
            if missing:
                self._unwritten(label, missing, out.numel())
            elif bool(wrong.any()):
                found = difference(out, expected)
                detail = f"{label}: {found.count} of {found.elements} elements differ from {judged.anchor.name}"
                findings.add(WRONG_BITS, f"{detail}, by up to {found.max_rel:.2g} of the largest")
            return
        missing = self._really_unwritten(index, out, holds(out) & ~holds(expected))
        if missing:
            self._unwritten(label, missing, out.numel())
            return
        relative = errors(out, expected)[1]
        if not relative <= judged.anchor_bound:
            detail = f"{label}: {relative:.3g} from {judged.anchor.name}, allowed {judged.anchor_bound:g}"
            findings.add(WRONG_VALUES, detail)

    def _really_unwritten(self, index: int, out: Any, suspects: Any) -> int:
        """Count the suspects that are poison and not a result that happens to look like it.

        A second run over another poison tells: a result comes out near the same value again.
        """
        import torch

        if not bool(suspects.any()):
            return 0
        calls = self._calls
        again = calls.group.out(calls.workloads[index], calls.batches[index])
        poison(again, OTHER_POISON)
        self.judged.subject.run(index, calls.batches[index], again)
        value, repeat = (tensor.reshape(-1)[suspects].to(torch.float64) for tensor in (out, again))
        return int((~((value - repeat).abs() <= 0.02 * value.abs())).sum())

    def _unwritten(self, label: str, count: int, elements: int) -> None:
        code = OUTSIDE_CAPTURE if self._graph else UNWRITTEN
        self.judged.findings.add(code, f"{label}: {count} of {elements} elements still hold the poison")
