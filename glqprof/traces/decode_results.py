"""Read back what `glqprof decode --format json` printed."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import msgspec

from glqprof.errors import InputError
from glqprof.traces.schema.decode import SCHEMA as DECODE_SCHEMA
from glqprof.traces.schema.release import DecodeRun


def read_decode(path: str | Path) -> DecodeRun:
    """An untraced decode. Raises InputError for a file that is absent, no JSON, of another schema, or has no rate."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(path, "no such file; check the path") from None
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror}); give a result of glqprof decode") from None
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(path, f"is not JSON ({error}); give what glqprof decode --format json printed") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != DECODE_SCHEMA:
        raise InputError(path, f"has schema {schema!r}, this reads {DECODE_SCHEMA!r}; give a result of glqprof decode")
    try:
        run = msgspec.convert(document, DecodeRun)
    except msgspec.ValidationError as error:
        raise InputError(path, f"does not follow {DECODE_SCHEMA} ({error}); run the decode again") from None
    if not (isfinite(run.tok_s) and run.tok_s > 0 and isfinite(run.ms_per_token) and run.ms_per_token > 0):
        raise InputError(path, "holds no rate: tok_s and ms_per_token must be above 0; run the decode again")
    return run
