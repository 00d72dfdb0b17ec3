"""The ``glqprof`` command: registers the verbs and turns errors into one line and an exit status."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from glqprof import __version__
from glqprof.cli.breakdown import breakdown
from glqprof.cli.compare import compare
from glqprof.cli.demo import demo
from glqprof.errors import InputError

app = typer.Typer(
    name="glqprof",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Says where every millisecond of an LLM decode went, and compares captures and kernel variants honestly.",
    epilog="Exit status: 0 done, 1 a check failed, 2 unusable input or arguments. Start with: glqprof demo",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"glqprof {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options before the verb."""
    ctx.obj = {"debug": debug}


app.command()(breakdown)
app.command()(compare)
app.command()(demo)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; never returns normally."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments[:1]
    try:
        app(arguments, standalone_mode=True)
    except InputError as error:
        if debug:
            raise
        sys.stdout.flush()
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        sys.stderr.close()
        sys.exit(0)
    except (MemoryError, OSError) as error:
        if debug:
            raise
        print(f"error: {error or type(error).__name__}; run again with --debug for details", file=sys.stderr)
        sys.exit(2)
