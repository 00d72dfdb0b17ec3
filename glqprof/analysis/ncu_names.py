"""One key for a kernel's name: nsys writes ``void k<(int)3>(float *)``, ncu ``void k<3>(float *)``."""

from __future__ import annotations

import re

_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|long long|long|char|signed char|short)\)(?=-?\d)")
_ANONYMOUS = re.compile(r"(?:<unnamed>|\(anonymous namespace\)|\{anonymous\})::")
_BOOL = {"true": "1", "false": "0"}


def kernel_key(name: str) -> str:
    """Name and template arguments without return type, casts, anonymous namespaces, spaces and parameters."""
    text = _ANONYMOUS.sub("", _CAST.sub("", name.strip()))
    text = re.sub(r"\b(true|false)\b", lambda m: _BOOL[m[1]], text)
    text = text.removeprefix("void ")
    return re.sub(r"\s+", "", text[: _parameters_at(text)])


def function_name(name: str) -> str:
    """The key without template arguments and namespaces."""
    return kernel_key(name).partition("<")[0].rpartition("::")[2]


def _parameters_at(text: str) -> int:
    """Where the parameter list opens: the first bracket outside template arguments and square brackets."""
    depth = 0
    for i, mark in enumerate(text):
        if mark in "<[":
            depth += 1
        elif mark in ">]":
            depth -= 1
        elif mark == "(" and depth == 0 and i:
            return i
    return len(text)
