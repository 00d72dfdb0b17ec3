"""``glqprof decode``: run a bundled decode workload untraced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from glqprof.cli.options import Format, FormatOption, print_document
from glqprof.workloads.bundled import DEFAULT_VARIANT, WORKLOADS

COMMIT = "GLQPROF_COMMIT"
"""Tells the commit where the tree is no git checkout."""


class DecodeDevice(StrEnum):
    """Where the model is made and runs."""

    cuda = "cuda"
    cpu = "cpu"


def decode(
    workload: Annotated[str, typer.Option(help=f"Which model: {', '.join(WORKLOADS)}.")] = WORKLOADS[0],
    variant: Annotated[
        str,
        typer.Option(
            help="How the routed experts are computed: v0.2.12, v3a, v3b, v3b-fp32act, fused, fused-fast, "
            "nvfp4-UNIT-PIPELINE, bf16, bf16-loop, or transformers (the model's own code)."
        ),
    ] = DEFAULT_VARIANT,
    device: Annotated[DecodeDevice, typer.Option(help="cpu runs the exact CPU implementations.")] = DecodeDevice.cuda,
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens of the prompt. Default: 1024; tiny: 16.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens to time. Default: 128; tiny: 16.")] = None,
    warmup: Annotated[int, typer.Option(min=0, help="Tokens decoded before the timed ones.")] = 3,
    layers: Annotated[int | None, typer.Option(help="Only the model's first layers. Default: all.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 31) - 1, help="Seed of the weights and the prompt.")] = 0,
    form: FormatOption = Format.table,
) -> None:
    """Decode a bundled model at batch 1 with any expert variant, and say how fast and which tokens.

    Weights are random and made on the device, decoding is greedy. No profiler runs: this is the number to quote.

    Example: glqprof decode --workload tiny --variant v3b --device cpu
    """
    from dataclasses import replace

    from glqprof.errors import InputError
    from glqprof.profilers.capture import git_here
    from glqprof.reports.decode_document import decode_csv_table, decode_document
    from glqprof.workloads.nemotron_h.sizes import load_sizes
    from glqprof.workloads.nemotron_h.variants import find_variant

    load_sizes(workload).prefix(layers)  # wrong names are told before torch is imported
    find_variant(variant, "--variant")
    try:
        import torch  # noqa: F401
    except ImportError:
        raise InputError("torch", "is not installed, and decode needs it: pip install 'glqprof[torch]'") from None
    from glqprof.workloads.nemotron_h.decode import run_decode

    tiny = workload == "tiny"
    with _status() as say:
        result = run_decode(
            workload,
            variant,
            device.value,
            prompt=prompt or (16 if tiny else 1024),
            tokens=tokens or (16 if tiny else 128),
            warmup=warmup,
            layers=layers,
            seed=seed,
            say=say,
        )
    git = git_here()
    if git is not None:
        result = replace(result, commit=git.commit, dirty=git.dirty)
    elif os.environ.get(COMMIT):
        result = replace(result, commit=os.environ[COMMIT])
    print_document(decode_document(result), form, json_object=result.to_json(), csv_table=decode_csv_table(result))


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Yield a callback that writes what is going on to stderr, on a terminal only.

    Plain lines: a spinner's thread would take the interpreter away from the loop that is timed.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    yield lambda what: console.print(f"{what} …", style="dim") if console.is_terminal else None
