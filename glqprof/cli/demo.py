"""``glqprof demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

BASE, CANDIDATE = "h200-cascade2-30b-glq-v0.2.12", "h200-cascade2-30b-glq-v0.2.13"
HOST_LOOP, ONE_GRAPH = "h200-decode-v3b", "h200-decode-fused-loop-graph"
"""The same model by this project's kernels: with a host loop over the experts, and as one CUDA graph a token."""


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for the figures and the Markdown report.")
    ] = Path("glqprof-demo"),
) -> None:
    """Break down and compare bundled captures of a real decode on an H200: two releases, then a loop and a graph.

    Example: glqprof demo -o glqprof-demo
    """
    import glqprof
    from glqprof.cli.options import Format, print_document
    from glqprof.errors import InputError
    from glqprof.reports.breakdown_document import breakdown_document
    from glqprof.reports.compare_document import compare_document
    from glqprof.reports.document import Document, Text
    from glqprof.reports.figures import account_figure, timeline_figure
    from glqprof.reports.markdown import to_markdown
    from glqprof.reports.output import write_text
    from glqprof.reports.sentences import breakdown_sentence, compare_sentence
    from glqprof.traces.captures import bundled_capture

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(output, f"cannot be made ({error.strerror}); choose another folder with -o") from None

    def broken_down(name: str) -> glqprof.Breakdown:
        return glqprof.breakdown(glqprof.load(bundled_capture(name), launch_config=False))

    sides = [broken_down(name) for name in (BASE, CANDIDATE)]
    comparisons = glqprof.compare(*sides)
    graph = broken_down(ONE_GRAPH)
    to_graph = glqprof.compare(broken_down(HOST_LOOP), graph)
    documents = [breakdown_document(side, top=8) for side in sides] + [compare_document(comparisons, top=8)]
    documents += [breakdown_document(graph, top=8), compare_document(to_graph, top=8)]
    sentences = [*(breakdown_sentence(side) for side in sides), compare_sentence(comparisons[0])]
    sentences += [breakdown_sentence(graph), compare_sentence(to_graph[0])]
    for document, sentence in zip(documents, sentences, strict=True):
        document.parts.append(Text([sentence], "headline"))
        print_document(document, Format.table, json_object=None, csv_table=None)
        typer.echo("\n" + "─" * 80 + "\n")
    account_figure(sides, output / "account.png")
    timeline_figure(sides[0], output / "timeline.png")
    title = "Where did the time go: GLQ v0.2.12, v0.2.13, and one graph a token, on an H200"
    whole = Document(title, [Text(sentences)])
    pictures = "\n![closed account](account.png)\n\n![timeline of one token](timeline.png)\n\n"
    write_text(output / "report.md", to_markdown(whole) + pictures + "\n".join(to_markdown(d) for d in documents))
    typer.echo(f"wrote {output}/report.md, account.png and timeline.png")
