"""A release note as Markdown: the template's order, the author's words, the tables and sentences with figures."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from glqprof.analysis.release import ReleaseNotes
from glqprof.reports import release_document as tables
from glqprof.reports import release_sentences as sentences
from glqprof.reports.breakdown_document import IDLE_MEANING
from glqprof.reports.document import printable
from glqprof.reports.markdown import escape, markdown_table

TEMPLATES = Path(__file__).parent / "markdown_templates"


def release_markdown(notes: ReleaseNotes) -> str:
    """The whole note, ending in a newline. Names from sources are escaped; the specification's prose is Markdown."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {
        "plain": escape,
        "figures": _figures,
        "prose": _prose,
        "prose_line": lambda text: " ".join(_prose(text).split()),
        "code": lambda text: printable(text).replace("`", "'"),
        "share": sentences.share_text,
        "table": lambda table: _cited(markdown_table(table)),
    }
    spec = notes.spec
    changes = [
        (change, sentences.change_figures(*pair, bool(notes.mixed)) if pair else "")
        for change, pair in zip(spec.change, notes.changes, strict=True)
    ]
    text = environment.get_template("release_notes.md.j2").render(
        spec=spec,
        notes=notes,
        headline=sentences.headline(notes),
        changes=changes,
        now=sentences.now_sentence(notes) if notes.shares else "",
        idle_meaning=IDLE_MEANING,
        host=tables.host_table(notes) if notes.host else None,
        gap=sentences.gap_sentences(notes.gap) if notes.gap else [],
        gap_table=tables.gap_table(notes.gap) if notes.gap and notes.gap.comparison else None,
        kernels=tables.kernel_table(notes),
        kernel_notes=[k.notes for k in spec.kernels if k.notes],
        bits=sentences.bits_sentences(notes),
        shas=sentences.sha_sentences(notes),
        statistics=sentences.statistics(notes),
        cumulative=tables.cumulative_table(notes),
        has_captures=any(p.capture is not None for p in notes.paths),
        counts=tables.counts_table(notes),
        compatibility=sentences.compatibility(notes),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def _figures(text: str) -> str:
    """Escaped but for the numbers of sources."""
    return _cited(escape(text))


def _cited(text: str) -> str:
    return re.sub(r"\\\[(\d+)\\\]", r"[\1]", text)


def _prose(text: str) -> str:
    """The author's Markdown: lines as they are, without control characters."""
    return "\n".join(printable(line.expandtabs()).rstrip() for line in text.strip().splitlines())
