"""Models that stay on the devices while another one is in use, such as Wan 2.2's two experts: as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from parallel_backend.groups.communicators import count_weights_communicator
from parallel_backend.plan import SHARED
from parallel_backend.weights.placement import Ranks

from .memory.out_of_memory import size
from .model.host_model import HostModel

Release = Callable[[Sequence[HostModel]], list[str]]  # of models; returns their names


def count_savings(model: HostModel) -> int:
    """Returns the bytes of a device that weights=shared saves, in comparison with where the weights are or, of a new
    model, will be."""
    kept, count = model.placement.decided or model.mesh.plan, model.sizes.count_kept_bytes
    return max(count(kept)) - max(count(replace(kept, weights=SHARED, weight_blocks=0)))


def make_way(ranks: Ranks, own: HostModel, more: int, aside: list[HostModel], release: Release) -> str:
    """Releases models that were set aside, the earliest used first, until this one fits beside the others. Returns
    which models stay, which do not, and why, in words. All ranks of the plan call this together, and do the same.

    more: bytes that the device will need, too. release: also removes the models from `aside`.
    """
    gone, lacked, plan = [], 0, own.mesh.plan
    savings = sum(map(count_savings, (own, *aside))) - count_weights_communicator(plan)
    while aside and (lacking := own.placement.count_lacking(ranks, own, plan, more)):
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
