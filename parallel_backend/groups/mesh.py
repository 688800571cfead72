"""Joins the ranks' group, and builds a plan's device mesh over it: one axis for each degree, with its process group."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..axes import MESH_AXES, PICTURE_AXES
from ..compat import unbound
from ..device import (
    CPU,
    check_kind,
    count,
    default_kind,
    group_backends,
    group_options,
    is_accelerator,
    select,
)
from ..errors import GroupError, PlanError
from ..plan import SHARED, ParallelPlan
from .communicators import Communicator, count_side_by_side, list_axes, list_links, list_replicas, over_all
from .handshake import shake_hands
from .mesh_layout import axis_shares, rows_along, shard_range, shard_sizes
from .timeline import SILENT, Timeline

# How long a rank may wait for others: longer than any forward. torch's ten minutes are not: after them, NCCL's watchdog
# would abort the group, and later kernels would compute with garbage.
LONGEST_WAIT = timedelta(hours=6)


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh as this rank sees it: its group, its degree, and this rank's index on it.

    timeline: records the waits on this axis. shares: the relative speed of each index; what the axis splits is shared
    in this proportion. Empty: all are alike. ranks: the global numbers of its ranks, if they are not those of
    the group.
    """

    group: dist.ProcessGroup | None  # None for a degree of one
    degree: int
    index: int
    timeline: Timeline = field(default=SILENT, compare=False, repr=False)
    shares: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def evenly(self) -> Axis:
        """The same axis with equal shares."""
        return replace(self, shares=())

    def sizes(self, size: int) -> list[int]:
        """Returns the share of each index in a dim of this size."""
        return shard_sizes(size, self.degree, self.shares)

    def own(self, size: int) -> slice:
        """Returns this rank's range in a dim of this size."""
        own = shard_range(size, self.index, self.degree, self.shares)
        return slice(own.start, own.stop)

    def own_size(self, size: int) -> int:
        """Returns the length of this rank's share of a dim of this size."""
        return self.sizes(size)[self.index]

    def global_rank(self, index: int) -> int:
        """Returns the global rank of the rank at `index` on this axis."""
        if self.ranks:
            return self.ranks[index]
        return dist.get_rank() if self.group is None else dist.get_global_rank(self.group, index)


@dataclass(frozen=True)
class Mesh:
    """A plan laid over the ranks of the default process group, and the device that this rank computes on.

    axes: the plan's axes, and the joint ones, whose index counts row by row.
    link_in, link_out: the links from the previous stage and to the next one, from the last stage back to the first;
    None without stages. own_groups: those that end with the mesh.
    """

    plan: ParallelPlan
    device: torch.device
    axes: dict[str, Axis]
    link_in: dist.ProcessGroup | None = None
    link_out: dist.ProcessGroup | None = None
    timeline: Timeline = SILENT
    own_groups: tuple[dist.ProcessGroup, ...] = ()

    def __getitem__(self, axis: str) -> Axis:
        return self.axes[axis]

    def groups(self) -> list[dist.ProcessGroup]:
        """Returns the groups of this rank's axes and links, in the same order on all ranks."""
        return in_order([*(axis.group for axis in self.axes.values()), self.link_in, self.link_out])

    def close(self) -> None:
        """Destroys its own groups. All ranks call it together, with nothing in flight. The mesh is unusable
        afterwards."""
        for group in in_order(self.own_groups):
            dist.destroy_process_group(group)


