"""Defines the step caches and their settings. It imports nothing of diffusers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import RequestError
from ..plan import ParallelPlan

# diffusers' FirstBlockCache and TaylorSeer, by their names in the node.
NONE, FIRST_BLOCK, TAYLORSEER = "none", "first block", "taylorseer"
CACHES = (NONE, FIRST_BLOCK, TAYLORSEER)


@dataclass(frozen=True)
class CacheSettings:
    """The step cache of one request.

    kind: one of CACHES.
    threshold: for the first-block cache. If the first block's residual changes less than this, relative to itself, the
    other blocks are skipped.
    interval: for TaylorSeer. It computes one forward out of this many.
    """

    kind: str = NONE
    threshold: float = 0.08
    interval: int = 4

    def check(self, plan: ParallelPlan) -> None:
        """Raises RequestError for an unknown cache, and for a plan that allows none."""
        if self.kind not in CACHES:
            raise RequestError(f"There is no cache {self.kind!r}.", f"Choose one of {', '.join(CACHES)}.")
        if not (math.isfinite(self.threshold) and self.threshold >= 0 and self.interval >= 1):
            raise RequestError(
                f"A cache with a threshold of {self.threshold} and an interval of {self.interval} does not work.",
                "Use a threshold of 0 or more, and an interval of 1 or more.",
            )
        if self.kind != NONE and plan.pipefusion * plan.patch_count > 1:
            raise RequestError(
                f"The cache {self.kind!r} decides for all blocks and all tokens at once, and pipefusion="
                f"{plan.pipefusion} with patches={plan.patch_count} splits them up.",
                "Use cache=none, or pipefusion=1 and patches=1, and ulysses, ring, cfg or dp in their place.",
            )
