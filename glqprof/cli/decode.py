"""``glqprof decode``: run a bundled decode workload untraced."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from glqprof.cli.options import Format, FormatOption, print_document
from glqprof.traces.schema.decode import DecodeResult
from glqprof.workloads.bundled import DEFAULT_VARIANT, WORKLOADS

COMMIT = "GLQPROF_COMMIT"
"""Tells the commit where the tree is no git checkout."""


class DecodeDevice(StrEnum):
    """Where the model is made and runs."""

    cuda = "cuda"
    cpu = "cpu"


class Loop(StrEnum):
    """What runs a token."""

    transformers = "transformers"
    glqprof = "glqprof"


class SsmStep(StrEnum):
    """The Mamba-2 layers' step."""

    model = "model"
    torch = "torch"
    unfused = "unfused"
    fused = "fused"


class CacheKind(StrEnum):
    """Where the state of the decode is."""

    dynamic = "dynamic"
    static = "static"


class Sdpa(StrEnum):
    """Backends of torch's attention."""

    any = "any"
    cudnn = "cudnn"
    flash = "flash"
    efficient = "efficient"
    math = "math"


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
    graph: Annotated[bool, typer.Option("--graph", help="One CUDA graph a token.")] = False,
    loop: Annotated[
        Loop, typer.Option(help="transformers: the model's forward; glqprof: bundled kernels over its weights.")
    ] = Loop.transformers,
    ssm: Annotated[
        SsmStep | None,
        typer.Option(help="The Mamba-2 step. Default: the model's own; fused with --loop glqprof."),
    ] = None,
    cache: Annotated[
        CacheKind | None,
        typer.Option(help="static: buffers that never move. Default: dynamic; static with --graph or --loop glqprof."),
    ] = None,
    sdpa: Annotated[
        Sdpa, typer.Option(help="Hold torch's attention to one backend while decoding, in transformers' loop.")
    ] = Sdpa.any,
    shared_stream: Annotated[
        bool, typer.Option("--shared-stream", help="The shared expert on a stream of its own, in glqprof's loop.")
    ] = False,
    prompt_variant: Annotated[
        str | None, typer.Option(help="A variant of the same bits that reads the prompt. Default: --variant.")
    ] = None,
    form: FormatOption = Format.table,
) -> None:
    """Decode a bundled model at batch 1 with any expert variant, and say how fast and which tokens.

    Weights are random and made on the device, decoding is greedy. No profiler runs: this is the number to quote.

    Example: glqprof decode --variant fused --loop glqprof --graph
    """
    from glqprof.errors import InputError
    from glqprof.reports.decode_document import decode_csv_table, decode_document
    from glqprof.workloads.nemotron_h.paths import How
    from glqprof.workloads.nemotron_h.sizes import load_sizes
    from glqprof.workloads.nemotron_h.variants import find_variant

    load_sizes(workload).prefix(layers)  # wrong names are told before torch is imported
    how = How(
        loop.value,
        ssm.value if ssm else None,
        cache.value if cache else None,
        graph,
        sdpa.value,
        shared_stream,
        prompt_variant,
    )
    how.settled(find_variant(variant, "--variant"), device.value)
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
            how=how,
            say=say,
        )
    result = with_commit(result)
    print_document(decode_document(result), form, json_object=result.to_json(), csv_table=decode_csv_table(result))


def with_commit(result: DecodeResult) -> DecodeResult:
    """The result with the commit of the checkout that it ran in, or the one that the environment names."""
    from dataclasses import replace

    from glqprof.profilers.capture import git_here

    git = git_here()
    if git is not None:
        return replace(result, commit=git.commit, dirty=git.dirty)
    return replace(result, commit=os.environ[COMMIT]) if os.environ.get(COMMIT) else result


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """Yield a callback that writes what is going on to stderr, on a terminal only.

    Plain lines: a spinner's thread would take the interpreter away from the loop that is timed.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    yield lambda what: console.print(f"{what} …", style="dim") if console.is_terminal else None
