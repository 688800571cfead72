"""The groups over which requests communicate, apart from the one that holds the ranks together: they can be cut off.

A rank that fails inside a request leaves the others waiting for it in a collective. Cutting the groups of all ranks
ends that deadlock with an error everywhere, and the next request builds new ones.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
import torch.distributed as dist

from parallel_backend.axes import STAGE_AXES
from parallel_backend.device import can_be_aborted
from parallel_backend.errors import GroupError
from parallel_backend.groups.mesh import Axis, Mesh, build_mesh, in_order, replica_axis, world_axis
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import ParallelPlan

SOCKETS = "/proc/self/fd"
CPU = torch.device("cpu")

Built = TypeVar("Built")


class JobGroups:
    """The plan's mesh, and all ranks as one axis; each built when it is first asked for, by all ranks together, those
    outside of the plan too.

    job: the id of the one that runs. A thread other than the main one may cut it off: NCCL's groups are aborted, and of
    gloo's, which knows no such thing, the sockets are shut down.
    """

    def __init__(self, device: torch.device, timeline: Timeline) -> None:
        self.device = device
        self.timeline = timeline
        self.job = 0
        self.mesh: Mesh | None = None
        self.worlds: dict[tuple[str, int], Axis] = {}  # by type of device, and how many ranks
        self.replica_axes: dict[tuple[int, ...], Axis] = {}  # by ranks, and degrees of the axes that share out weights
        self.sockets: dict[int, str] = {}
        self.lock = threading.Lock()

    def mesh_of(self, plan: ParallelPlan) -> Mesh:
        """The plan's mesh; the last one, if it was for the same."""
        if self.mesh is None or self.mesh.plan != plan:
            if self.mesh:
                self.mesh.close()
            self.mesh = self._build(self.device, lambda: build_mesh(plan, self.device, timeline=self.timeline))
        return self.mesh

    def whole(self, device: torch.device | None = None, ranks: int | None = None) -> Axis:
        """All ranks, whatever the plan, or the first `ranks`, for tensors on the ranks' own device or on another."""
        device, ranks = device or self.device, ranks or dist.get_world_size()
        key = device.type, ranks
        if key not in self.worlds:
            axis = self._build(device, lambda: world_axis(device, ranks))
            self.worlds[key] = replace(axis, timeline=self.timeline)
        return self.worlds[key]

    def of_plan(self, plan: ParallelPlan) -> Mesh:
        """The plan's mesh, and with it whatever a request under this plan may ask for: building waits for all ranks."""
        mesh = self.mesh_of(plan)
        for ranks in sorted({plan.world_size, dist.get_world_size()}):
            self.whole(CPU, ranks)
        self.whole()
        if plan.world_size < dist.get_world_size():
            self.replicas(plan)  # for which the others will not be there
        return mesh

    def replicas(self, plan: ParallelPlan) -> Axis:
        """The ranks that compute with the same weights as this one under the plan: the same under any that shares the
        weights out in the same way."""
        degrees = (plan.world_size, *(getattr(plan, axis) for axis in STAGE_AXES))
        if degrees not in self.replica_axes:
            build = lambda: replica_axis(plan, self.device, self.timeline)  # noqa: E731
            self.replica_axes[degrees] = self._build(self.device, build)
        return self.replica_axes[degrees]

    @property
    def can_be_cut(self) -> bool:
        """Not where the system does not tell which sockets there are: gloo itself has no way, nor has xccl."""
        has_way = self.device.type == CPU.type or can_be_aborted(self.device)
        return dist.get_world_size() == 1 or has_way and os.path.isdir(SOCKETS)

    def cut(self, job: int) -> None:
        """Ends all communication of this job, if it is the one that runs: in flight and to come. From any thread."""
        with self.lock:
            if job != self.job:
                return
            if can_be_aborted(self.device):
                for group in self._groups():
                    group.abort()
            for descriptor, name in self.sockets.items():
                if socket_name(descriptor) == name:  # not closed since, and another file in its place
                    with contextlib.suppress(OSError), opened(descriptor) as connection:
                        connection.shutdown(socket.SHUT_RDWR)
            self.sockets.clear()

    def close(self) -> None:
        """Gives up all groups, once all ranks have left them; the next request builds its own."""
        with self.lock:
            mesh, axes = self.mesh, [*self.worlds.values(), *self.replica_axes.values()]
            self.mesh, self.worlds, self.replica_axes = None, {}, {}
            self.sockets.clear()
        if mesh:
            mesh.close()
        for group in in_order(axis.group for axis in axes):
            dist.destroy_process_group(group)

    def _groups(self) -> list[dist.ProcessGroup]:
        """Those for the ranks' own device."""
        worlds = (axis.group for (kind, _), axis in self.worlds.items() if kind == self.device.type)
        replicas = (axis.group for axis in self.replica_axes.values())
        return in_order([*worlds, *replicas, *(self.mesh.groups() if self.mesh else ())])

    def _build(self, device: torch.device, build: Callable[[], Built]) -> Built:
        before = connected_sockets()
        try:
            built = build()
        except Exception as error:  # even for lack of memory
            raise GroupError(f"The ranks could not be connected: {error}") from error
        if device.type == CPU.type:
            with self.lock:
                self.sockets |= {item: name for item, name in connected_sockets().items() if before.get(item) != name}
        return built


def connected_sockets() -> dict[int, str]:
    """This process's descriptors of connected sockets, each with the name that tells it from others; on Linux."""
    found = {}
    for entry in os.listdir(SOCKETS) if os.path.isdir(SOCKETS) else ():
        name = socket_name(int(entry))
        if name:
            with contextlib.suppress(OSError), opened(int(entry)) as connection:
                connection.getpeername()  # raises for one that listens, whose shutdown gloo does not survive
                found[int(entry)] = name
    return found


def socket_name(descriptor: int) -> str:
    """The socket's name; empty for another file, or none."""
    try:
        name = os.readlink(f"{SOCKETS}/{descriptor}")
    except OSError:
        return ""
    return name if name.startswith("socket:") else ""


@contextlib.contextmanager
def opened(descriptor: int) -> Iterator[socket.socket]:
    """The socket, as Python knows it."""
    connection = socket.socket(fileno=os.dup(descriptor))
    try:
        yield connection
    finally:
        connection.close()
