"""Colours of the HTML report: a light and a dark one for each row, call state and range."""

from __future__ import annotations

from glqprof.reports.figures import API_COLOURS, COLOURS, USER_BUCKET

# On a dark page pale idle rows would outshine the GPU's work: they are dark there, and the work lighter.
DARK = {
    "matvec": "#3D9BE0",
    "rht": "#7CC8F5",
    "moe": "#8F86E0",
    "gemm": "#2FC496",
    "ssm": "#F0B030",
    "attention": "#E09CC4",
    "reduce": "#4CAF60",
    "norm": "#C9629A",
    "router": "#F07A28",
    "sampling": "#CF7FCF",
    "elementwise": "#B8B84A",
    "copy": "#F2E860",
    "memset": "#E0CF8A",
    "comm": "#C86A4A",
    "graph": "#8FB8E8",
    "other": "#D0D0D0",
    "launch-latency": "#5B6B7A",
    "host-sync": "#8C4A4A",
    "host-launch": "#5F5788",
    "host-memory": "#6E6142",
    "host-api": "#46664B",
    "profiler": "#7A4F63",
    "host-wait": "#606060",
    "host-code": "#3A4048",
    "host-unknown": "#2B2F36",
}
API_DARK = {"host-sync": "#E8705A", "host-launch": "#A79CE0", "host-memory": "#D2AE62", "host-api": "#84C492"}
RANGE_COLOURS = (
    ("#4477AA", "#6FA3D6"),
    ("#AA4455", "#E08090"),
    ("#667788", "#93A3B3"),
    ("#8A7A1F", "#CFBE55"),
    ("#2A7F9E", "#62C0DE"),
)


class Palette:
    """Numbers colours in the order in which a report first uses them; CSS and canvas know them as ``--c0``, ``--c1`` …

    Bucket names come from the user's rules: they never reach the style sheet, only their numbers do.
    """

    def __init__(self) -> None:
        self.colours: list[tuple[str, str]] = []
        self._index: dict[tuple[str, str], int] = {}

    def row(self, row: str) -> int:
        """The colour of a bucket or idle state."""
        return self._of(("row", row), (COLOURS.get(row, USER_BUCKET), DARK.get(row, "#5CC9BB")))

    def call(self, state: str) -> int:
        """The colour of API calls of one kind."""
        return self._of(("call", state), (API_COLOURS[state], API_DARK[state]))

    def range(self, kind: str) -> int:
        """The colour of NVTX ranges of one kind."""
        taken = sum(key[0] == "range" for key in self._index)
        return self._of(("range", kind), RANGE_COLOURS[taken % len(RANGE_COLOURS)])

    def _of(self, key: tuple[str, str], pair: tuple[str, str]) -> int:
        if key not in self._index:
            self._index[key] = len(self.colours)
            self.colours.append(pair)
        return self._index[key]

    def css(self, dark: bool) -> str:
        """Declarations of all colours so far."""
        return "".join(f"--c{i}:{pair[dark]};" for i, pair in enumerate(self.colours))

    def classes(self) -> str:
        """``.c0 {fill: …}`` for SVG and swatches."""
        return "".join(f".c{i}{{fill:var(--c{i});background:var(--c{i})}}" for i in range(len(self.colours)))
