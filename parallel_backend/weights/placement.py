"""Decides where a model's weights are kept, and moves them there.

All ranks decide alike: before they read the weights, and again when a request needs more memory than any before it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ..device import available_device_bytes, is_accelerator
from ..groups.collectives import gather_numbers
from ..groups.communicators import count_weights_communicator
from ..groups.mesh import Axis, Mesh, replica_axis
from ..hooks import Hooks
from ..plan import AUTO, HOST, SHARED, WHOLE, ParallelPlan
from ..rates import host_rate, peer_rate
from .fitting import OF_HOST, Links, WeightRoom, count_host_bytes, estimate_fetch_seconds, fit_weights
from .free_ram import available_ram_bytes
from .host_memory import agree_on_memory
from .loading import Check, go_on
from .prefetcher import BlockPrefetcher
from .sizes import FETCHED, WeightSizes, fetched_blocks
from .stores import HostStore, ShardedStore, Store

TOO_LITTLE_RAM = f"Use weights={SHARED} or a lower weight_blocks in the plan, or a machine with more RAM."


class PlacedModel(Protocol):
    """A parallel model whose weights can be placed.

    working_bytes: that a forward needs on the device beside the weights. bringing: while weights are being moved, the
    bytes that this rank will keep. placed: the plan with its weights decided; None before. placed_for: the weights
    fields of the plan that asked for it."""

    working_bytes: int
    placed: ParallelPlan | None
    placed_for: tuple[str, int]
    bringing: int

    @property
    def mesh(self) -> Mesh: ...

    @property
    def sizes(self) -> WeightSizes: ...

    @property
    def fetched(self) -> BlockPrefetcher: ...

    @property
    def resident_bytes(self) -> int: ...

    def limit_weights(self, free: int) -> int:
        """Returns how much of `free` device memory the weights may take. The operator may want some left."""
        ...

    def bring(self, numbers: Collection[int], store: Store | None, check: Check) -> None: ...


class AllRanks:
    """All ranks, as their caller runs them. This is for a script: a failure on one rank fails it.

    links: what was measured, by the plan's rank count, and how many ranks share weights."""

    links: dict[tuple[int, int], Links]

    def __init__(self, device: torch.device) -> None:
        self.device, self.links = device, {}

    @property
    def control_group(self) -> dist.ProcessGroup | None:
        """The group for tensors on the CPU; None for the default group."""
        return None

    def replicas(self, plan: ParallelPlan) -> Axis:
        """Returns the ranks that compute with the same weights as this one, with a process group of their own."""
        return replica_axis(plan, self.device)

    def all_or_none(self, action: Callable[[], Any], has_collectives: bool = False) -> Any:
        """Runs an action that may fail on one rank alone. Returns once all ranks have run it. Raises on all ranks if
        any fails. has_collectives: whether ranks wait for each other within it."""
        result = action()
        gather_numbers((0,), self.control_group)  # a barrier that needs no GPU
        return result

    def check(self) -> None:
        """Raises an error to give up. Nobody cancels a script."""


def place_model(ranks: AllRanks, model: PlacedModel, working: int = 0) -> None:
    """Moves the weights to where the model's plan wants them, and reads those that are not read yet.

    All ranks call this together, and it ends alike on all. If it fails, the model can't be used any more.

    working: bytes to leave free beside the weights.
    """
    model.working_bytes = max(model.working_bytes, working)
    before, model.placed = find_last_decision(model), None
    decided = decide_weights(ranks, model, before)
    if before is None or (decided.weights, decided.weight_blocks) != (before.weights, before.weight_blocks):
        bring_weights(ranks, model, decided)
    plan = model.mesh.plan
    model.placed, model.placed_for = decided, (plan.weights, plan.weight_blocks)


def count_lacking(ranks: AllRanks, model: PlacedModel, more: int = 0) -> int:
    """Returns the bytes that a device lacks, or RAM, to keep the model beside all that they hold now; 0 if none.

    The model is to be kept as it is. A new one is to be kept as its plan asks; with weights=auto, whole. All ranks
    call this together, and get the same. more: bytes that the device will need, too.
    """
    last = find_last_decision(model)
    kept = last or model.mesh.plan
    room = measure_room(ranks, model, only_free=True)
    new_in_ram = 0 if last else count_host_bytes(kept, model.sizes)
    return max(0, room.count_lacking(kept, model.sizes) + more, new_in_ram - room.host)


def find_last_decision(model: PlacedModel) -> ParallelPlan | None:
    """Returns the model's plan with its weights as they were decided last, if it asks for the same as the plan then.
    None before the first."""
    plan, placed = model.mesh.plan, model.placed
    if placed is None or (plan.weights, plan.weight_blocks) != model.placed_for:
        return None
    return replace(plan, weights=placed.weights, weight_blocks=placed.weight_blocks)