def start_distributed(
    device_type: str | None = None, gpus: Sequence[int] = (), store: dist.Store | None = None
) -> torch.device:
    """Joins torchrun's group, and returns this rank's device: a GPU of its own, or the CPU with gloo.

    device_type: cpu, cuda or xpu; by default this machine's accelerator. gpus: the numbers of those that take part;
    empty for all. store: where the ranks find each other, by default torchrun's. Raises PlanError for more ranks than
    GPUs, RequestError for a device that ranks cannot use, and GroupError outside of torchrun.
    """
    if "LOCAL_RANK" not in os.environ:
        raise GroupError("There is no group to join.", "Start the script with torchrun --nproc-per-node=RANKS SCRIPT.")
    kind = check_kind(device_type) if device_type else default_kind()
    rendezvous: dict[str, Any] = {}
    if store:
        rendezvous = {"store": store, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    device = torch.device(kind)
    if kind != CPU:
        ranks, most = int(os.environ["LOCAL_WORLD_SIZE"]), len(gpus) or count(kind)
        if ranks > most:
            raise PlanError(f"{ranks} ranks were started for {most} GPUs.", f"Start --nproc-per-node={most} or fewer.")
        rendezvous["device_id"] = device = select(kind, int(os.environ["LOCAL_RANK"]), gpus)
    dist.init_process_group(group_backends(kind), **rendezvous)
    return device


def build_mesh(
    plan: ParallelPlan,
    device: torch.device,
    timeline: Timeline = SILENT,
    world: Axis | None = None,
) -> Mesh:
    """Builds the plan's groups from the first ranks of the default group. Raises GroupError.

    All ranks of the default group call it together, even those outside of the plan. `communicators.py` says which
    groups there are. Each costs memory, threads and sockets on every rank. No axis uses the default group, so that it
    survives when the mesh's groups break.
    Each link between stages has a group of its own, because NCCL's messages of one group wait for each other: a receive
    posted early would block the send that it depends on.
    timeline: records the steps that run on the mesh.
    world: an axis over all of the plan's ranks. Other axes over all of them use its group. The mesh does not close it.
    """
    rank, side_by_side = dist.get_rank(), most_side_by_side(plan)
    of_axes = build_groups(device, list_axes(plan), side_by_side, world)
    links = build_groups(device, list_links(plan), side_by_side)
    groups = {each.ranks: group for each, group in of_axes.items()}
    link_in, link_out = (
        next((group for each, group in links.items() if any(pair[end] == rank for pair in each.pairs)), None)
        for end in (1, 0)
    )
    axes: dict[str, Axis] = {}
    for name, parts in MESH_AXES.items():
        split = [part for part in parts if getattr(plan, part) > 1]
        row = next((tuple(row) for row in rows_along(plan, *split) if rank in row), ()) if split else ()
        axes[name] = Axis(groups.get(row), len(row), row.index(rank), ranks=row) if row else Axis(None, 1, 0)
    stages = axes["pipefusion"]
    ends = {0: link_in, stages.degree - 1: link_out}  # the last stage returns the result to the first by its link to it
    axes["pipefusion"] = replace(stages, group=ends.get(stages.index))
    coordinates = {name: axis.index for name, axis in axes.items()}
    shares = {name: axis_shares(plan, name, coordinates) for name in axes}
    axes = {name: replace(axis, timeline=timeline, shares=shares[name]) for name, axis in axes.items()}
    for each, group in (*of_axes.items(), *links.items()):
        shake_hands(group, device, each)
    own = tuple(group for group in (*groups.values(), *links.values()) if world is None or group is not world.group)
    return Mesh(plan, device, axes, link_in, link_out, timeline, own)


def build_groups(
    device: torch.device, every: Iterable[Communicator], side_by_side: int = 1, world: Axis | None = None
) -> dict[Communicator, dist.ProcessGroup]:
    """Builds groups, and returns those of this rank. All ranks build the same, in one order.

    side_by_side: kernels of groups that the device runs at a time. world: its group is taken where the ranks are the
    same.
    """
    found = {}
    for each in every:
        is_world = world is not None and len(each.ranks) == world.degree
        group = world.group if world and is_world else new_group(device, [*each.ranks], side_by_side=side_by_side)
        if group is not None and dist.get_rank() in each.ranks:
            found[each] = group
    return found


def new_group(
    device: torch.device, ranks: list[int] | None = None, timeout: timedelta = LONGEST_WAIT, side_by_side: int = 1
) -> dist.ProcessGroup:
    """Creates a group of these ranks, or of all, for tensors on a device.

    All ranks call it together, even those outside of the group. timeout: of its collectives.
    Only this function of torch can create a group of the same ranks again: others name groups by their ranks, and then
    wait forever because of what an earlier group left in the store.
    """
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    with nullcontext() if is_accelerator(device) else unbound():
        options = group_options(device, backends[device.type], side_by_side)
        # `int` in torch's type is for outsiders.
        group: Any = dist.new_group(ranks, timeout, backends[device.type], pg_options=options)
    return group


def world_axis(device: torch.device, ranks: int | None = None) -> Axis:
    """Builds one axis over all ranks, or over the first `ranks`, with its own group for tensors on a device.

    It does not depend on the plan. All ranks call it together. Raises GroupError.
    """
    ranks = ranks or dist.get_world_size()
    return connected_axis(device, [over_all(range(ranks))] if ranks > 1 else [])


def replica_axis(plan: ParallelPlan, device: torch.device, timeline: Timeline = SILENT) -> Axis:
    """Builds an axis over the ranks that compute with the same weights as this one.

    It has its own group, so that its traffic delays nothing else. All ranks call it together. Raises GroupError.
    """
    return replace(connected_axis(device, list_replicas(plan), most_side_by_side(plan)), timeline=timeline)


def picture_axis(plan: ParallelPlan, device: torch.device) -> Axis:
    """Builds an axis over the ranks that work on the same pictures as this one, with its own group. All ranks call it
    together. Raises GroupError."""
    rows = rows_along(plan, *PICTURE_AXES)
    return connected_axis(device, [over_all(row) for row in rows if len(row) > 1])


def most_side_by_side(plan: ParallelPlan) -> int:
    """Counts the kernels that the plan may run side by side with any weights."""
    return count_side_by_side(replace(plan, weights=SHARED) if plan.replicas > 1 else plan)


def connected_axis(device: torch.device, rows: Iterable[Communicator], side_by_side: int = 1) -> Axis:
    """Builds the groups of these rows of ranks, connects the ranks, and returns this rank's axis."""
    for row, group in build_groups(device, rows, side_by_side).items():
        shake_hands(group, device, row)
        return Axis(group, len(row.ranks), row.ranks.index(dist.get_rank()))
    return Axis(None, 1, 0)


def in_order(groups: Iterable[dist.ProcessGroup | None]) -> list[dist.ProcessGroup]:
    """Returns each group once, in the order of their creation. All ranks must destroy them in this order."""
    unique = {id(group): group for group in groups if group is not None}
    return sorted(unique.values(), key=lambda group: int(group.group_name))
