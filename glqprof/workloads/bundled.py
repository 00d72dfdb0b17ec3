"""The bundled decode workloads by name, and the command that runs one: standard library only, nothing is loaded."""

from __future__ import annotations

import sys
from collections.abc import Sequence

WORKLOADS = ("cascade2-30b", "tiny")
"""What ``glqprof decode --workload`` takes; `nemotron_h.sizes` has what each one is."""
CAPTURE_TOKENS = 8
"""Tokens that a capture marks unless told otherwise: a trace of each is read by people, and stays small."""
DEFAULT_VARIANT = "fused"


def decode_command(workload: str, variant: str, options: Sequence[str] = ()) -> list[str]:
    """The command line that runs a bundled workload in this interpreter; ``options`` are those of `glqprof decode`."""
    command = [sys.executable, "-m", "glqprof", "decode", "--workload", workload]
    if variant:
        command += ["--variant", variant]
    if not any(option.split("=")[0] == "--tokens" for option in options):
        command += ["--tokens", str(CAPTURE_TOKENS)]
    return [*command, *options]
