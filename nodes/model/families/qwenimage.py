"""Qwen-Image and Qwen-Image-Edit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import comfy.model_base
import comfy.supported_models
import torch

from ...errors import Refused
from ..model_files import ModelDescription
from .base import HostFamily, Tensors, flow_euler, register, text_of, weightless
from .references import image_ids, reference_conditions

TIMESTEP_ZERO = "index_timestep_zero"  # as "index", and the references count as free of noise
LEAST_MASK = -1e4  # a score that leaves a token out


def build_qwenimage(model: ModelDescription) -> comfy.model_base.QwenImage:
    """Edit 2511 is trained on references without noise, which its config says, and in a file an empty tensor."""
    config = weightless(image_model="qwen_image", in_channels=model.config["in_channels"])
    made: Any = comfy.supported_models.QwenImage(config).get_model({})
    made.default_method = TIMESTEP_ZERO if model.config.get("zero_cond_t") else "index"
    return made


def qwenimage_conditions(
    model: Any, latents: torch.Tensor, context: torch.Tensor | None, extra: dict[str, Any]
) -> Tensors:
    """Qwen2.5-VL's embeddings, their mask, images to edit, and where ComfyUI has all tokens: it centres odd sizes
    otherwise than diffusers does, and begins the text behind the latents, whatever the size of the references."""
    text = text_of(context, "Qwen-Image", "its Qwen2.5-VL encoder")
    references = extra.pop("ref_latents", [])
    method: str = extra.pop("ref_latents_method", model.default_method)
    first = max((size + 1) // 2 // 2 for size in latents.shape[-2:])
    text_ids = torch.arange(first, first + text.shape[1])[:, None].expand(len(text), -1, 3)
    placing = {TIMESTEP_ZERO: "index", "uxo": "offset"}.get(method, method)
    conditions = {
        "encoder_hidden_states": text,
        "image_ids": image_ids(latents, references, placing, centred=True),
        "text_ids": text_ids,
    }
    if "attention_mask" in extra:
        conditions["encoder_hidden_states_mask"] = text_mask(extra.pop("attention_mask"))
    if references:
        conditions["clean_references"] = torch.full((len(text),), int(method == TIMESTEP_ZERO))
        conditions |= reference_conditions(references)
    return conditions


def text_mask(mask_BT: torch.Tensor) -> torch.Tensor:
    """1 for the tokens that count. ComfyUI's masks are integers of 0 and 1, or floats that are added to scores.

    Raises Refused for one that only weakens tokens.
    """
    if not mask_BT.is_floating_point():
        return mask_BT
    if ((mask_BT != 0) & (mask_BT > LEAST_MASK)).any():
        raise Refused(
            "The parallel Qwen-Image cannot weight the text's tokens by a mask.", "Remove the node that does."
        )
    return (mask_BT == 0).long()


def qwenimage_schedule(_config: Mapping[str, Any]) -> dict[str, object]:
    size = {"base_shift": 0.5, "max_shift": 0.9, "base_image_seq_len": 256, "max_image_seq_len": 8192}
    return flow_euler(shift=1.0, use_dynamic_shifting=True, shift_terminal=0.02, **size)


register(
    HostFamily(
        "QwenImageTransformer2DModel",
        build_qwenimage,
        qwenimage_conditions,
        qwenimage_schedule,
    )
)
