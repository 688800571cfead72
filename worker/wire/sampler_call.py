"""The JSON part of a sampler call; tensors and conditions travel beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The tensors of a call. noise: has the shape of the latents. original: the latents to start from, or to keep.
# mask: 1 where latents may change; broadcast to the latents.
SAMPLER_TENSORS = ("noise", "original", "mask")


@dataclass(frozen=True)
class SamplerCall:
    """A run of the denoising loop.

    scheduler: a name in the engine's SCHEDULERS. config, linear_sigmas: see the engine's `build_scheduler`
    and `Stepper.prepare`. steps, denoise: as in ComfyUI's KSampler. guidance: the cfg scale.
    seed: of the noise that the scheduler adds. previews: whether each step's event has an estimate of the clean
    latents.
    timestep_scale: the factor from a scheduler's timestep to that of ComfyUI's class; the engine knows diffusers' own.
    """

    scheduler: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    linear_sigmas: bool = True
    steps: int = 1
    denoise: float = 1.0
    guidance: float = 1.0
    seed: int = 0
    previews: bool = False
    timestep_scale: float = 1.0
