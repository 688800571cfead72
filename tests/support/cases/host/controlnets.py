"""ControlNets of ComfyUI's, tiny, with random weights. They return lists of tensors by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.cases.host.base import Call, HostCase, guidance, image, text, with_
from tests.support.cases.host.flux import FLUX
from tests.support.cases.host.image import HUNYUAN, POOLED, SD3, UNET_1, UNET_XL_BASE, hunyuan_text
from tests.support.cases.host.qwen import CASES as QWENS
from tests.support.cases.host.qwen import ONE_FRAME, QWEN

FLUX_CONTROLNET = "comfy.ldm.flux.controlnet.ControlNetFlux"


def named(call: Callable[..., Call]) -> Callable[..., Call]:
    """The call with the latents and the timestep by name, as ComfyUI calls ControlNets."""

    def made(random: Callable[..., torch.Tensor]) -> Call:
        (x, timesteps), kwargs = call(random)
        return (), {"x": x, "timesteps": timesteps, **kwargs}

    return made


def row(
    model_class: str, config: dict[str, Any], latents: Callable, given: Callable, *hint: int, module: str = ""
) -> HostCase:
    """hint: the shape of the hint, without its batch, which is 1."""
    with_hint = with_(with_(latents, given), lambda random: {"hint": random(1, *hint)})
    return HostCase(model_class, config, named(with_hint), module)


SD35 = {
    "img_size": None, "patch_size": 2, "in_chans": 16, "attention_head_dim": 16, "num_attention_heads": 4,
    "adm_in_channels": 32, "num_layers": 3, "main_model_double": 5,
}  # fmt: skip
FUN = {
    "control_in_features": 132, "inner_dim": 64, "num_attention_heads": 4, "attention_head_dim": 16,
    "num_control_blocks": 3, "main_model_double": 3, "injection_layers": (0, 1, 2),
}  # fmt: skip
FLUX_TEXT = text(64, y=POOLED, guidance=guidance)

CONTROLNETS: dict[str, HostCase] = {
    "flux-instantx": row(FLUX_CONTROLNET, FLUX | {"latent_input": True}, image(16), FLUX_TEXT, 16, 14, 22),
    "flux-union": row(
        FLUX_CONTROLNET,
        FLUX | {"latent_input": True, "num_union_modes": 3},
        image(16),
        lambda random: {**FLUX_TEXT(random), "control_type": [1]},
        16, 14, 22,
    ),
    "flux-xlabs": row(FLUX_CONTROLNET, FLUX | {"depth_single_blocks": 0}, image(16), FLUX_TEXT, 3, 112, 176),
    "flux-mistoline": row(FLUX_CONTROLNET, FLUX | {"mistoline": True}, image(16), FLUX_TEXT, 3, 112, 176),
    "sd3": row("comfy.cldm.mmdit.ControlNet", SD3 | {"num_blocks": 2}, image(16), text(64, y=POOLED), 16, 14, 22),
    "sd35": row(
        "comfy.cldm.dit_embedder.ControlNetEmbedder", SD35 | {"double_y_emb": False}, image(16), text(64, y=POOLED),
        16, 14, 22,
    ),
    "sd35-large": row(
        "comfy.cldm.dit_embedder.ControlNetEmbedder", SD35 | {"double_y_emb": True}, image(16), text(64, y=POOLED),
        16, 14, 22,
    ),
    "qwen-image": row(
        "comfy.ldm.qwen_image.controlnet.QwenImageControlNetModel", QWEN, ONE_FRAME, text(32), 16, 1, 14, 22
    ),
    "qwen-image-fun": row(
        "comfy.ldm.qwen_image.controlnet.QwenImageFunControlNetModel", FUN, ONE_FRAME,
        lambda random: {**text(32)(random), "base_model": QWENS["qwen-image"].build()}, 16, 1, 14, 22
    ),
    "hunyuandit": row(
        "comfy.ldm.hydit.controlnet.HunYuanControlNet", HUNYUAN | {"size_cond": False, "use_style_cond": False},
        image(4), hunyuan_text, 4, 14, 22
    ),
    "sd15": row(
        "comfy.cldm.cldm.ControlNet", UNET_1 | {"hint_channels": 3}, image(4, 37, 29), text(24), 3, 296, 232
    ),
    "sdxl": row(
        "comfy.cldm.cldm.ControlNet", UNET_XL_BASE | {"hint_channels": 3}, image(4, 9, 30), text(24, y=POOLED),
        3, 72, 240
    ),
}  # fmt: skip
