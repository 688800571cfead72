"""The VAE of a rank: one of ComfyUI's own, on all ranks, from a file or from weights that came with a request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from parallel_backend.device import generators
from parallel_backend.errors import ModelFileError
from parallel_backend.vae.parallel import ParallelVAE, Sizes

from ...comfyui.source import VaeSource
from ...comfyui.vae import HostVae, chunk_bytes, cut_by, load_vae
from ...wire.operations import RANDOM, WEIGHTS
from ...wire.tensors import Tensors
from ..job import Cancelled, Job

CPU = torch.device("cpu")


class RankVae:
    """host: as ComfyUI made it. parallel: the same on all ranks."""

    def __init__(self, host: HostVae, job: Job) -> None:
        """Runs collectives. Raises RequestError for one that cannot be split."""
        vae, axis = host.vae, job.groups.whole()
        sizes = Sizes(host.scale, vae.latent_channels, vae.output_channels, vae.latent_dim + 2)
        self.host = host
        self.parallel = ParallelVAE(host.module, axis, sizes, job.groups.whole(CPU))

    @classmethod
    def load(cls, source: VaeSource, tensors: Tensors, job: Job) -> RankVae:
        """tensors: of the request, with the weights if these are sent. Raises Ended, RequestError."""
        weights = {name.removeprefix(WEIGHTS): tensor for name, tensor in tensors.items() if name.startswith(WEIGHTS)}
        device = job.groups.device
        return cls(job.together(lambda: job.alone(lambda: load_vae(source, weights, device))), job)

    def run(self, direction: str, job: Job, tensors: Tensors) -> Tensors | None:
        """The result on rank 0, and where the class draws noise, ComfyUI's random state after it. Raises RequestError
        on all ranks alike, and Cancelled."""
        if lacks := self.host.lacks(direction):
            raise ModelFileError(f"The VAE's file cannot {direction}: it lacks {lacks}.", "Choose a whole VAE.")
        vae, state = self.parallel, tensors.get(RANDOM)
        generator = generators(vae.device)[-1]
        if state is not None and state.shape == generator.get_state().shape:
            generator.set_state(state)
        elif state is not None:  # ComfyUI computes on another kind of device
            generator.manual_seed(int(state.long().sum()))
        with chunks_alike(vae, job):
            result = {"decode": vae.decode, "encode": vae.encode}[direction](tensors["input"], agreed_check(job))
        if result is None:
            return None
        return {"result": result.cpu(), **({} if state is None else {RANDOM: generator.get_state()})}


def agreed_check(job: Job) -> Callable[[], None]:
    """Raises Cancelled on all ranks at the same place once rank 0 knows that the job is given up."""
    group = job.groups.whole(CPU).group

    def check() -> None:
        is_cancelled = torch.tensor([job.is_cancelled], dtype=torch.uint8)
        if dist.get_world_size() > 1:
            dist.broadcast(is_cancelled, 0, group=group)
        if is_cancelled:
            raise Cancelled

    return check


def chunks_alike(vae: ParallelVAE, job: Job) -> AbstractContextManager[Any]:
    """While entered, a class that cuts videos by the memory of its device cuts them alike on all ranks."""
    if not vae.kind.whole_sizes:
        return nullcontext()
    least = torch.tensor([chunk_bytes(vae.device)])
    if dist.get_world_size() > 1:
        dist.all_reduce(least, dist.ReduceOp.MIN, group=job.groups.whole(CPU).group)
    return cut_by(int(least))
