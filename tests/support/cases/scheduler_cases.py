"""Schedulers, a model that knows nothing, and the loop of a plain pipeline, for the schedulers' tests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from parallel_backend.sampling.schedulers import COGVIDEOX, FLOW, MODELS_OWN, SCHEDULERS, build_scheduler
from parallel_backend.sampling.stepper import Stepper

STEPS = 6
SHAPE = (2, 4, 6, 6)
PATCHES = 3
CONFIGS = {
    "diffusion": {"_class_name": "DDIMScheduler", "beta_schedule": "linear", "clip_sample": False},
    FLOW: {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0},
    COGVIDEOX: {
        "_class_name": "CogVideoXDPMScheduler",
        "prediction_type": "v_prediction",
        "rescale_betas_zero_snr": True,
        "snr_shift_scale": 1.0,
        "timestep_spacing": "trailing",
    },
}
NAMED = [name for name in SCHEDULERS if name != MODELS_OWN]
NAMED_FLOW = [name for name in NAMED if SCHEDULERS[name].kind == FLOW]


def randn(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def model(model_input: torch.Tensor, timestep: float) -> torch.Tensor:
    """A model with a mind of its own: neither linear nor blind to the timestep."""
    return torch.tanh(0.7 * model_input + 1e-3 * timestep)


def build(name: str, **config: object) -> Any:
    return build_scheduler(name, {**CONFIGS[SCHEDULERS[name].kind], **config})


def run(
    stepper: Stepper, latents: torch.Tensor, predict: Callable[[torch.Tensor, float], torch.Tensor]
) -> torch.Tensor:
    for index, timestep in enumerate(stepper.timesteps):
        latents = stepper.step(predict(stepper.model_input(latents, index), timestep), index, latents)
    return latents


def plain_loop(scheduler: Any, latents: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
    """The denoising loop of a diffusers pipeline."""
    takes_generator = "generator" in inspect.signature(scheduler.step).parameters
    extra = {"generator": seeded()} if takes_generator else {}
    old = None
    for index, t in enumerate(timesteps):
        scaled = scheduler.scale_model_input(latents, t) if hasattr(scheduler, "scale_model_input") else latents
        prediction = model(scaled, t.item())
        if type(scheduler).__name__ == "CogVideoXDPMScheduler":
            back = timesteps[index - 1] if index > 0 else None
            latents, old = scheduler.step(prediction, old, t, back, latents, **extra, return_dict=False)
        else:
            latents = scheduler.step(prediction, t, latents, **extra, return_dict=False)[0]
    return latents


def set_like_pipeline(scheduler: Any, steps: int) -> None:
    """Flux's pipeline for flow matching, with its exception for schedulers with flow sigmas; DiT's for the others."""
    if "FlowMatchEuler" in type(scheduler).__name__:
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps))
    else:
        scheduler.set_timesteps(steps)
