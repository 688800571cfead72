"""The process groups over which requests communicate. They can be cut, because ranks agree over other groups.

A rank that fails inside a request leaves the others waiting for it in a collective. Cutting the groups of all ranks
ends that deadlock with an error everywhere. The next request builds new groups.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist

from parallel_backend.compat import error_of
from parallel_backend.device import has_cuda, is_accelerator
from parallel_backend.errors import GroupError
from parallel_backend.groups.collectives import gather_numbers
from parallel_backend.groups.communicators import Communicator, list_replicas
from parallel_backend.groups.mesh import Axis, Mesh, build_mesh, in_order, most_side_by_side, replica_axis, world_axis
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import ParallelPlan

CPU = torch.device("cpu")

Built = TypeVar("Built")


class JobGroups:
    """The plan's mesh, and all ranks as one axis. All ranks, also those outside of the plan, build each of them
    together when it is first needed.

    job: the id of the running job. Any thread may cut its communication: NCCL's groups are aborted, and gloo's sockets
    are shut down, because gloo has no abort.
    """

    def __init__(self, device: torch.device, timeline: Timeline) -> None:
        self.device = device
        self.timeline = timeline
        self.job = 0
        self.mesh: Mesh | None = None
        self.worlds: dict[tuple[str, int], Axis] = {}  # by device type and rank count
        # By the ranks of each, and how many kernels run side by side, which limits each kernel's channels.
        self.replica_axes: dict[tuple[tuple[Communicator, ...], int], Axis] = {}
        self.sockets: set[tuple[Any, ...]] = set()  # gloo's, see `list_connections`
        self.lock = threading.Lock()

    def mesh_of(self, plan: ParallelPlan) -> Mesh:
        """Returns the plan's mesh. Reuses the groups of the last one if the ranks share the work in the same way."""
        last = self.mesh
        if last and (last.plan.degrees(), last.plan.speeds) == (plan.degrees(), plan.speeds):
            self.mesh = replace(last, plan=plan)
            return self.mesh
        if last:
            last.close()
        world = self.world_axis() if plan.world_size == dist.get_world_size() > 1 else None
        self.mesh = self._build(self.device, lambda: build_mesh(plan, self.device, timeline=self.timeline, world=world))
        return self.mesh

    def world_axis(self, device: torch.device | None = None, ranks: int | None = None) -> Axis:
        """Returns all ranks whatever the plan, or the first `ranks`, for tensors on the ranks' own device or
        another."""
        device, ranks = device or self.device, ranks or dist.get_world_size()
        key = device.type, ranks
        if key not in self.worlds:
            axis = self._build(device, lambda: world_axis(device, ranks))
            self.worlds[key] = replace(axis, timeline=self.timeline)
        return self.worlds[key]

    def connect_ahead(self, control: dist.ProcessGroup | None) -> None:
        """Connects accelerators before a plan is known. Axes over all ranks use this, and the VAE. All ranks call it
        together, with nothing in flight.

        If it fails on one rank, all leave it to the first load, which says why. control: of all ranks, for tensors on
        the CPU.
        """
        if not is_accelerator(self.device):
            return
        try:
            self.world_axis()
        except GroupError as error:
            logging.warning("The ranks could not be connected ahead. %s", error)
        if not all(count for (count,) in gather_numbers((len(self.worlds),), control)):
            self.cut(self.job)
            self.close()

    def build_plan(self, plan: ParallelPlan) -> Mesh:
        """Returns the plan's mesh. Builds all groups that a request under this plan may need, because building waits
        for all ranks."""
        mesh = self.mesh_of(plan)
        for ranks in sorted({plan.world_size, dist.get_world_size()}):
            self.world_axis(CPU, ranks)
        self.world_axis()
        if plan.world_size < dist.get_world_size():
            self.replicas(plan)  # built here, because the other ranks would not take part later
        return mesh

    def replicas(self, plan: ParallelPlan) -> Axis:
        """Returns the axis of the ranks that compute with the same weights as this one under the plan. Plans whose
        stages have the same ranks have the same axis."""
        key = tuple(list_replicas(plan)), most_side_by_side(plan)
        if key not in self.replica_axes:
            build = lambda: replica_axis(plan, self.device, self.timeline)  # noqa: E731
            self.replica_axes[key] = self._build(self.device, build)
        return self.replica_axes[key]

    @property
    def can_be_cut(self) -> bool:
        """Whether groups can be cut. gloo and xccl cannot abort. gloo's sockets can be shut down if the system lists
        them."""
        has_way = self.device.type == CPU.type or has_cuda(self.device)
        return dist.get_world_size() == 1 or has_way and psutil.LINUX

    def cut(self, job: int) -> None:
        """Ends all communication of this job, now and later, if it is the running job. Any thread may call this."""
        with self.lock:
            if job != self.job:
                return
            groups = self._groups() if has_cuda(self.device) else []
            # All at a time, because one's abort may wait for another's kernel (pytorch #119797).
            with ThreadPoolExecutor(max(1, len(groups)), "paralleldit-abort") as pool:
                list(pool.map(lambda group: group.abort(), groups))
            for descriptor, *_ in self.sockets & list_connections():  # others were closed since
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
            self.sockets.clear()

    def check(self) -> None:
        """Raises GroupError if the watchdog of a group has found an error: what was computed since may be garbage."""
        for group in self._groups():
            if error := error_of(group, self.device):
                ranks = dist.get_process_group_ranks(group)
                raise GroupError(f"The exchange between the ranks {ranks} failed ({error}), so its result is wrong.")

    def close(self) -> None:
        """Closes all groups once all ranks have left them. The next request builds its own."""
        with self.lock:
            mesh, axes = self.mesh, [*self.worlds.values(), *self.replica_axes.values()]
            self.mesh, self.worlds, self.replica_axes = None, {}, {}
            self.sockets.clear()
        if mesh:
            mesh.close()
        for group in in_order(axis.group for axis in axes):
            dist.destroy_process_group(group)

    def _groups(self) -> list[dist.ProcessGroup]:
        """Returns the groups for the ranks' own device."""
        axes = [axis for (kind, _), axis in [*self.worlds.items()] if kind == self.device.type]
        axes += [*self.replica_axes.values()]  # lists, because another thread cuts groups while this one builds some
        return in_order([*(axis.group for axis in axes), *(mesh.groups() if (mesh := self.mesh) else ())])

    def _build(self, device: torch.device, build: Callable[[], Built]) -> Built:
        before = list_connections()
        try:
            built = build()
        except Exception as error:  # also a lack of memory
            raise GroupError(f"The ranks could not be connected: {error}") from error
        if device.type == CPU.type:
            with self.lock:
                self.sockets |= list_connections() - before
        return built


def list_connections() -> set[tuple[Any, ...]]:
    """Returns this process's TCP connections: the descriptor and both addresses of each. Not a listening socket, whose
    shutdown gloo does not survive."""
    found = psutil.Process().net_connections("tcp") if psutil.LINUX else ()
    return {(each.fd, each.laddr, each.raddr) for each in found if each.raddr}
