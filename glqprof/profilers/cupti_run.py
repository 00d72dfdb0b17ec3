"""``python -m glqprof.profilers.cupti_run OUTPUT all|marked -- script.py …``: run a script under the CUPTI tracer."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from glqprof import annotate
from glqprof.profilers.script import WholeProgram, run_script, split_arguments


def main() -> None:
    """Trace all of the script, or what is inside `annotate.profiled`; the export is written however it ends."""
    own, script = split_arguments(sys.argv[1:])
    output, what = Path(own[0]), own[1]
    from cupti import cupti

    from glqprof.profilers.cupti_tracer import CuptiTracer

    tracer = CuptiTracer(cupti, version("cupti-python"))
    if what == "all":
        tracer.start()
        annotate.attach(WholeProgram(tracer))
    else:
        annotate.attach(tracer)
    try:
        run_script(script)
    finally:
        tracer.save(output)


if __name__ == "__main__":
    main()
