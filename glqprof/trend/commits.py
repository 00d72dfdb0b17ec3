"""The full hash and the time of a commit, from the checkout that the command runs in."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

from glqprof.errors import InputError
from glqprof.trend.sample import check_commit


def resolve_commit(name: str) -> tuple[str, int | None]:
    """Return the full hash of ``name`` (a hash, a branch, HEAD) and its commit time in seconds since 1970 UTC.

    Outside a checkout, or for a commit that it does not hold, ``name`` itself and None: results may be added elsewhere.
    """
    check_commit(name)
    command = ["git", "log", "-1", "--format=%H %ct", "--no-show-signature", f"{name}^{{commit}}", "--"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is None or done.returncode != 0 or len(done.stdout.split()) != 2:
        if name == "HEAD":
            raise InputError("--commit", "HEAD means nothing here: no git checkout; give the commit's hash")
        return name, None
    commit, seconds = done.stdout.split()
    return commit, int(seconds)


def parse_time(text: str) -> int:
    """Return seconds since 1970 UTC of an ISO 8601 time, or of such seconds. A time without a zone is UTC."""
    try:
        if text.isdigit():
            return int(datetime.fromtimestamp(int(text), UTC).timestamp())
        when = datetime.fromisoformat(text)
        return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError, OSError):
        raise InputError(
            "--commit-time", f"{text!r} is no time; give ISO 8601 such as 2026-11-30T12:00:00Z, or seconds since 1970"
        ) from None
