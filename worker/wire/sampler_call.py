"""What a sampler call asks of the ranks, beside its tensors and conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# Tensors of a call. noise: in the shape of the latents.
# original: the latents to begin from, or to keep. mask: 1 where latents may change, broadcast to them.
SAMPLER_TENSORS = ("noise", "original", "mask")


# Where a pass for one of ComfyUI's own classes has the arguments of the class, and channels behind the latents' own.
KWARGS, CHANNELS = "kwargs", "channels"


@dataclass(frozen=True)
class SamplerPass:
    """One of a step's forwards. branches: what its rows are, one batch of latents after the other: 0 for cond, 1 for
    uncond. conditions: what the model gets beside latents and timesteps, by name; on the wire, packed (`tree.py`)."""

    branches: tuple[int, ...]
    conditions: Any

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SamplerPass:
        return cls(tuple(fields["branches"]), fields["conditions"])


@dataclass(frozen=True)
class SamplerCall:
    """A run of the denoising loop.

    scheduler: a name of the engine's SCHEDULERS. config: the model's scheduler config, and default its family's.
    linear_sigmas: see Stepper.prepare. steps, denoise: as in ComfyUI's KSampler. guidance: the weight of the
    conditions against the negative ones. seed: of the noise that the scheduler adds.
    previews: whether the steps' events carry estimates of the clean latents.
    timestep_scale: what a scheduler's timestep is multiplied with for one of ComfyUI's own classes; for diffusers' the
    engine knows it.
    cache, cache_threshold, cache_interval: see the engine's CacheSettings.
    """

    scheduler: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    default: Mapping[str, Any] = field(default_factory=dict)
    linear_sigmas: bool = True
    steps: int = 1
    denoise: float = 1.0
    guidance: float = 1.0
    seed: int = 0
    previews: bool = False
    timestep_scale: float = 1.0
    cache: str = "none"
    cache_threshold: float = 0.08
    cache_interval: int = 4

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> SamplerCall:
        return cls(**fields)
