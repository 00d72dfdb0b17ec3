"""The ``glqprof`` command: registers the verbs and turns errors into one line and an exit status."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from typing import Annotated, Any, NoReturn

import typer

from glqprof import __version__
from glqprof.cli.bench import bench
from glqprof.cli.breakdown import breakdown
from glqprof.cli.capture import capture
from glqprof.cli.compare import compare
from glqprof.cli.decode import decode
from glqprof.cli.demo import demo
from glqprof.cli.doctor import doctor
from glqprof.cli.export import export
from glqprof.cli.kernels import kernels
from glqprof.cli.ncu import ncu
from glqprof.cli.release_notes import release_notes
from glqprof.cli.report import report
from glqprof.cli.scrub import scrub
from glqprof.cli.trend import trend
from glqprof.errors import InputError

# Typer comes with a click of its own in some versions: this is the class that the installed one raises.
_ClickException: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="glqprof",
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


app.add_typer(capture, name="capture")
app.command()(breakdown)
app.command()(compare)
app.command()(decode)
app.command()(bench)
app.command()(kernels)
app.command()(ncu)
app.command()(report)
app.command()(export)
app.command("release-notes")(release_notes)
app.command()(demo)
app.command()(scrub)
app.command()(doctor)
app.add_typer(trend, name="trend")


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; never returns normally."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in arguments[:1]
    # Imports and tables make many objects and little garbage: fewer collections save a twentieth of a short run.
    gc.set_threshold(100_000, 50, 50)
    try:
        status = app(arguments, prog_name="glqprof", standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _fail(str(error), debug)
    except _ClickException as error:
        if not error.format_message():  # a verb of verbs without one: its help was printed, as for `glqprof` alone
            sys.exit(0)
        command = getattr(getattr(error, "ctx", None), "command_path", "glqprof")
        _fail(f"{command}: {error.format_message().rstrip('.')}; see {command} --help", debug)
    except typer.Abort:
        sys.exit(130)
    except SystemExit as stop:
        # Commands raise typer.Exit. What exits here is Typer or rich when the reader of the output (head, less) has
        # seen enough, with status 1, which means a failed check to our users.
        sys.exit(0 if stop.code == 1 and "_GLQPROF_COMPLETE" not in os.environ else stop.code)
    except (MemoryError, OSError) as error:
        _fail(f"{error or type(error).__name__}; see glqprof --debug {' '.join(arguments)}", debug)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    sys.stdout.flush()
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
