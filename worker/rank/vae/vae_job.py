"""Loads a VAE on all ranks and runs it, for one request."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from parallel_backend.device import generators
from parallel_backend.groups.collectives import gather_numbers
from parallel_backend.vae.parallel import CPU, ParallelVAE, VaeSizes

from ...comfyui.source import VaeSource
from ...comfyui.vae import load_vae, use_chunk_bytes
from ...wire.operations import RANDOM, VAE_WEIGHTS
from ...wire.tensors import Tensors
from ..agreement import DONE, REFUSED, JobEnded
from ..job import Job


def load_rank_vae(source: VaeSource, tensors: Tensors, job: Job) -> ParallelVAE | None:
    """Builds the VAE on all ranks. tensors: of the request; they include the weights if ComfyUI sends them. Returns
    None if a rank lacks the weights: it finds no file, or the file makes another VAE than ComfyUI's.

    Raises JobEnded, and RequestError for a VAE that cannot be split.
    """
    weights = {
        name.removeprefix(VAE_WEIGHTS): tensor for name, tensor in tensors.items() if name.startswith(VAE_WEIGHTS)
    }
    if not (source.file or weights):
        return None
    groups = job.groups
    vae, outcome = job.attempt(lambda: job.without_collectives(lambda: load_vae(source, weights, groups.device)))
    if outcome.kind == REFUSED and not weights:
        return None
    if vae is None or outcome.kind != DONE:
        raise JobEnded(outcome)
    sizes = VaeSizes(vae.spacial_compression_decode(), vae.latent_channels, vae.output_channels, vae.latent_dim + 2)
    return ParallelVAE(vae.first_stage_model, groups.world_axis(), sizes, groups.world_axis(CPU))


def run_rank_vae(vae: ParallelVAE, direction: str, job: Job, tensors: Tensors) -> Tensors | None:
    """Returns the result on rank 0. If the VAE draws noise, ComfyUI's random state after the run is part of it.

    Raises RequestError on all ranks alike, and JobEnded, also if ComfyUI has cancelled it.
    """
    state, generator = tensors.get(RANDOM), generators(vae.device)[-1]
    if state is not None and state.shape == generator.get_state().shape:
        generator.set_state(state)
    elif state is not None:  # ComfyUI computes on another kind of device
        generator.manual_seed(int(state.long().sum()))
    with same_chunk_size(vae, job):
        run = {"decode": vae.decode, "encode": vae.encode}[direction]
        result = run(tensors["input"], lambda: job.all_or_none(job.check))
    if result is None:
        return None
    return {"result": result.cpu(), **({} if state is None else {RANDOM: generator.get_state()})}


def same_chunk_size(vae: ParallelVAE, job: Job) -> AbstractContextManager[Any]:
    """While entered, a VAE that splits videos by its device's free memory uses the same size on all ranks."""
    if not vae.kind.whole_sizes:
        return nullcontext()
    group = job.groups.world_axis(CPU).group
    return use_chunk_bytes(vae.device, lambda own: int(min(gather_numbers((own,), group))[0]))
