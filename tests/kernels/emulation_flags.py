"""How every emulated library is compiled."""

from __future__ import annotations

FLAGS = [
    "-std=c++17",
    "-O2",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-DGLQ_EMULATE",
    "-shared",
    "-fPIC",
    "-fno-gnu-unique",  # each library of a process has a machine of its own
    "-x",
    "c++",
]
