"""What a result looks like in a notebook: asked of whoever renders results, which analysis does not import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class Shown:
    """Base of results that show themselves. ``as_html`` is set by `glqprof.reports.notebook`, per class."""

    as_html: ClassVar[Callable[[Any], str] | None] = None

    def _repr_html_(self) -> str | None:
        render = type(self).as_html
        return render(self) if render is not None else None
