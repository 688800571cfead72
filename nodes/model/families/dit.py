"""DiT, class-conditional: ComfyUI has none of its own."""

from __future__ import annotations

from typing import Any

import comfy.latent_formats
import comfy.model_base
import comfy.supported_models_base
import torch

from ....parallel_backend.errors import ModelFileError
from ...errors import Refused
from ..model_files import ModelDescription
from .base import HostFamily, Tensors, register, weightless


class ClassConditionalDiT(comfy.model_base.BaseModel):
    """DiT as ComfyUI sees it: conditioned on a one-hot class vector (B, 1, classes + 1), the last being no class."""

    classes: int
    id2label: dict[int, str]


class DiTConfig(comfy.supported_models_base.BASE):
    """ComfyUI's model config for a DiT, with the noise schedule of the model's own scheduler config."""

    unet_extra_config = {}

    def __init__(self, unet_config: dict, latent_format: type, sampling_settings: dict) -> None:
        self.latent_format = latent_format
        self.sampling_settings = sampling_settings
        super().__init__(unet_config)


def build_dit(folder: ModelDescription) -> ClassConditionalDiT:
    latent_formats = {3: comfy.latent_formats.ChromaRadiance, 4: comfy.latent_formats.SD15}
    channels = folder.config["in_channels"]
    if channels not in latent_formats:
        raise ModelFileError(f"A DiT on {channels}-channel latents is unknown; known are pixels (3) and SD-VAE (4).")
    model_type, settings = noise_schedule(folder.scheduler)
    config = DiTConfig(weightless(in_channels=channels), latent_formats[channels], settings)
    model = ClassConditionalDiT(config, model_type=model_type)
    model.classes = folder.config["num_embeds_ada_norm"]
    model.id2label = {int(index): name for index, name in folder.pipeline.get("id2label", {}).items()}
    return model


def noise_schedule(scheduler: dict) -> tuple[comfy.model_base.ModelType, dict]:
    """ComfyUI's model type and sampling settings for a diffusers scheduler config.

    Without one, DiT's own: epsilon prediction, linear betas.
    """
    if "FlowMatch" in scheduler.get("_class_name", ""):
        return comfy.model_base.ModelType.FLOW, {"shift": scheduler.get("shift", 1.0)}
    model_types = {
        "epsilon": comfy.model_base.ModelType.EPS,
        "v_prediction": comfy.model_base.ModelType.V_PREDICTION,
    }
    beta_schedules = {"linear": "sqrt_linear", "scaled_linear": "linear"}  # the same two under ComfyUI's names
    prediction = scheduler.get("prediction_type", "epsilon")
    betas = scheduler.get("beta_schedule", "linear")
    if prediction not in model_types or betas not in beta_schedules:
        raise ModelFileError(
            f"The scheduler config asks for {prediction} prediction with {betas} betas; "
            f"supported are {', '.join(model_types)} with {', '.join(beta_schedules)}, and flow matching."
        )
    return model_types[prediction], {
        "beta_schedule": beta_schedules[betas],
        "linear_start": scheduler.get("beta_start", 0.0001),
        "linear_end": scheduler.get("beta_end", 0.02),
        "timesteps": scheduler.get("num_train_timesteps", 1000),
    }


def dit_conditions(
    model: ClassConditionalDiT, _latents: torch.Tensor, context: torch.Tensor | None, _extra: dict[str, Any]
) -> Tensors:
    """One-hot vectors to class labels (B). All zeros, as ConditioningZeroOut makes, mean no class."""
    width = model.classes + 1
    if context is None or context.shape[1:] != (1, width):
        raise Refused("This DiT draws classes, not text.", "Connect a DiT Class Label node made with this model.")
    one_hot = context[:, 0].float()
    if not one_hot.isfinite().all():
        raise Refused("The conditioning holds NaN or infinite values; the node that made it went wrong.")
    zeroed = (one_hot == 0).all(1)
    if not (zeroed | ((one_hot == 1).sum(1) == 1) & ((one_hot != 0).sum(1) == 1)).all():
        raise Refused("DiT class labels can't be averaged or blended.", "Use one DiT Class Label a conditioning.")
    return {"class_labels": one_hot.argmax(1).masked_fill(zeroed, model.classes)}


register(HostFamily("DiTTransformer2DModel", build_dit, dit_conditions, lambda _: {"_class_name": "DDIMScheduler"}))
