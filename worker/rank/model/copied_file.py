"""The weights of a model by value, on other machines than ComfyUI's. Only that machine has the file, in its memory. So
its bytes come once to each other machine, over the connection by which ranks agree."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from parallel_backend.errors import NoRoomError
from parallel_backend.groups.collectives import gather_numbers
from parallel_backend.weights.free_ram import available_ram_bytes

from ...comfyui.source import HostSource
from ...launch.torchrun import is_one_machine
from ...wire.private_folder import find_room

if TYPE_CHECKING:
    from ..job import Job

PIECE = 16 << 20  # bytes sent at a time: between two pieces, ComfyUI can cancel the job


class FileCopy:
    """A copy of a file. It is removed when nothing in this process needs it any more. link: in the group's folder on
    this machine, where the machine's other ranks find it."""

    def __init__(self, link: Path, size: int) -> None:
        """Makes room for its bytes. Raises NoRoomError."""
        path = find_room(size, available_ram_bytes()) / link.name
        weakref.finalize(self, remove, link, path)
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
            try:
                os.posix_fallocate(file, 0, size)
            finally:
                os.close(file)
            link.symlink_to(path)
        except OSError as error:
            raise NoRoomError(f"The ranks need its weights in a file, which cannot be written ({error}).") from error


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def bring_copy(job: Job, source: HostSource, held: FileCopy | None = None) -> FileCopy | None:
    """Brings the weights by value of a source to each machine that lacks them, to `HostSource.path`. Returns the copy
    for what needs it, if this rank has it for its machine. All ranks of the job call this. Raises JobEnded. held: the
    copy of the last model, which may be gone by now."""
    if not source.detected or is_one_machine():
        return None
    rank, is_elsewhere = dist.get_rank(), os.environ["GROUP_RANK"] != "0"
    copied = held or job.state.copies.get(source.path)
    lacks = is_elsewhere and os.environ["LOCAL_RANK"] == "0" and copied is None
    size = job.all_or_none(lambda: 0 if is_elsewhere else os.path.getsize(source.file))
    told = gather_numbers((size, int(lacks)), job.control_group)
    if receivers := [each for each, (_, one_lacks) in enumerate(told) if one_lacks]:
        size, _ = told[0]

        def open_file() -> tuple[FileCopy | None, torch.Tensor]:
            own = FileCopy(source.path, size) if lacks else copied
            reads = lacks or rank == 0
            return own, torch.from_file(str(source.path), lacks, size, dtype=torch.uint8) if reads else torch.empty(0)

        copied, pages = job.all_or_none(open_file)
        for start in range(0, size, PIECE):
            piece = pages[start : start + PIECE]
            for receiver in receivers if rank == 0 else ():
                dist.send(piece, receiver, group=job.control_group)
            if lacks:
                dist.recv(piece, 0, group=job.control_group)
            job.all_or_none(job.check)
    if copied:
        job.state.copies[source.path] = copied
    return copied
