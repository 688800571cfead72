"""Decides when a step takes so long that the worker group must be stuck, from earlier steps of the same kind."""

from __future__ import annotations

import math
from collections.abc import Hashable

from ..wire.protocol import IN_BLOCKS, NEVER, ONCE

LEAST_SECONDS = 120.0
TIMES_SLOWEST = 30.0
# The longest time in which no rank begins or ends an exchange, or reads on in a file, in a step that is the first of
# its kind, by when the ranks exchange. A block takes seconds. A whole forward may take long, and so may a load.
STILL_SECONDS = {IN_BLOCKS: 600.0, ONCE: 3600.0, NEVER: math.inf}


class Pace:
    """The slowest step so far of each kind. The caller defines the kinds: model, plan, sizes."""

    def __init__(self) -> None:
        self.slowest: dict[Hashable, float] = {}

    def note(self, kind: Hashable | None, seconds: float) -> None:
        """Notes the time of a step. kind: None for a step that is not compared with others."""
        if kind is not None:
            self.slowest[kind] = max(seconds, self.slowest.get(kind, 0.0))

    def patience(self, kind: Hashable | None) -> float:
        """Returns how many seconds to wait. Infinite for the first step of a kind: a large model may take any time, as
        long as its ranks exchange something now and then (STILL_SECONDS)."""
        return max(LEAST_SECONDS, TIMES_SLOWEST * self.slowest[kind]) if kind in self.slowest else math.inf
