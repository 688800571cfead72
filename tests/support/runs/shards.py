"""A run in several parts, each of whole files: `dev.py test --slow --shard 1/4`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.support import tiers

# Roughly, in seconds, what a test takes by what it needs: which files make a shard must not change from run to run, so
# no measured duration decides.
COSTS = {"need a browser": 8.0, "need ComfyUI": 2.0, "need ranks": 0.4, "need the demo model's pictures": 30.0}


def parse(text: str) -> tuple[int, int]:
    """'1/4' as (1, 4). Raises pytest.UsageError."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"--shard takes a part and how many there are, as in 1/4; {text!r} is none")
    return int(found[1]), int(found[2])


def cost(item: pytest.Item) -> float:
    reason = next((f"need {need}" for need in tiers.needs(getattr(item, "fixturenames", ()))), "")
    return COSTS.get(reason, 0.05)


def files_of_shard(costs: Iterable[tuple[str, float]], part: int, parts: int) -> set[str]:
    """The files of one shard. Each file, the costliest first, goes to the shard that has least."""
    totals: Counter[str] = Counter()
    for file, seconds in costs:
        totals[file] += seconds
    shards: list[tuple[float, int, set[str]]] = [(0.0, number, set()) for number in range(1, parts + 1)]
    for file, seconds in sorted(totals.items(), key=lambda entry: (-entry[1], entry[0])):
        held, number, files = min(shards, key=lambda shard: shard[:2])
        shards[number - 1] = (held + seconds, number, files | {file})
    return shards[part - 1][2]


def select(config: pytest.Config, items: list[pytest.Item], text: str) -> str:
    """Leaves a shard's tests in `items`; returns what is to be said of the others."""
    part, parts = parse(text)
    kept = files_of_shard(((str(item.path), cost(item)) for item in items), part, parts)
    others = [item for item in items if str(item.path) not in kept]
    items[:] = [item for item in items if str(item.path) in kept]
    config.hook.pytest_deselected(items=others)
    return f"{len(others)} tests are in other shards than {text}"
