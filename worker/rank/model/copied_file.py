"""The weights of a model by value, on other machines than ComfyUI's. Only that machine has the file, in its memory. So
its bytes come once to each other machine, over the connection by which ranks agree."""

from __future__ import annotations

import hashlib
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from parallel_backend.errors import NoRoomError
from parallel_backend.groups.collectives import gather_numbers
from parallel_backend.weights.free_ram import available_ram_bytes

from ...comfyui.model import is_gguf
from ...comfyui.source import HostSource
from ...launch.torchrun import is_one_machine
from ...wire.private_folder import FOLDER, find_room

if TYPE_CHECKING:
    from ..job import Job
    from ..state import RankState

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


@dataclass(frozen=True)
class CopiedSource(HostSource):
    """A source whose file is a copy. It keeps the copy."""

    copy: FileCopy | None = field(default=None, compare=False)


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def find_link(source: HostSource) -> Path:
    """Returns the link to a source's copy. Nothing of the file's path is in it, as this is another machine's."""
    digest = hashlib.sha256(repr((source.file, source.mark)).encode()).hexdigest()[:16]
    return Path(os.environ[FOLDER]) / f"weights-{digest}{'.gguf' if is_gguf(source.file) else '.safetensors'}"


def find_copy(state: RankState, source: HostSource) -> FileCopy | None:
    """Returns the copy that this rank has for all ranks of its machine."""
    return state.copies.get(find_link(source)) if source.detected else None


def bring_file(job: Job, source: HostSource, held: FileCopy | None = None) -> HostSource:
    """Returns the source of a file on this machine. If it is of weights by value, each machine that lacks them gets
    them first. All ranks of the job call this. Raises JobEnded. held: what `find_copy` found; it may be gone by now."""
    if not source.detected or is_one_machine():
        return source
    link, rank = find_link(source), dist.get_rank()
    copied = held or find_copy(job.state, source)
    is_elsewhere = os.environ["GROUP_RANK"] != "0"
    lacks = is_elsewhere and os.environ["LOCAL_RANK"] == "0" and copied is None
    size = job.all_or_none(lambda: 0 if is_elsewhere else os.path.getsize(source.file))
    told = gather_numbers((size, int(lacks)), job.control_group)
    if receivers := [each for each, (_, one_lacks) in enumerate(told) if one_lacks]:
        size, _ = told[0]

        def open_file() -> tuple[FileCopy | None, torch.Tensor]:
            own = FileCopy(link, size) if lacks else copied
            path = str(link) if lacks else source.file if rank == 0 else ""
            return own, torch.from_file(path, lacks, size, dtype=torch.uint8) if path else torch.empty(0)

        copied, pages = job.all_or_none(open_file)
        for start in range(0, size, PIECE):
            piece = pages[start : start + PIECE]
            for receiver in receivers if rank == 0 else ():
                dist.send(piece, receiver, group=job.control_group)
            if lacks:
                dist.recv(piece, 0, group=job.control_group)
            job.all_or_none(job.check)
    if not is_elsewhere:
        return source
    if copied:
        job.state.copies[link] = copied
    return CopiedSource(**{**vars(source), "file": str(link)}, copy=copied)
