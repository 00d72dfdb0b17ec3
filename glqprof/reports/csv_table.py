"""Write one table as CSV: full precision, units in the header."""

from __future__ import annotations

import csv
import io

from glqprof.reports.document import Table


def to_csv(table: Table) -> str:
    """Header and rows of a table; the total is left out, as it is their sum. An absent value is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([c.key for c in table.columns])
    for row in table.rows:
        writer.writerow(["" if v is None or v != v else v for v in row])
    return out.getvalue()
