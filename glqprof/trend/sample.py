"""One number of one run of one commit: what the store holds."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from glqprof.errors import InputError

Direction = Literal["lower", "higher", "none"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
"""Which way is better. ``none``: steps are shown and never called a regression."""
MAX_NAME = 200
DEFAULT_MACHINE = "default"
_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._/+-]{0,63}")


@dataclass(frozen=True, order=True)
class SeriesKey:
    """What numbers must share to be points of one series: different GPUs, machines or workloads never do."""

    workload: str
    variant: str
    metric: str
    gpu: str
    machine: str = DEFAULT_MACHINE

    def __str__(self) -> str:
        """Return the parts that say something, in the order of the tables."""
        machine = "" if self.machine == DEFAULT_MACHINE else self.machine
        return ", ".join(part for part in (self.metric, self.variant, self.workload, self.gpu, machine) if part)


@dataclass(frozen=True)
class Sample:
    """One ``value`` of ``series``, in ``unit``, measured at ``commit`` in ``run`` (see `run_identity`).

    ``commit_time``: seconds since 1970 UTC, None where nobody said. ``environment``: versions and the like, by name,
    that a reader of a step wants to see changed or not. Raises InputError for what the store cannot hold.
    """

    series: SeriesKey
    value: float
    unit: str
    direction: Direction
    commit: str
    run: str
    commit_time: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_commit(self.commit)
        for name in ("workload", "variant", "metric", "gpu", "machine"):
            text = getattr(self.series, name)
            if len(text) > MAX_NAME or not text.isprintable():
                raise InputError(name, f"is not one printable line of up to {MAX_NAME} characters; shorten it")
            if not text and name != "variant":
                raise InputError(name, "is empty; name it")
        if not math.isfinite(self.value):
            raise InputError(self.series.metric, f"is {self.value}: not a number that can be compared")

    @property
    def key(self) -> str:
        """The identity of a sample: the same series, commit and run are stored once."""
        s = self.series
        return digest("\n".join((s.workload, s.variant, s.metric, s.gpu, s.machine, self.commit, self.run)))


def check_commit(commit: str) -> str:
    """Return ``commit``; raises InputError where it cannot be the name of one."""
    if not _COMMIT.fullmatch(commit):
        raise InputError("--commit", f"{commit[:80]!r} is no commit; give its hash, or HEAD in a checkout")
    return commit


def digest(text: str | bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()
