"""Models that stay on the devices while another one is in use, such as Wan 2.2's two experts: as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from parallel_backend.groups.communicators import count_weights_communicator
from parallel_backend.plan import SHARED, ParallelPlan
from parallel_backend.weights.placement import Ranks, WeightPlacement

from ..comfyui.source import HostSource
from .memory.out_of_memory import size
from .model.host_model import HostModel

Release = Callable[[Sequence["HeldModel"]], list[str]]  # of models; returns their names


@dataclass(frozen=True, eq=False)
class HeldModel:
    """A model, the source that it was loaded from, the plan that was requested for it, and where its weights are."""

    model: HostModel
    source: HostSource
    plan: ParallelPlan
    placement: WeightPlacement

    def count_savings(self) -> int:
        """Returns the bytes of a device that weights=shared saves, in comparison with where the weights are or, of a
        new model, will be."""
        kept, count = self.placement.decided or self.plan, self.model.sizes.count_kept_bytes
        return max(count(kept)) - max(count(replace(kept, weights=SHARED, weight_blocks=0)))


def make_way(ranks: Ranks, own: HeldModel, more: int, aside: list[HeldModel], release: Release) -> str:
    """Releases models that were set aside, the earliest used first, until this one fits beside the others. Returns
    which models stay, which do not, and why, in words. All ranks of the plan call this together, and do the same.

    more: bytes that the device will need, too. release: also removes the models from `aside`.
    """
    gone, lacked = [], 0
    savings = sum(each.count_savings() for each in (own, *aside)) - count_weights_communicator(own.plan)
    while aside and (lacking := own.placement.count_lacking(ranks, own.model, own.plan, more)):
        gone, lacked = [*gone, *release(aside[:1])], lacked or lacking
    name, found = own.source.name, []
    if aside:
        said = f"Beside {name}, the devices keep {', '.join(each.source.name for each in aside)}."
        found.append(said)
    if gone:
        said = f"The devices released {', '.join(gone)}, because beside it {name} lacked {size(lacked)}."
        found.append(said)
        if savings >= lacked:
            said = "With weights=shared, all of them fit."
            found.append(said)
    return " ".join(found)
