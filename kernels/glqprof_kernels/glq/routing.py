"""What a router may hand over: expert ids are checked where the host knows them."""

from __future__ import annotations

import numpy as np


def check_ids(ids: np.ndarray, experts: int, mask_invalid: bool) -> None:
    """Raise ValueError naming the first id outside ``0 .. experts - 1``, unless such slots are to be skipped.

    A slot of weight 0 is checked too: it is skipped, but a bad id in it means that the router is wrong.
    """
    if mask_invalid:
        return
    bad = np.argwhere((ids < 0) | (ids >= experts))
    if len(bad):
        t, k = bad[0]
        raise ValueError(
            f"ids[{t}, {k}] is {ids[t, k]}, but the experts are 0 .. {experts - 1}; "
            "pass mask_invalid=True to skip such slots"
        )
