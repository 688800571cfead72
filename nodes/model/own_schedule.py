"""Finds the diffusers scheduler for one of ComfyUI's models, from how ComfyUI samples it."""

from __future__ import annotations

import math
from typing import Any

import comfy.model_sampling
import torch
from comfy.model_base import ModelType

from ...worker.comfyui.dit.model import ClassConditionalDiT
from ..errors import Refused

TIMESTEPS = 1000  # the count of diffusers' schedulers
BETAS = {"linear": "scaled_linear", "sqrt_linear": "linear", "squaredcos_cap_v2": "squaredcos_cap_v2"}
PREDICTIONS = {ModelType.EPS: "epsilon", ModelType.V_PREDICTION: "v_prediction"}


def choose_schedule(patcher: Any) -> dict[str, Any]:
    """Returns the fields of a SamplerCall that say how ComfyUI samples the model.

    A DiT's folder names its scheduler, which applies unless a ModelSampling node has set another shift. Raises Refused
    for a kind of noise that no diffusers scheduler here supports.
    """
    model, sampling = patcher.model, patcher.get_model_object("model_sampling")
    kind, is_own = model.model_type, "model_sampling" not in patcher.object_patches
    is_flow = isinstance(sampling, comfy.model_sampling.CONST) and kind in (ModelType.FLOW, ModelType.FLUX)
    scale = float(patcher.get_model_object("model_sampling").timestep(torch.ones(()))) / TIMESTEPS if is_flow else 1.0
    linear = {"linear_sigmas": True, "timestep_scale": scale}
    if is_own and isinstance(model, ClassConditionalDiT) and model.model_config.scheduler:
        return {**linear, "config": model.model_config.scheduler}
    if is_flow:
        if isinstance(sampling, comfy.model_sampling.ModelSamplingFlux):
            return {**linear, "config": flow_euler(math.exp(sampling.shift))}
        if isinstance(sampling, comfy.model_sampling.ModelSamplingDiscreteFlow):
            return {**linear, "config": flow_euler(sampling.shift)}
    if is_own and kind in PREDICTIONS:
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
            return {"config": config, "linear_sigmas": False, "timestep_scale": scale}
    raise Refused(
        f"ComfyUI samples this model with {type(sampling).__bases__[0].__name__}, but the Parallel Sampler has no "
        "scheduler for that.",
        "Remove the node that changes the model's sampling, or use a stock KSampler.",
    )


def flow_euler(shift: float) -> dict[str, Any]:
    return {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": shift}
