"""Where the weights of blocks wait under an automatic plan: whole on each rank where that fits, else as few as must go.

A byte that is freed is a byte that is fetched in each forward, from the other ranks or from the host's memory; so the
faster link wins. Pure: ComfyUI's process says by it what is to be expected, and the ranks decide by it, alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..plan import AUTO, HOST, SHARED, WHOLE, ParallelPlan
from .sizes import FETCHED, WeightSizes, fetched_places

GB = 1e9
OF_HOST = 0.9  # of the host's free memory, that weights may fill


@dataclass(frozen=True)
class Links:
    """Bytes per second that come to a rank: from the ranks with which it shares weights, and from the host's memory.

    is_measured: else they are assumed, of PCIe 4.0 x16 where GPUs exchange through the host's memory.
    """

    peers: float = 12 * GB
    host: float = 25 * GB
    is_measured: bool = False

    def of(self, weights: str) -> float:
        return self.peers if weights == SHARED else self.host


ASSUMED = Links()


@dataclass(frozen=True)
class WeightRoom:
    """Bytes for weights. device: on the smallest of the ranks' devices, beside what a forward takes. host: in the
    host's memory, of the machine that has the least, for one copy of what its ranks have."""

    device: int
    host: int


def fit_weights(plan: ParallelPlan, sizes: WeightSizes, room: WeightRoom, links: Links = ASSUMED) -> ParallelPlan:
    """The plan with its weights decided: those that were asked for; or for weights=auto whole ones, if they fit, else
    the fewest blocks that must go over the link that brings them sooner.

    Where nothing fits, as many go as can: what is estimated here may be too much.
    """
    if plan.weights != AUTO:
        return plan
    whole = replace(plan, weights=WHOLE, weight_blocks=0)
    if max(sizes.count_kept_bytes(whole)) <= room.device or not sizes.blocks:
        return whole
    ways = [way for way in FETCHED if way == HOST or plan.replicas > 1]
    fewest = (fit_fewest_blocks(replace(plan, weights=way), sizes, room) for way in ways)
    fitting = [found for found in fewest if found]
    if fitting:
        return min(fitting, key=lambda found: estimate_fetch_seconds(found, sizes, links))
    every = max(map(len, sizes.by_stage(plan)))  # said as a number: stages stay as they are, see `stages_by_time`
    most = [whole, *(replace(plan, weights=way, weight_blocks=every) for way in ways)]
    return min(
        (each for each in most if count_host_bytes(each, sizes) <= room.host),
        key=lambda each: max(sizes.count_kept_bytes(each)),
    )


def fit_fewest_blocks(plan: ParallelPlan, sizes: WeightSizes, room: WeightRoom) -> ParallelPlan | None:
    """The plan with the fewest blocks fetched with which it fits, if it does with any."""
    for count in range(1, max(map(len, sizes.by_stage(plan))) + 1):
        found = replace(plan, weight_blocks=count)
        if max(sizes.count_kept_bytes(found)) <= room.device:
            return found if count_host_bytes(found, sizes) <= room.host else None
    return None


def count_host_bytes(plan: ParallelPlan, sizes: WeightSizes) -> int:
    """Bytes of one copy of what waits in the host's memory, of all stages together."""
    if plan.weights != HOST:
        return 0
    return sum(stage[place] for stage in sizes.by_stage(plan) for place in fetched_places(stage, plan))


def estimate_fetch_seconds(plan: ParallelPlan, sizes: WeightSizes, links: Links) -> float:
    """How long the fetched weights of a forward are on their way; they may come while the ranks compute."""
    return sizes.count_fetched_bytes(plan) / links.of(plan.weights)
