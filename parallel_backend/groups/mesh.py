"""Joins the ranks' group, and builds a plan's device mesh over it: one axis for each degree, with its process group."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..axes import JOINT_AXES, PICTURE_AXES, REPLICA_AXES, STAGE_AXES
from ..compat import unbound
from ..device import (
    CPU,
    THROUGH_THE_HOST,
    check_kind,
    count,
    default_kind,
    group_backends,
    is_accelerator,
    name_of,
    select,
)
from ..errors import GroupError, PlanError
from ..plan import ParallelPlan
from .mesh_layout import axis_shares, rows_along, shard_range, shard_sizes
from .timeline import SILENT, Timeline

HANDSHAKE_SECONDS, HANDSHAKE_PAUSE = 60.0, 0.0005


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh as this rank sees it: its group, its degree, and this rank's place on it.

    timeline: records the waits on this axis. shares: the relative speed of each place; what the axis splits is shared
    in this proportion. Empty: all places are alike. least: what each place gets at least, if there is enough.
    """

    group: dist.ProcessGroup | None  # None for a degree of one
    degree: int
    index: int
    timeline: Timeline = field(default=SILENT, compare=False, repr=False)
    shares: tuple[float, ...] = ()
    least: int = 0

    @property
    def evenly(self) -> Axis:
        """The same axis with equal shares."""
        return replace(self, shares=())

    def sizes(self, size: int) -> list[int]:
        """Returns the share of each index in a dim of this size."""
        return shard_sizes(size, self.degree, self.shares, self.least)

    def own(self, size: int) -> slice:
        """Returns this rank's range in a dim of this size."""
        own = shard_range(size, self.index, self.degree, self.shares, self.least)
        return slice(own.start, own.stop)

    def own_size(self, size: int) -> int:
        """Returns the length of this rank's share of a dim of this size."""
        return self.sizes(size)[self.index]

    def global_rank(self, index: int) -> int:
        """Returns the global rank of the rank at `index` on this axis."""
        return dist.get_rank() if self.group is None else dist.get_global_rank(self.group, index)


@dataclass(frozen=True)
class Mesh:
    """A plan laid over the ranks of the default process group, and the device that this rank computes on.

    axes: the plan's axes, and the joint ones, whose index counts row by row.
    link_in, link_out: the links from the previous stage and to the next one, from the last stage back to the first;
    None without stages.
    """

    plan: ParallelPlan
    device: torch.device
    axes: dict[str, Axis]
    link_in: dist.ProcessGroup | None = None
    link_out: dist.ProcessGroup | None = None
    timeline: Timeline = SILENT

    def __getitem__(self, axis: str) -> Axis:
        return self.axes[axis]

    @property
    def weight_places(self) -> tuple[int, ...]:
        """This rank's places on the axes along which ranks hold different weights."""
        return tuple(self[axis].index for axis in STAGE_AXES)

    def groups(self) -> list[dist.ProcessGroup]:
        """Returns the groups of this rank's axes and links, in the same order on all ranks."""
        return in_order([*(axis.group for axis in self.axes.values()), self.link_in, self.link_out])

    def close(self) -> None:
        """Destroys the groups. All ranks call it together, with nothing in flight. The mesh is unusable afterwards."""
        for group in self.groups():
            dist.destroy_process_group(group)


