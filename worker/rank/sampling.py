"""A sampler call on a rank: its scheduler, its first latents, its mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from parallel_backend.errors import RequestError
from parallel_backend.parallel_model import ParallelModel
from parallel_backend.sampling.denoiser import Inpainting
from parallel_backend.sampling.passes import Pass
from parallel_backend.sampling.schedulers import build_scheduler
from parallel_backend.sampling.stepper import Stepper

from ..wire.sampler_call import SamplerCall
from ..wire.tensors import Tensors
from ..wire.tree import unpack

BRANCHES = ([0], [0, 1], [1, 0])  # of guidance


def unpack_passes(passes: Sequence[dict], tensors: Tensors) -> list[Pass]:
    """Returns the forwards of a step. Raises ValueError, KeyError or TypeError if their description is malformed."""
    found = [Pass(**unpack(each, tensors)) for each in passes]
    if [branch for each in found for branch in each.branches] not in BRANCHES:
        raise ValueError("they need cond, or cond and uncond, each once")
    return found


def build_stepper(call: SamplerCall, noise: torch.Tensor, model: ParallelModel) -> Stepper:
    """Returns the call's scheduler with its timesteps set. Raises RequestError if it does not fit the model."""
    generator = torch.Generator().manual_seed(call.seed)
    torch.randn(noise.shape, generator=generator)  # the scheduler's noise follows the latents' first noise
    return Stepper.prepare(
        build_scheduler(call.scheduler, call.config),
        call.steps,
        denoise=call.denoise,
        linear_sigmas=call.linear_sigmas,
        device=model.mesh.device,
        generator=generator,
    )


def build_inpainting(given: Tensors) -> Inpainting | None:
    """Returns the inpainting of the call's mask. Raises RequestError for a mask that does not fit the latents."""
    if "mask" not in given:
        return None
    mask, noise = given["mask"], given["noise"]
    if any(size not in (1, whole) for size, whole in zip(mask.shape, noise.shape, strict=False)) or (
        mask.ndim != noise.ndim
    ):
        raise RequestError(f"A noise mask of shape {tuple(mask.shape)} does not fit latents of {tuple(noise.shape)}.")
    return Inpainting(mask, given["original"], noise)
