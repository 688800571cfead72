"""The degrees of every plan of so many ranks."""

from __future__ import annotations

import itertools
import math

from parallel_backend.axes import BY_NAME


def list_degrees(ranks: int) -> list[dict[str, int]]:
    """Guidance has two branches."""
    most = {"cfg": 2}
    rows = itertools.product(*(range(1, most.get(axis, ranks) + 1) for axis in BY_NAME))
    found = [dict(zip(BY_NAME, row, strict=True)) for row in rows if math.prod(row) == ranks]
    return [{axis: degree for axis, degree in each.items() if degree > 1} for each in found]
