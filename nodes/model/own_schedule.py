"""With which of diffusers' schedulers one of ComfyUI's own models is sampled, read off ComfyUI's sampling of it."""

from __future__ import annotations

import math
from typing import Any

import comfy.model_sampling
import torch
from comfy.model_base import ModelType

from ..errors import Refused
from .schedule import PREDICTIONS, Schedule

TIMESTEPS = 1000  # of diffusers' schedulers
BETAS = {"linear": "scaled_linear", "sqrt_linear": "linear", "squaredcos_cap_v2": "squaredcos_cap_v2"}


def own_schedule(patcher: Any) -> tuple[Schedule, float]:
    """The schedule, and what a scheduler's timestep is multiplied with for the model; with the shift that a
    ModelSampling node has set. Raises Refused for a kind of noise that diffusers' schedulers here do not have."""
    model, sampling = patcher.model, patcher.get_model_object("model_sampling")
    kind, is_own = model.model_type, "model_sampling" not in patcher.object_patches
    if isinstance(sampling, comfy.model_sampling.CONST) and kind in (ModelType.FLOW, ModelType.FLUX):
        if isinstance(sampling, comfy.model_sampling.ModelSamplingFlux):
            return flow_euler(math.exp(sampling.shift)), float(sampling.timestep(torch.ones(()))) / TIMESTEPS
        if isinstance(sampling, comfy.model_sampling.ModelSamplingDiscreteFlow):
            return flow_euler(sampling.shift), float(sampling.timestep(torch.ones(()))) / TIMESTEPS
    if is_own and kind in (ModelType.EPS, ModelType.V_PREDICTION):
        settings = model.model_config.sampling_settings
        if (schedule := settings.get("beta_schedule", "linear")) in BETAS:
            config = {
                "_class_name": "DPMSolverMultistepScheduler",
                "beta_schedule": BETAS[schedule],
                "beta_start": settings.get("linear_start", 0.00085),
                "beta_end": settings.get("linear_end", 0.012),
                "prediction_type": PREDICTIONS[kind],
                "rescale_betas_zero_snr": bool(settings.get("zsnr", False)),
            }
            return Schedule({}, config, linear_sigmas=False), 1.0
    raise Refused(
        f"The Parallel Sampler has no scheduler for {type(sampling).__bases__[0].__name__}, by which ComfyUI samples "
        "this model.",
        "Remove a node that changes it, or use a stock KSampler, with a plan without PipeFusion.",
    )


def flow_euler(shift: float) -> Schedule:
    return Schedule({}, {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": shift}, linear_sigmas=True)
