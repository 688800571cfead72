"""`python -m tests.support.streams.table`: prints the table of communicators by plan, of docs/dev/06-gpu-path.md."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from parallel_backend.axes import BY_NAME
from parallel_backend.groups.communicators import (
    NVLINK,
    PCIE,
    count_communicator_bytes,
    count_side_by_side,
    list_communicators,
)
from parallel_backend.plan import SHARED, ParallelPlan

CARD = 24 << 30
# Of 8 ranks: each axis alone, and those that the README and `auto` choose.
PLANS = [
    {"ulysses": 8},
    {"ring": 8},
    {"ring": 2, "ulysses": 4},
    {"cfg": 2, "ulysses": 4},
    {"cfg": 2, "ring": 2, "ulysses": 2},
    {"dp": 8},
    {"dp": 2, "cfg": 2, "ulysses": 2},
    {"pipefusion": 8},
    {"pipefusion": 2, "ulysses": 4},
    {"cfg": 2, "pipefusion": 2, "ulysses": 2},
]


def list_degrees(ranks: int) -> list[dict[str, int]]:
    """The degrees of every plan of so many ranks. Guidance has two branches."""
    most = {"cfg": 2}
    rows = itertools.product(*(range(1, most.get(axis, ranks) + 1) for axis in BY_NAME))
    found = [dict(zip(BY_NAME, row, strict=True)) for row in rows if math.prod(row) == ranks]
    return [{axis: degree for axis, degree in each.items() if degree > 1} for each in found]


def most(plan: ParallelPlan) -> int:
    """The communicators of the rank with the most."""
    every = list_communicators(plan)
    return max(sum(rank in each.ranks for each in every) for rank in range(plan.world_size))


def row(degrees: dict[str, int]) -> str:
    plan = ParallelPlan(**degrees)
    shared = replace(plan, weights=SHARED) if plan.replicas > 1 else plan
    pcie, nvlink = ([count_communicator_bytes(each, way) for each in (plan, shared)] for way in (PCIE, NVLINK))
    name = ", ".join(f"`{axis} {degree}`" for axis, degree in degrees.items())
    cells = [
        name,
        both(most(plan), most(shared)),
        both(count_side_by_side(plan), count_side_by_side(shared)),
        both(*(f"{each / (1 << 20):,.0f}" for each in pcie)),
        f"{(CARD - pcie[1]) / (1 << 30):.1f}",
        both(*(f"{each / (1 << 30):.1f}" for each in nvlink)),
    ]
    return f"| {' | '.join(cells)} |"


def both(whole: object, shared: object) -> str:
    return f"{whole}" if whole == shared else f"{whole}, {shared}"


def table() -> str:
    head = (
        "| plan of 8 | communicators | side by side | MiB, PCIe | of 24 GiB left | GiB, NVLink |",
        "|---|---|---|---|---|---|",
    )
    return "\n".join((*head, *map(row, PLANS)))


if __name__ == "__main__":
    print(table())
