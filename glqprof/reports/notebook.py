"""Results in a notebook: the documents of the command line as HTML, figures as pictures. Importing this sets it up."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from glqprof.analysis.breakdown import Breakdown
from glqprof.analysis.compare import Comparison
from glqprof.analysis.ncu_analysis import NcuAnalysis
from glqprof.reports.breakdown_document import breakdown_document
from glqprof.reports.compare_document import compare_document
from glqprof.reports.html_fragment import to_html_fragment
from glqprof.reports.ncu_document import ncu_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 8

Breakdown.as_html = lambda b: to_html_fragment(breakdown_document(b, top=TOP))
Comparison.as_html = lambda c: to_html_fragment(compare_document([c], top=TOP))
NcuAnalysis.as_html = lambda a: to_html_fragment(ncu_document(a, top=TOP))


class Picture:
    """A figure that a notebook shows; ``figure`` is matplotlib's, ``save(path)`` writes it (.png, .svg, .pdf)."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def save(self, path: str | Path) -> None:
        """Write the figure whole or not at all; raises InputError where that cannot be."""
        from glqprof.reports.figures import save_figure

        save_figure(self.figure, Path(path))

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.figure.savefig(out, format="png", dpi=80)
        return out.getvalue()

    def __repr__(self) -> str:
        width, height = self.figure.get_size_inches()
        return f"<Picture {width:.0f} x {height:.1f} inches>"