def start_distributed(device_type: str | None = None) -> torch.device:
    """Joins torchrun's group, and returns this rank's device: a GPU of its own, or the CPU with gloo.

    device_type: cpu, cuda or xpu; by default this machine's accelerator. Raises PlanError for more ranks than GPUs,
    RequestError for a device that ranks cannot use, and GroupError outside of torchrun.
    """
    if "LOCAL_RANK" not in os.environ:
        raise GroupError("There is no group to join.", "Start the script with torchrun --nproc-per-node=RANKS SCRIPT.")
    kind = check_kind(device_type) if device_type else default_kind()
    if kind == CPU:
        dist.init_process_group(group_backends(kind))
        return torch.device(kind)
    ranks, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), count(kind)
    if ranks > gpus:
        raise PlanError(
            f"{ranks} ranks were started on a machine with {gpus} GPUs.", f"Start --nproc-per-node={gpus} or fewer."
        )
    device = select(kind, int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(group_backends(kind), device_id=device)
    return device


def build_mesh(
    plan: ParallelPlan, device: torch.device, link_groups: bool | None = None, timeline: Timeline = SILENT
) -> Mesh:
    """Builds the plan's groups from the first ranks of the default group. Raises GroupError.

    All ranks of the default group call it together, even those outside of the plan. Only axes of a degree above one get
    a group, because each group costs threads and sockets on every rank. No axis uses the default group, so that it
    survives when the mesh's groups break.
    link_groups: gives each link between stages a group of its own; by default, on GPUs. NCCL needs this, because
    messages of one group wait for each other: a receive posted early would block the send that it depends on.
    timeline: records the steps that run on the mesh.
    """
    axes = {name: build_axis(plan, device, name) for name in plan.degrees()}
    for name, parts in JOINT_AXES.items():
        split = [part for part in parts if getattr(plan, part) > 1]
        axes[name] = build_axis(plan, device, *split) if len(split) > 1 else axes[(split or parts)[0]]
    stages = axes["pipefusion"]
    link_in = link_out = stages.group
    if plan.pipefusion > 1 and (is_accelerator(device) if link_groups is None else link_groups):
        link_in, link_out = build_links(plan, device)
    places = {name: axis.index for name, axis in axes.items()}
    shares = {name: axis_shares(plan, JOINT_AXES.get(name, (name,)), places) for name in axes}
    axes = {name: replace(axis, timeline=timeline, shares=shares[name]) for name, axis in axes.items()}
    axes["sequence"] = replace(axes["sequence"], least=1)  # diffusers' blocks cannot run on zero tokens
    mesh = Mesh(plan, device, axes, link_in, link_out, timeline)
    for group in mesh.groups():
        shake_hands(group, device)
    return mesh


def build_axis(plan: ParallelPlan, device: torch.device, *names: str) -> Axis:
    """Builds these axes of a plan as one, with their group. All ranks build the groups of all rows, in one order."""
    own = Axis(None, 1, 0)
    for row in rows_along(plan, *names):
        group = new_group(device, row) if len(row) > 1 else None
        if group and dist.get_rank() in row:
            own = Axis(group, len(row), row.index(dist.get_rank()))
    return own


def build_links(plan: ParallelPlan, device: torch.device) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """Builds this rank's links from the previous stage and to the next one, from the last stage to the first.

    Both are None on a rank outside of the plan. All ranks build all links, in one order.
    """
    link_in = link_out = None
    for row in rows_along(plan, "pipefusion"):
        for place, sender in enumerate(row):
            receiver = row[(place + 1) % len(row)]
            group = new_group(device, [sender, receiver])
            link_out = group if dist.get_rank() == sender else link_out
            link_in = group if dist.get_rank() == receiver else link_in
    return link_in, link_out


def new_group(
    device: torch.device, ranks: list[int] | None = None, timeout: timedelta | None = None
) -> dist.ProcessGroup:
    """Creates a group of these ranks, or of all, for tensors on a device.

    All ranks call it together, even those outside of the group. timeout: of its collectives; torch's own by default.
    Only this function of torch can create a group of the same ranks again: others name groups by their ranks, and then
    wait forever because of what an earlier group left in the store.
    """
    backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    with nullcontext() if is_accelerator(device) else unbound():
        group: Any = dist.new_group(ranks, timeout, backends[device.type])  # `int` in torch's type is for outsiders
    return group


def world_axis(device: torch.device, ranks: int | None = None) -> Axis:
    """Builds one axis over all ranks, or over the first `ranks`, with its own group for tensors on a device.

    It does not depend on the plan. All ranks call it together. Raises GroupError.
    """
    ranks = ranks or dist.get_world_size()
    if ranks == 1:
        return Axis(None, 1, 0)
    group = new_group(device, list(range(ranks)))
    if dist.get_rank() >= ranks:
        return Axis(None, 1, 0)
    shake_hands(group, device)
    return Axis(group, ranks, dist.get_rank())


def replica_axis(plan: ParallelPlan, device: torch.device, timeline: Timeline = SILENT) -> Axis:
    """Builds an axis over the ranks that compute with the same weights as this one.

    It has its own group, so that its traffic delays nothing else. All ranks call it together. Raises GroupError.
    """
    return replace(connected_axis(plan, device, *REPLICA_AXES), timeline=timeline)


def picture_axis(plan: ParallelPlan, device: torch.device) -> Axis:
    """Builds an axis over the ranks that work on the same pictures as this one, with its own group. All ranks call it
    together. Raises GroupError."""
    return connected_axis(plan, device, *PICTURE_AXES)


def connected_axis(plan: ParallelPlan, device: torch.device, *names: str) -> Axis:
    """Like `build_axis`, and connects the ranks."""
    axis = build_axis(plan, device, *names)
    if axis.group:
        shake_hands(axis.group, device)
    return axis


def in_order(groups: Iterable[dist.ProcessGroup | None]) -> list[dist.ProcessGroup]:
    """Returns each group once, in the order of their creation. All ranks must destroy them in this order."""
    unique = {id(group): group for group in groups if group is not None}
    return sorted(unique.values(), key=lambda group: int(group.group_name))


def shake_hands(group: dist.ProcessGroup, device: torch.device) -> None:
    """Runs one tiny collective, so that NCCL connects and takes its memory before weights fill the device.

    Raises GroupError.
    """
    ranks = dist.get_process_group_ranks(group)
    work = dist.all_reduce(torch.zeros(1, device=device), group=group, async_op=True)
    deadline = time.monotonic() + HANDSHAKE_SECONDS
    try:
        while work is not None and not work.is_completed():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing came within {HANDSHAKE_SECONDS:.0f} s")
            time.sleep(HANDSHAKE_PAUSE)
    except (RuntimeError, TimeoutError) as error:
        cause = (
            f"The devices of the ranks {', '.join(map(str, ranks))} cannot exchange data (this one is rank "
            f"{dist.get_rank()}'s, {name_of(device)}): {error}"
        )
        if variable := THROUGH_THE_HOST.get(device.type):
            advice = f"Start ComfyUI with {variable} in its environment: these GPUs may not reach one another directly."
            raise GroupError(cause, advice) from error
        raise GroupError(cause, "Check whether a firewall blocks the connections between the ranks.") from error
