"""Run glqprof as `python -m glqprof`."""

from glqprof.cli.app import main

main()
