"""The ranks' group, and the device mesh that a plan lays over it: one axis a degree, and the process group of each."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ..axes import JOINT_AXES
from ..compat import flattened, forget_meshes
from ..errors import GroupError, PlanError
from ..plan import ParallelPlan
from .timeline import SILENT, Timeline


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh as this rank sees it: its group, its degree, and this rank's place on it.

    timeline: records what the rank waits for on it.
    """

    group: dist.ProcessGroup | None  # none for an axis of one
    degree: int
    index: int
    timeline: Timeline = field(default=SILENT, compare=False, repr=False)

    def global_rank(self, index: int) -> int:
        """The global rank of the rank at `index` on this axis."""
        return dist.get_rank() if self.group is None else dist.get_global_rank(self.group, index)


@dataclass(frozen=True)
class Mesh:
    """A plan laid over the ranks of the default process group, and the device that this rank computes on.

    axes: those of the plan, and the joint ones, whose index counts row by row. device_mesh: torch's own.
    link_in, link_out: from the stage before and to the next, round from the last to the first; None without stages.
    """

    plan: ParallelPlan
    device: torch.device
    axes: dict[str, Axis]
    device_mesh: DeviceMesh
    link_in: dist.ProcessGroup | None = None
    link_out: dist.ProcessGroup | None = None
    timeline: Timeline = SILENT

    def __getitem__(self, axis: str) -> Axis:
        return self.axes[axis]

    def groups(self) -> set[dist.ProcessGroup]:
        """Those of this rank's axes and links, all of them the mesh's own."""
        found = [*(axis.group for axis in self.axes.values()), self.link_in, self.link_out]
        return {group for group in found if group is not None}

    def close(self) -> None:
        """Gives up the groups. All ranks call it together, with nothing in flight; the mesh is not usable after it."""
        for group in self.groups():
            dist.destroy_process_group(group)
        if self.plan.tp > 1:
            forget_meshes()


def start_distributed(device_type: str | None = None) -> torch.device:
    """Joins the group that torchrun made and returns this rank's device: a GPU each with NCCL, or the CPU with gloo.

    device_type: cuda or cpu; the default is cuda where there is one. Raises PlanError for more ranks than GPUs, and
    GroupError outside of torchrun.
    """
    if "LOCAL_RANK" not in os.environ:
        raise GroupError("No group of ranks to join.", "Start the script by torchrun --nproc-per-node=RANKS SCRIPT.")
    if (device_type or ("cuda" if torch.cuda.is_available() else "cpu")) == "cpu":
        dist.init_process_group("gloo")
        return torch.device("cpu")
    ranks, gpus = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if ranks > gpus:
        raise PlanError(f"{ranks} ranks on a machine with {gpus} GPUs.", f"Start --nproc-per-node={gpus} or fewer.")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    return device


def build_mesh(
    plan: ParallelPlan, device: torch.device, link_groups: bool | None = None, timeline: Timeline = SILENT
) -> Mesh:
    """Builds the groups of the plan. All ranks of the default process group call it together.

    Only axes that split something get a group: each costs threads and sockets on every rank. None is the default
    group, which torch would take for an axis of all ranks: what breaks the mesh's groups leaves that one whole.
    link_groups: whether each link between stages has a group of its own. NCCL needs it, whose messages of one group
    wait for one another: a receive posted ahead would hold up the send that it depends on. By default, on GPUs.
    timeline: where the steps of what runs on the mesh are recorded.
    """
    degrees = {axis: degree for axis, degree in plan.degrees().items() if degree > 1} or {"dp": 1}
    names = tuple(degrees)
    if len(names) == 1:
        device_mesh = DeviceMesh.from_group(new_group(), device.type, mesh_dim_names=names)
    else:
        device_mesh = init_device_mesh(device.type, tuple(degrees.values()), mesh_dim_names=names)
    axes = {name: _axis(device_mesh[name]) if name in degrees else Axis(None, 1, 0) for name in plan.degrees()}
    for name, parts in JOINT_AXES.items():
        split = tuple(part for part in parts if part in degrees)
        axes[name] = _joint(device_mesh, name, split) if len(split) > 1 else axes[(split or parts)[0]]
    stages = axes["pipefusion"]
    link_in = link_out = stages.group
    if stages.degree > 1 and (device.type != "cpu" if link_groups is None else link_groups):
        link_in, link_out = _links(device_mesh)
    axes = {name: replace(axis, timeline=timeline) for name, axis in axes.items()}
    return Mesh(plan, device, axes, device_mesh, link_in, link_out, timeline)


def new_group(ranks: list[int] | None = None) -> dist.ProcessGroup:
    """A group of these ranks, or of all. All ranks call it together, and those outside of it may not use it."""
    group: Any = dist.new_group(ranks)
    return group


def world_axis() -> Axis:
    """All ranks as one axis, whatever the plan, with a group of its own. All ranks call it together."""
    world = dist.get_world_size()
    return Axis(new_group(), world, dist.get_rank()) if world > 1 else Axis(None, 1, 0)


def _axis(device_mesh: DeviceMesh) -> Axis:
    return Axis(device_mesh.get_group(), device_mesh.size(), device_mesh.get_local_rank())


def _joint(device_mesh: DeviceMesh, name: str, parts: tuple[str, ...]) -> Axis:
    """These axes as one, whose index counts row by row."""
    joint = device_mesh[parts]
    return world_axis() if joint.size() == dist.get_world_size() else _axis(flattened(joint, name))


def _links(device_mesh: DeviceMesh) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """This rank's link from the stage before and to the next. Every rank makes every pipeline's links."""
    ranks = device_mesh.mesh.movedim((device_mesh.mesh_dim_names or ()).index("pipefusion"), -1)
    own: dict[str, dist.ProcessGroup] = {}
    for pipeline in ranks.reshape(-1, ranks.shape[-1]).tolist():
        for stage, sender in enumerate(pipeline):
            receiver = pipeline[(stage + 1) % len(pipeline)]
            group = new_group([sender, receiver])
            if dist.get_rank() == sender:
                own["out"] = group
            if dist.get_rank() == receiver:
                own["in"] = group
    return own["in"], own["out"]
