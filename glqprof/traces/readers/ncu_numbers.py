"""Numbers as ncu prints them into CSV, and how to tell that a locale has spoiled them."""

from __future__ import annotations

import math
import re

from glqprof.errors import InputError

_PLAIN = re.compile(r"^[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?$")
# 27.595.520 or 1.234,5 or 28,00: groups by point, space or apostrophe, or a decimal comma.
_EUROPEAN = re.compile(
    r"^[+-]?(?:\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|\d{1,3}(?:[.\u00a0\u202f '’]\d{3})+,\d+|\d+,\d+"
    r"|\d{1,3}(?:[\u00a0\u202f '’]\d{3})+(?:[.,]\d+)?)$"
)
_ABSENT = frozenset({"", "n/a", "nan", "-nan", "inf", "-inf", "(null)", "no data"})


def parse_number(text: str, shown_as: object) -> float | str | None:
    """A printed value: a number, a word, or None where nothing was measured (``n/a``, empty, not finite).

    Raises InputError for a number written in a European locale: there ``117.344`` may be 117 or 117,344.
    """
    text = text.strip()
    if _PLAIN.match(text):
        value = float(text.replace(",", ""))
        return value if math.isfinite(value) else None
    if text.lower() in _ABSENT:
        return None
    if _EUROPEAN.match(text):
        raise InputError(
            shown_as,
            f"holds numbers of a European locale ({text!r}), where 117.344 may be 117 or 117,344; give the .ncu-rep "
            "itself, or export again with `LC_ALL=C ncu --print-units base --csv`",
        )
    return text
