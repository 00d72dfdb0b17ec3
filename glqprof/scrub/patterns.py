"""What must not be in a file that is shared: the forms of secrets, of addresses and of paths.

The patterns are the last check, not the method: what is kept is chosen by lists of what an analysis reads.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from glqprof.errors import InputError

SECRETS: dict[str, re.Pattern[str]] = {
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{16,}"),
    "an API key": re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}|\bnvapi-[\w-]{16,}|\bAIza[\w-]{30,}"),
    "a GitHub token": re.compile(r"\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"),
    "a GitLab token": re.compile(r"\bglpat-[\w-]{16,}"),
    "a Slack token": re.compile(r"\bxox[abeprs]-[\w-]{10,}"),
    "an AWS key": re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    "a JSON web token": re.compile(r"\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\."),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY"),
    "a password in an address": re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]+@"),
    "a named secret": re.compile(
        # Not any *_token: decode_token_3 and next_token are what a decode is made of.
        r"(?i)(?:password|passwd|secret|credential|(?:access|api|private)[_-]?key|"
        r"(?:auth|access|refresh|bearer|api|hf|hub|github|gitlab|wandb)[_-]?token)\s*[=:]\s*['\"]?[^\s'\"<]{6,}"
    ),
}
# Roots and not any slash: graph compilers name operations /model/layers.0/mlp, and that is what an analysis is about.
_ROOTS = (
    "home|root|Users|user|tmp|var|opt|usr|etc|mnt|media|srv|proc|dev|run|data|datasets|workspace|workspaces|work|"
    "scratch|lustre|nfs|gpfs|shared|project|projects|private|content|kaggle|local|app|build|code|models|checkpoints"
)
PATHS: dict[str, re.Pattern[str]] = {
    "a path": re.compile(
        rf"(?<![\w./:-])/(?:{_ROOTS})/[\w.@+-]+(?:/|\b(?!\.\d))"
        r"|(?<![\w.-])~/[\w.@+-]+"
        r"|\b[A-Za-z]:\\[\w.@+ -]+"
        r"|(?<![\w./-])(?:/[\w.@+-]+){2,}\.(?:py|cu|cuh|cpp|cc|c|h|hpp|so|pt|bin|safetensors|json)\b"
    ),
    "an e-mail address": re.compile(r"\b[\w.+-]+@[\w-]+\.[a-z]{2,}\b"),
    "an internet address": re.compile(r"(?<![\w.])(?!(?:127|0)\.)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    "an environment variable": re.compile(
        r"\b(?:PATH|HOME|PWD|USER|LOGNAME|HOSTNAME|LD_LIBRARY_PATH|PYTHONPATH|SSH_\w+|AWS_\w+|HF_\w+)=[^\s<]\S*"
    ),
}
# The names under which environments hold what nobody else may see.
SECRET_NAME = re.compile(r"(?i)token(?!izers)|secret|passw|credential|(?:^|_)key(?:$|_)|auth|cookie")
HOST_NAME = re.compile(r"(?i)^host ?name$")
MIN_SECRET, MIN_HOST = 8, 5


@dataclass(frozen=True)
class Finding:
    """``kind`` in words; ``shown`` is a harmless part of what matched."""

    kind: str
    shown: str


def find(text: str, *, paths: bool = True) -> Finding | None:
    """The first thing in ``text`` that looks private; ``paths`` also looks for paths, addresses and variables."""
    for kind, pattern in SECRETS.items():
        if match := pattern.search(text):
            return Finding(kind, f"{match[0][:4]}…")
    if paths:
        for kind, pattern in PATHS.items():
            if match := pattern.search(text):
                return Finding(kind, match[0][:24] + ("…" if len(match[0]) > 24 else ""))
    return None


def redact(text: str) -> str:
    """``text`` with secrets, addresses and variables taken out, and of each path its last part only."""
    for pattern in (*SECRETS.values(), *(p for kind, p in PATHS.items() if kind != "a path")):
        text = pattern.sub("<removed>", text)
    return re.sub(r"(?<![\w.])(?:~|[A-Za-z]:)?(?:[/\\][\w.@+ -]*)+[/\\](?=[^/\\\s]|$)", "", text)


def refuse_private(texts: Iterable[tuple[str, str]], shown_as: object) -> None:
    """Raise InputError for the first (place, text) that looks private."""
    for place, text in texts:
        finding = find(text)
        if finding is not None:
            raise InputError(
                shown_as,
                f"would still hold {finding.kind} in {place} ({finding.shown}); rename it in the program and capture "
                "again, or keep the capture to yourself",
            )


def private_values(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Of (name, value) pairs of an environment, the values that may appear nowhere else: secrets, host name."""
    found = set()
    for name, value in pairs:
        # A bare word (disabled, cuda) is a setting or a common name, and stands in kernels' names too.
        is_word = value.isalpha() and len(value) < 12
        is_secret = SECRET_NAME.search(name) and len(value) >= MIN_SECRET
        if (is_secret or (HOST_NAME.match(name) and len(value) >= MIN_HOST)) and not is_word:
            found.add(value)
    return found


def refuse_values(path: Path, values: Iterable[str], shown_as: object) -> None:
    """Raise InputError when a file about to be handed out holds, in any byte, a secret or a removed value."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _refuse_bytes(data, values, shown_as)


def _refuse_bytes(data: mmap.mmap, values: Iterable[str], shown_as: object) -> None:
    for value in values:
        if data.find(value.encode()) >= 0:
            raise InputError(
                shown_as,
                f"would still hold a value of the environment ({value[:3]}…) among the names that are kept; rename "
                "it in the program and capture again, or keep the capture to yourself",
            )
    for kind, pattern in SECRETS.items():
        if match := re.search(pattern.pattern.encode(), data):
            shown = match[0][:4].decode("utf-8", "replace")
            raise InputError(shown_as, f"would still hold {kind} ({shown}…); keep the capture to yourself")
