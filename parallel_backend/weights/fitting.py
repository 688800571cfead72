"""Decides where an automatic plan keeps weights: whole on each rank if they fit, else with as few fetched blocks as
needed.

Each byte that is freed must be fetched in each forward, from the other ranks or from the host's memory. So the faster
link wins. This file is pure: it serves to predict, and the ranks use it to decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..plan import AUTO, HOST, MEMORY, SHARED, WHOLE, ParallelPlan
from .sizes import FETCHED, WeightSizes, fetched_blocks

GB = 1e9
OF_HOST = 0.9  # share of the host's free memory that weights may fill


@dataclass(frozen=True)
class Links:
    """Bytes per second that arrive at a rank: from the ranks that share its weights, and from the host's memory. Before
    they are measured, those of PCIe 4.0 x16 are assumed, where GPUs exchange through the host's memory."""

    peers: float = 12 * GB
    host: float = 25 * GB

    def of(self, weights: str) -> float:
        return self.peers if weights == SHARED else self.host


ASSUMED = Links()


@dataclass(frozen=True)
class WeightRoom:
    """Memory for weights, in bytes. device: on the smallest device of the ranks, beside a forward. host: in the RAM of
    the machine that has the least, for one copy of its ranks' weights. communicator: what weights=shared takes of the
    device for a communicator of its own."""

    device: int
    host: int
    communicator: int = 0

    def holds(self, plan: ParallelPlan, sizes: WeightSizes) -> bool:
        """Whether what the plan's ranks keep fits the device."""
        return self.count_lacking(plan, sizes) <= 0

    def count_lacking(self, plan: ParallelPlan, sizes: WeightSizes) -> int:
        """Returns the bytes that the device lacks for what the plan's ranks keep; negative if some are left."""
        communicator = self.communicator if plan.weights == SHARED else 0
        return max(sizes.count_resident_bytes(plan)) + communicator - self.device


def fit_stages(plan: ParallelPlan, sizes: WeightSizes, room: WeightRoom) -> ParallelPlan:
    """Returns the plan with its stages balanced by memory, if what they keep does not fit when balanced by time. A
    requested balance stays as it is, and stages that share by speed are always balanced by time.

    The largest stage by time may keep more than the others: a block of two streams takes as long as one of one stream,
    and has twice the bytes.
    """
    if plan.pipefusion == 1 or plan.balance != AUTO or plan.speeds or not sizes.blocks:
        return plan
    return plan if room.holds(plan, sizes) else replace(plan, balance=MEMORY)


def fit_weights(plan: ParallelPlan, sizes: WeightSizes, room: WeightRoom, links: Links = ASSUMED) -> ParallelPlan:
    """Returns the plan with its weights decided.

    A requested choice stays as it is. weights=auto becomes whole if that fits. Else it becomes the fewest fetched
    blocks that fit, over the faster link. If nothing fits, as many blocks are fetched as possible, because the estimate
    may be too high.
    """
    if plan.weights != AUTO:
        return plan
    whole = replace(plan, weights=WHOLE, weight_blocks=0)
    if room.holds(whole, sizes) or not sizes.blocks:
        return whole
    ways = [way for way in FETCHED if way == HOST or plan.replicas > 1]
    fewest = (fit_fewest_blocks(replace(plan, weights=way), sizes, room) for way in ways)
    fitting = [found for found in fewest if found]
    if fitting:
        return min(fitting, key=lambda found: estimate_fetch_seconds(found, sizes, links))
    every = max(map(len, sizes.by_stage(plan)))
    most = [whole, *(replace(plan, weights=way, weight_blocks=every) for way in ways)]
    return min(
        (each for each in most if count_host_bytes(each, sizes) <= room.host),
        key=lambda each: max(sizes.count_resident_bytes(each)),
    )


def fit_fewest_blocks(plan: ParallelPlan, sizes: WeightSizes, room: WeightRoom) -> ParallelPlan | None:
    """Returns the plan with the fewest fetched blocks that fits; None if none fits."""
    for count in range(1, max(map(len, sizes.by_stage(plan))) + 1):
        found = replace(plan, weight_blocks=count)
        if room.holds(found, sizes):
            return found if count_host_bytes(found, sizes) <= room.host else None
    return None


def count_host_bytes(plan: ParallelPlan, sizes: WeightSizes) -> int:
    """Returns the bytes of one copy of the weights in the host's memory, over all stages."""
    if plan.weights != HOST:
        return 0
    return sum(stage[number] for stage in sizes.by_stage(plan) for number in fetched_blocks(stage, plan))


def estimate_fetch_seconds(plan: ParallelPlan, sizes: WeightSizes, links: Links) -> float:
    """Estimates how long a forward's fetched weights take on the link. They may arrive while the ranks compute."""
    return sizes.count_fetched_bytes(plan) / links.of(plan.weights)
