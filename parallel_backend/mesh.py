"""The device mesh of a plan: one axis a degree, and the process group of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from .plan import ParallelPlan

# Axes that together split one thing: the batch, and the tokens of the sequence.
JOINT_AXES = {"batch": ("dp", "cfg"), "sequence": ("ring", "ulysses")}


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh as this rank sees it: its group, its degree, and this rank's place on it."""

    group: dist.ProcessGroup | None  # none for an axis of one
    degree: int
    index: int

    def global_rank(self, index: int) -> int:
        """The global rank of the rank at `index` on this axis."""
        return dist.get_global_rank(self.group, index)


@dataclass(frozen=True)
class Mesh:
    """A plan laid over the ranks of the default process group, and the device that this rank computes on.

    axes: those of the plan, and the joint ones, whose index counts row by row. device_mesh: torch's own.
    """

    plan: ParallelPlan
    device: torch.device
    axes: dict[str, Axis]
    device_mesh: DeviceMesh

    def __getitem__(self, axis: str) -> Axis:
        return self.axes[axis]


def build_mesh(plan: ParallelPlan, device: torch.device) -> Mesh:
    """Builds the groups of the plan. All ranks of the default process group call it together.

    Only axes that split something get a group: each costs threads and sockets on every rank.
    """
    degrees = {axis: degree for axis, degree in plan.degrees().items() if degree > 1} or {"dp": 1}
    device_mesh = init_device_mesh(device.type, tuple(degrees.values()), mesh_dim_names=tuple(degrees))
    axes = {name: _axis(device_mesh[name]) if name in degrees else Axis(None, 1, 0) for name in plan.degrees()}
    for name, parts in JOINT_AXES.items():
        split = tuple(part for part in parts if part in degrees)
        axes[name] = _axis(device_mesh[split]._flatten(name)) if len(split) > 1 else axes[(split or parts)[0]]
    return Mesh(plan, device, axes, device_mesh)


def _axis(device_mesh: DeviceMesh) -> Axis:
    return Axis(device_mesh.get_group(), device_mesh.size(), device_mesh.get_local_rank())
