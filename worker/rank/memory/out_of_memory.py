"""Explains an out-of-memory error (OOM) in words: what the request needed, what there was, and what would fit."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from parallel_backend.axes import STAGE_AXES, TOKEN_AXES
from parallel_backend.costs.memory import token_factor
from parallel_backend.device import count, is_accelerator
from parallel_backend.errors import PlanError
from parallel_backend.plan import ParallelPlan
from parallel_backend.weights.sizes import WeightSizes

from ...errors import Explanation
from ...wire.operations import LOAD, Operation
from .device_memory import DeviceMemory

MORE_RANKS = (1, 2, 4, 8)  # multiples of the present rank count
MARGIN = 0.9  # share of the memory that an estimate may fill
NOTABLE = 0.05


@dataclass(frozen=True)
class OutOfMemoryReport:
    """A request for which a rank had too little memory. Sizes are in bytes.

    asked: by the allocation that failed, if known.
    full, empty: the rank's free memory when it failed, and without what the request had taken by then.
    weights: the model's on this rank, without those that a load was still to bring.
    tokens: of the request's latents; 0 if it has none.
    plan: the model's.
    check: raises PlanError for a plan that the model does not allow.
    sizes: of all the model's weights. Plan, check and sizes are None for a VAE.
    devices: how many ranks can have a device of their own, on all machines; None without such a bound.
    others: the weights of models that were set aside on this rank.
    """

    rank: int
    operation: Operation
    asked: int | None
    full: DeviceMemory
    empty: DeviceMemory
    weights: int = 0
    tokens: int = 0
    plan: ParallelPlan | None = None
    check: Callable[[ParallelPlan], None] | None = None
    sizes: WeightSizes | None = None
    devices: int | None = None
    others: int = 0

    @property
    def needed(self) -> int:
        """The least that the request needed: what it had taken when it failed, and what it was refused."""
        return max(0, self.full.used - self.empty.used) + max(self.asked or 0, self.full.free)

    @property
    def explanation(self) -> Explanation:
        wanted = f"asked for {size(self.asked)} more" if self.asked else "asked for more"
        lines = [
            f"Rank {self.rank} ran out of memory while it was {self.operation.doing}. It {wanted}. It used "
            f"{size(self.full.used)} of {size(self.full.total)}, and {size(self.full.free)} was free."
        ]
        if self.weights:
            lines.append(f"The model's weights take about {size(self.weights)} on that rank.")
        if self.tokens:
            lines.append(f"The request has {self.tokens:,} tokens of latents.")
        return Explanation(" ".join(lines), "\n".join(advise(self)))


def advise(short: OutOfMemoryReport) -> list[str]:
    """Says in sentences what would fit. The estimates assume that a rank's need is proportional to its share."""
    if short.others:
        said = f"The ranks also held {size(short.others)} of other models' weights, which they now release. "
        return [said + "Queue the prompt again."]
    found = []
    plan = find_fitting_plan(short)
    if plan and short.plan:
        name, ranks = f"{plan} with patches=1" if plan.pipefusion > 1 else str(plan), plan.world_size
        if ranks == short.plan.world_size:
            found.append(f"By an estimate, the plan {name} should fit.")
        else:
            found.append(f"By an estimate, the plan {name} should fit on {ranks} ranks, each with a device of its own.")
    fewer = int(short.tokens * MARGIN * short.empty.free / short.needed) if short.needed else 0
    if 0 < fewer < short.tokens:
        found.append(f"With this plan, at most about {fewer:,} tokens fit. Lower the size or the batch.")
    others = short.empty.total - short.empty.used - short.empty.free
    if others > NOTABLE * short.empty.total:
        found.append(
            f"Other processes use {size(others)} of this memory. If ComfyUI's own models are among them, free these "
            "(Free, or POST /free)."
        )
    return found or ["Use a smaller model, weights in a smaller dtype, or a machine with more memory."]


def find_fitting_plan(short: OutOfMemoryReport) -> ParallelPlan | None:
    """Returns a plan that fits, on as few ranks as possible, and of these the plan that leaves the most memory. None if
    none fits."""
    own, sizes = short.plan, short.sizes
    if not own or not sizes:
        return None
    # The memory for weights and the request: all but what others use.
    loads = short.operation is LOAD
    room = MARGIN * (short.empty.free + (0 if loads else short.weights))
    working = 0 if loads else short.needed

    def estimate(plan: ParallelPlan) -> float:
        return max(sizes.count_kept_bytes(plan)) + working * token_factor(plan) / token_factor(own)

    for times in MORE_RANKS:
        if times > 1 and short.devices is not None and own.world_size * times > short.devices:
            return None
        plans = [plan for plan in list_alternatives(short, own, times) if estimate(plan) < room]
        if plans:
            return min(plans, key=estimate)
    return None


def list_alternatives(short: OutOfMemoryReport, plan: ParallelPlan, times: int) -> Iterator[ParallelPlan]:
    """Yields other plans that the model allows for this many times the ranks, with the batch split as it is."""
    axes = (*STAGE_AXES, *TOKEN_AXES)
    ranks = plan.ways(axes) * times
    divisors = [degree for degree in range(1, ranks + 1) if ranks % degree == 0]
    for degrees in itertools.product(divisors, repeat=len(axes) - 1):
        rest, remainder = divmod(ranks, math.prod(degrees))
        if remainder or not rest:
            continue
        split = dict(zip(axes, (*degrees, rest), strict=True))
        try:
            # The stages run whole images, which every model can do. The speed of further ranks is unknown.
            other = replace(plan, **split, patches=1, speeds=plan.speeds if times == 1 else ())
            if short.check:
                short.check(other)
        except PlanError:
            continue
        if other.degrees() != plan.degrees():
            yield other


def size(count: int) -> str:
    """Formats bytes for people."""
    for unit, power in (("GB", 1e9), ("MB", 1e6)):
        if count >= power:
            return f"{count / power:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def count_devices(device: torch.device) -> int | None:
    """Returns how many ranks can have a device of their own on the group's machines; None on the CPU. It assumes that
    the machines are alike."""
    if not is_accelerator(device):
        return None
    return count(device.type) * int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
