"""ComfyUI's model of a class-conditional DiT: its latents, its noise, its classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.conds
import comfy.latent_formats
import comfy.model_base
import comfy.supported_models_base
import torch
from comfy.model_base import ModelType

from ...errors import ModelFileError, RequestRefused
from .module import DiT

LATENT_FORMATS = {3: comfy.latent_formats.ChromaRadiance, 4: comfy.latent_formats.SD15}
PREDICTIONS = {"epsilon": ModelType.EPS, "v_prediction": ModelType.V_PREDICTION}
BETAS = {"linear": "sqrt_linear", "scaled_linear": "linear"}  # the same two under ComfyUI's names
# The values of diffusers' config that the module requires.
ONLY = {"norm_type": "ada_norm_zero", "activation_fn": "gelu-approximate", "norm_elementwise_affine": False}


class ClassConditionalDiT(comfy.model_base.BaseModel):
    """ComfyUI's model of DiT. Its condition is a one-hot class vector (B, 1, classes + 1). Its last entry is no class.

    id2label: the names of its classes.
    """

    def __init__(self, config: DiTConfig, device: Any = None) -> None:
        super().__init__(config, config.kind, device, unet_model=DiT)  # pyright: ignore[reportArgumentType]
        self.classes: int = config.unet_config["config"]["num_embeds_ada_norm"]
        self.id2label: dict[int, str] = config.class_names

    def extra_conds(self, **given: Any) -> dict[str, Any]:
        """Converts one-hot vectors to labels (B). All zeros, as ConditioningZeroOut makes them, mean no class."""
        context = given.get("cross_attn")
        if context is None or context.shape[1:] != (1, self.classes + 1):
            raise RequestRefused(
                "This DiT draws classes, not text.", "Connect a DiT Class Label node made with this model."
            )
        one_hot = context[:, 0].float()
        if not one_hot.isfinite().all():
            raise RequestRefused("The conditioning has NaN or infinite values, so the node that made it went wrong.")
        zeroed = (one_hot == 0).all(1)
        if not (zeroed | ((one_hot == 1).sum(1) == 1) & ((one_hot != 0).sum(1) == 1)).all():
            raise RequestRefused(
                "DiT class labels can't be averaged or blended.", "Use one DiT Class Label for each conditioning."
            )
        labels = one_hot.argmax(1).masked_fill(zeroed, self.classes)
        return {"class_labels": comfy.conds.CONDRegular(labels)}

    def apply_model(self, x: Any, t: Any, *args: Any, **given: Any) -> torch.Tensor:
        """Raises RequestRefused if nodes add something inside the model, because this model has no place for it."""
        if x.ndim != 4:  # ComfyUI packs the parts of a nested latent into one line
            raise RequestRefused("The DiT takes no latent of several parts (a nested latent).", "Use a plain latent.")
        if x.shape[1] != self.diffusion_model.channels:
            raise RequestRefused(
                f"The latents have the shape {tuple(x.shape)}, and the model takes (batch, "
                f"{self.diffusion_model.channels}, height, width).",
                "Use an empty latent of that shape.",
            )
        options = given.get("transformer_options", {})
        asked = [f"the model patch {name!r}" for key in ("patches", "patches_replace") for name in options.get(key, {})]
        asked += ["a ControlNet"] if given.get("control") is not None else []
        asked += ["RoPE scaling"] if options.get("rope_options") else []
        if asked:
            raise RequestRefused(f"The class-conditional DiT cannot honour {', '.join(asked)}.", "Remove that node.")
        return super().apply_model(x, t, *args, **given)


class DiTConfig(comfy.supported_models_base.BASE):
    unet_extra_config = {}

    def __init__(self, config: dict[str, Any], scheduler: dict[str, Any], class_names: dict[int, str]) -> None:
        """See `read_folder`. Raises ModelFileError if this pack cannot run the model."""
        self.scheduler, self.class_names = scheduler, class_names
        channels = config["in_channels"]
        if channels not in LATENT_FORMATS:
            raise ModelFileError(
                f"This DiT has {channels} channels. It must have 3 (pixels) or 4 (latents of SD's VAE)."
            )
        other = [f"{name}={config[name]}" for name, value in ONLY.items() if config.get(name, value) != value]
        if other:
            raise ModelFileError(f"The DiT's config has {', '.join(other)}, which this pack does not support.")
        self.latent_format = LATENT_FORMATS[channels]
        self.kind, self.sampling_settings = noise_schedule(scheduler)
        super().__init__({"config": {**DEFAULTS, **config}})

    def get_model(self, state_dict: Any, prefix: str = "", device: Any = None) -> ClassConditionalDiT:
        return ClassConditionalDiT(self, device)


DEFAULTS = {"attention_bias": True, "norm_eps": 1e-5, "sample_size": 32}


def noise_schedule(scheduler: Mapping[str, Any]) -> tuple[ModelType, dict[str, Any]]:
    """Returns ComfyUI's model type and sampling settings for a diffusers scheduler config.

    An empty config means DiT's own schedule: epsilon prediction, linear betas.
    """
    if "FlowMatch" in scheduler.get("_class_name", ""):
        return ModelType.FLOW, {"shift": scheduler.get("shift", 1.0)}
    prediction = scheduler.get("prediction_type", "epsilon")
    betas = scheduler.get("beta_schedule", "linear")
    if prediction not in PREDICTIONS or betas not in BETAS:
        raise ModelFileError(
            f"The scheduler config asks for {prediction} prediction with {betas} betas. "
            f"Supported are {', '.join(PREDICTIONS)} with {', '.join(BETAS)}, and flow matching."
        )
    return PREDICTIONS[prediction], {
        "beta_schedule": BETAS[betas],
        "linear_start": scheduler.get("beta_start", 0.0001),
        "linear_end": scheduler.get("beta_end", 0.02),
        "timesteps": scheduler.get("num_train_timesteps", 1000),
    }
