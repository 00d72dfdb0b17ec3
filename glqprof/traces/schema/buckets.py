"""Bucket rules: which named group of GPU work a kernel belongs to."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from glqprof.errors import InputError

BUCKETS = (
    "matvec",
    "rht",
    "reduce",
    "moe",
    "ssm",
    "attention",
    "gemm",
    "norm",
    "router",
    "sampling",
    "elementwise",
    "copy",
    "memset",
    "comm",
    "graph",
    "other",
)
DEFAULT_RULES = Path(__file__).resolve().parents[2] / "data" / "buckets.toml"


@dataclass(frozen=True)
class BucketRule:
    """``kernel`` (a regular expression, searched in the demangled name) and, when given, ``nvtx`` (a glob on one name
    of the range path the kernel was launched in) send a kernel to ``bucket``."""

    bucket: str
    kernel: re.Pattern[str]
    nvtx: str | None = None
    line: int = 0


def load_bucket_rules(path: Path | None = None) -> list[BucketRule]:
    """Read rules in order from a TOML file of ``[[rule]]`` tables (bucket, kernel, nvtx); default: the bundled file.

    Bucket names beside the bundled ones are allowed: users name their own groups. Raises InputError naming the line
    that is wrong.
    """
    path = path or DEFAULT_RULES
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, "no such file; give --buckets a TOML file of [[rule]] tables") from None
    except UnicodeDecodeError:
        raise InputError(path, "is not UTF-8 text; give --buckets a TOML file of [[rule]] tables") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); check the path and its permissions") from None
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # The message ends with "(at line L, column C)".
        raise InputError(path, f"is not valid TOML: {error}; mend that line") from None
    lines = [n for n, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*rule\s*\]\]", line)]
    tables = document.pop("rule", None)
    if document:
        raise InputError(path, f"line 1: unknown key {next(iter(document))!r}; rules stand in [[rule]] tables")
    if not isinstance(tables, list) or not tables or not all(isinstance(t, dict) for t in tables):
        raise InputError(path, "line 1: holds no [[rule]] table; each needs bucket and kernel")
    lines += [0] * (len(tables) - len(lines))
    return [_rule(path, line, table) for line, table in zip(lines, tables, strict=False)]


def _rule(path: Path, line: int, table: dict[str, object]) -> BucketRule:
    where = f"line {line}: "
    unknown = set(table) - {"bucket", "kernel", "nvtx"}
    if unknown:
        raise InputError(path, f"{where}unknown key {sorted(unknown)[0]!r}; a rule has bucket, kernel and nvtx")
    for key in ("bucket", "kernel"):
        if key not in table:
            raise InputError(path, f"{where}the rule has no {key!r}; add it")
    for key, value in table.items():
        if not isinstance(value, str) or not value:
            raise InputError(path, f"{where}{key} must be a non-empty string, not {value!r}")
    try:
        pattern = re.compile(str(table["kernel"]))
    except re.error as error:
        raise InputError(path, f"{where}kernel is not a regular expression ({error}); mend it") from None
    nvtx = table.get("nvtx")
    return BucketRule(str(table["bucket"]), pattern, None if nvtx is None else str(nvtx), line)