def decide_weights(ranks: AllRanks, model: PlacedModel, before: ParallelPlan | None) -> ParallelPlan:
    """Returns the model's plan with its weights decided. They stay as before if that still fits."""
    plan = model.mesh.plan
    if plan.weights != AUTO:
        return plan
    if not is_accelerator(model.mesh.device):
        return replace(plan, weights=WHOLE)
    room = measure_room(ranks, model)
    if before and room.holds(before, model.sizes):
        return before
    decided = fit_weights(plan, model.sizes, room)
    if decided.weights == WHOLE:
        return decided
    return fit_weights(plan, model.sizes, room, measure_links(ranks, plan, model.mesh.device))


def bring_weights(ranks: AllRanks, model: PlacedModel, plan: ParallelPlan) -> None:
    """Moves the weights to where a plan keeps them, whose weights are decided."""
    stage = model.mesh["pipefusion"].index
    own = model.sizes.by_stage(plan)[stage] if model.sizes.blocks else []
    numbers = fetched_blocks(own, plan)
    store = choose_store(ranks, model, plan) if numbers else None
    reads_others = bool(model.fetched.store and model.fetched.store.axis)
    # Ranks that read each other's weights read on to the end: they learn of a cancel at different moments.
    bring = partial(model.bring, numbers, store, go_on if reads_others else ranks.check)
    with Hooks() as hooks:
        hooks.replace(model, "bringing", model.sizes.count_resident_bytes(plan)[stage])
        ranks.all_or_none(bring, has_collectives=reads_others)
    if store:
        logging.info("%d of %d blocks are fetched for each forward (%s weights)", len(numbers), len(own), store.kind)
        if store.pinner and store.pinner.seconds:
            logging.info("%s", store.pinner)


def choose_store(ranks: AllRanks, model: PlacedModel, plan: ParallelPlan) -> Store:
    """Returns the present store if it is of the right kind, else a new one."""
    store, device = model.fetched.store, model.mesh.device
    if store and store.kind == plan.weights:
        return store
    if plan.weights == SHARED:
        return ShardedStore(ranks.replicas(plan), device)
    sizes = model.fetched.sizes
    memory = agree_on_memory((model.mesh["pipefusion"].index, sizes), HostStore.total(sizes), ranks.control_group)
    needed = count_host_bytes(plan, model.sizes) // plan.pipefusion
    ranks.all_or_none(lambda: memory.check_room(needed, f"weights={HOST}", TOO_LITTLE_RAM))
    return HostStore(sizes, device, memory)


def measure_links(ranks: AllRanks, plan: ParallelPlan, device: torch.device) -> Links:
    """Returns the rates of the slowest rank. All ranks measure them together, once."""
    key = plan.world_size, plan.replicas  # under a plan of more ranks, some have not measured yet
    if key not in ranks.links:
        peers = peer_rate(ranks.replicas(plan), device) if plan.replicas > 1 else 0
        rates = gather_numbers((peers, host_rate(device)), ranks.control_group)
        ranks.links[key] = Links(*(float(min(each)) for each in zip(*rates, strict=True)))
    return ranks.links[key]


def describe_weights(ranks: AllRanks, model: PlacedModel) -> dict[str, Any]:
    """Describes the weights for the status. The bytes kept and fetched are those of the stage with the most.

    working: an estimate of a forward's memory beside the weights, 0 before the first forward.
    seconds: how long a forward's weights take on the link.
    unpinned: rank 0's bytes of RAM for them that the system does not let it pin.
    """
    plan, sizes = model.placed, model.sizes
    if plan is None or plan.weights not in FETCHED:
        return {"kind": WHOLE}
    links = measure_links(ranks, plan, model.mesh.device)
    stages = sizes.by_stage(plan)
    pinner = model.fetched.store and model.fetched.store.pinner
    return {
        "kind": plan.weights,
        "blocks": max(len(fetched_blocks(stage, plan)) for stage in stages),
        "of": max(map(len, stages)),
        "kept": max(sizes.count_resident_bytes(plan)),
        "whole": max(sizes.count_resident_bytes(replace(plan, weights=WHOLE))),
        "working": model.working_bytes,
        "fetched": sizes.count_fetched_bytes(plan),
        "seconds": estimate_fetch_seconds(plan, sizes, links),
        "link": links.of(plan.weights),
        "unpinned": pinner.refused if pinner else 0,
    }


def measure_room(ranks: AllRanks, model: PlacedModel, only_free: bool = False) -> WeightRoom:
    """Returns the least memory that any rank has for weights, beside its largest request. The plan's communicators have
    theirs, but for that of fetched weights. only_free: no more than is free, whatever the model's limit is; it is
    negative if a request lacks memory."""
    device = model.mesh.device
    free = available_device_bytes(device) + model.resident_bytes - model.working_bytes
    room = model.limit_weights(free)
    room = min(room, free) if only_free else min(max(0, room), sys.maxsize)
    own = (room, int(OF_HOST * available_ram_bytes()))
    device, host = (min(column) for column in zip(*gather_numbers(own, ranks.control_group), strict=True))
    return WeightRoom(device, host, count_weights_communicator(model.mesh.plan))
