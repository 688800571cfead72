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

from parallel_backend.groups.mesh import Axis, Mesh, build_mesh, world_axis
from parallel_backend.groups.timeline import Timeline
from parallel_backend.plan import ParallelPlan

SOCKETS = "/proc/self/fd"

Built = TypeVar("Built")


class GroupsError(RuntimeError):
    """The groups could not be built; the other ranks wait in vain for this one, so that it must end."""


class JobGroups:
    """The plan's mesh, and all ranks as one axis; each built when it is first asked for, by all ranks together.

    job: the id of the one that runs. A thread other than the main one may cut it off.
    """

    def __init__(self, device: torch.device, timeline: Timeline) -> None:
        self.device = device
        self.timeline = timeline
        self.job = 0
        self.mesh: Mesh | None = None
        self.world: Axis | None = None
        self.sockets: dict[int, str] = {}
        self.lock = threading.Lock()

    def mesh_of(self, plan: ParallelPlan) -> Mesh:
        """The plan's mesh; the last one, if it was for the same."""
        if self.mesh is None or self.mesh.plan != plan:
            if self.mesh:
                self.mesh.close()
            self.mesh = self._build(lambda: build_mesh(plan, self.device, timeline=self.timeline))
        return self.mesh

    def whole(self) -> Axis:
        """All ranks, whatever the plan."""
        if self.world is None:
            self.world = self._build(lambda: replace(world_axis(), timeline=self.timeline))
        return self.world

    @property
    def can_be_cut(self) -> bool:
        """Not where the system does not tell which sockets there are: gloo itself has no way."""
        return dist.get_world_size() == 1 or os.path.isdir(SOCKETS)

    def cut(self, job: int) -> None:
        """Ends all communication of this job, if it is the one that runs: in flight and to come. From any thread."""
        with self.lock:
            if job != self.job:
                return
            for descriptor, name in self.sockets.items():
                if socket_name(descriptor) == name:  # not closed since, and another file in its place
                    with contextlib.suppress(OSError), opened(descriptor) as connection:
                        connection.shutdown(socket.SHUT_RDWR)
            self.sockets.clear()
            if self.device.type == "cuda":
                for group in self._groups():
                    group.abort()

    def close(self) -> None:
        """Gives up all groups, once all ranks have left them; the next request builds its own."""
        with self.lock:
            mesh, world, self.mesh, self.world = self.mesh, self.world, None, None
            self.sockets.clear()
        if mesh:
            mesh.close()
        if world and world.group:
            dist.destroy_process_group(world.group)

    def _groups(self) -> set[dist.ProcessGroup]:
        own = {self.world.group} if self.world and self.world.group else set()
        return own | (self.mesh.groups() if self.mesh else set())

    def _build(self, build: Callable[[], Built]) -> Built:
        before = connected_sockets()
        try:
            built = build()
        except Exception as error:  # even for lack of memory
            raise GroupsError(f"The ranks could not be connected: {error}") from error
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
