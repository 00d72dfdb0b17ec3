"""Reason codes: every way in which a bench can say that a number must not be believed.

docs/bench.md has the table of codes, and a test reads it against this file.
"""

from __future__ import annotations

from glqprof.traces.schema.bench import Reason

# Errors: the variant is not ok, and the command exits with status 1.
WARM_L2 = "warm-l2"
OUTPUT_CACHE = "output-cache"
INPUTS_REPEATED = "inputs-repeated"
INPUT_MODIFIED = "input-modified"
UNWRITTEN = "unwritten"
SIDE_STREAM = "side-stream"
OUTSIDE_CAPTURE = "outside-capture"
STALE_REPLAY = "stale-replay"
IMPOSSIBLE_RATE = "impossible-rate"
NOT_CAPTURABLE = "not-capturable"
FALLBACK = "fallback"
LAUNCH_COUNT = "launch-count"
SYNC_COUNT = "sync-count"
WRONG_BITS = "wrong-bits"
WRONG_VALUES = "wrong-values"
NONDETERMINISTIC = "nondeterministic"
THROTTLED = "throttled"
FAILED = "failed"

# Warnings: the numbers stand, and the reader is told.
DRIFT = "drift"
A_A_DIFFERS = "a-a-differs"
BLOCKS_DISCARDED = "blocks-discarded"
NO_CLOCKS = "no-clocks"
SLOW_COPY = "slow-copy"
UNPROFILED = "unprofiled"
WARM = "warm"

ERRORS: dict[str, str] = {
    WARM_L2: "a call after a full rotation of the inputs runs as fast as right after itself, not as from memory",
    OUTPUT_CACHE: "a timed call returned the bytes that it had returned for other inputs",
    INPUTS_REPEATED: "the group handed out the same inputs for two blocks that ought to be fresh",
    INPUT_MODIFIED: "a timed call changed its inputs",
    UNWRITTEN: "output elements still hold the poison after a call",
    SIDE_STREAM: "kernels ran on another stream that the caller's stream does not wait for",
    OUTSIDE_CAPTURE: "work was launched during the capture without entering the graph, so that replays lack it",
    STALE_REPLAY: "a replay returned the bytes that it had returned for other inputs",
    IMPOSSIBLE_RATE: "bytes ÷ time exceeds what this GPU copies",
    NOT_CAPTURABLE: "declared capturable, but the capture failed",
    FALLBACK: "a kernel ran that the variant does not declare",
    LAUNCH_COUNT: "a declared kernel ran more or fewer times than declared",
    SYNC_COUNT: "the host waited more or fewer times than declared",
    WRONG_BITS: "bytes differ from the variant that the contract names",
    WRONG_VALUES: "farther from float64 than the contract, or the group, allows",
    NONDETERMINISTIC: "two calls on the same inputs returned different bytes under a contract of same bits",
    THROTTLED: "the GPU was throttled in so many blocks that too few quads are left",
    FAILED: "the variant could not be built, or raised an error",
}

WARNINGS: dict[str, str] = {
    DRIFT: "the machine got slower or faster during the run; interleaving cancels it, a sequential A-then-B would not",
    A_A_DIFFERS: "the baseline differs from itself: the noise floor is that difference",
    BLOCKS_DISCARDED: "some quads were thrown away because the GPU was throttled",
    NO_CLOCKS: "clocks and throttling could not be read",
    SLOW_COPY: "this GPU copies more than 10 % slower than recorded for its model",
    UNPROFILED: "launches and syncs were not counted",
    WARM: "inputs and weights may stay in cache: asked for with --warm, not comparable with cold numbers",
}


class Findings:
    """Reasons in the order found, each code once: the first detail is kept, later ones are counted."""

    def __init__(self) -> None:
        """Start with nothing found."""
        self._first: dict[str, str] = {}
        self._times: dict[str, int] = {}

    def add(self, code: str, detail: str) -> None:
        """Record one finding under a code of this module."""
        if code not in ERRORS and code not in WARNINGS:
            raise ValueError(f"unknown reason code {code!r}")
        self._first.setdefault(code, detail)
        self._times[code] = self._times.get(code, 0) + 1

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes found so far."""
        return tuple(self._first)

    def reasons(self) -> tuple[Reason, ...]:
        """Return the findings; one found repeatedly says how often."""
        return tuple(
            Reason(code, detail if self._times[code] == 1 else f"{detail} (and {self._times[code] - 1} more)")
            for code, detail in self._first.items()
        )
