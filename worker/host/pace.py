"""How long a step may take before the worker group is taken for stuck: by the steps like it that were measured."""

from __future__ import annotations

import math
from collections.abc import Hashable

LEAST_SECONDS = 120.0
TIMES_SLOWEST = 30.0


class Pace:
    """The slowest step so far of each kind; what makes steps alike (model, plan, sizes) is the caller's to say."""

    def __init__(self) -> None:
        self.slowest: dict[Hashable, float] = {}

    def note(self, kind: Hashable | None, seconds: float) -> None:
        """kind: None for steps that are like no other."""
        if kind is not None:
            self.slowest[kind] = max(seconds, self.slowest.get(kind, 0.0))

    def patience(self, kind: Hashable | None) -> float:
        """Seconds; infinite for a kind of which none was measured: a large model's first step may take any time."""
        return max(LEAST_SECONDS, TIMES_SLOWEST * self.slowest[kind]) if kind in self.slowest else math.inf
