"""``python -m glqprof.profilers.cupti_run OUTPUT all|marked -- script.py …``: run a script under the CUPTI tracer."""

from __future__ import annotations

import sys
from importlib.metadata import version

from glqprof.profilers.script import trace_script


def main() -> None:
    """Trace the script that the arguments name."""
    from cupti import cupti

    from glqprof.profilers.cupti_tracer import CuptiTracer

    trace_script(sys.argv[1:], lambda: CuptiTracer(cupti, version("cupti-python")))


if __name__ == "__main__":
    main()
