"""UNets as people have them, tiny: what each is called, and latents that do not divide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tests.support.cases.host.image import SVD, UNET_1, UNET_UPSCALER, UNET_XL_BASE
from tests.support.cases.stock_cases import StockCase, normal, text

MODULE = "modules.diffusionmodules.openaimodel.UNetModel"
# ComfyUI gives these heads of 64 channels, of which two ranks need two.
SDXL = UNET_XL_BASE | {"adm_in_channels": 2816, "model_channels": 64}
REFINER = SDXL | {
    **{"adm_in_channels": 2560, "num_res_blocks": [1, 1, 1, 1], "channel_mult": [1, 2, 4, 4]},
    **{"transformer_depth": [0, 2, 2, 0], "transformer_depth_output": [0, 0, 2, 2, 2, 2, 0, 0]},
}
WITHOUT_MIDDLE = SDXL | {"transformer_depth_middle": -1}  # as distilled ones are
KOALA = SDXL | {
    **{"num_res_blocks": [1, 1, 1], "transformer_depth": [0, 2, 5], "transformer_depth_output": [0, 0, 2, 2, 5, 5]},
    **{"transformer_depth_middle": -2},
}
SD2 = UNET_1 | {
    **{"model_channels": 64, "num_heads": -1, "num_head_channels": 64, "use_linear_in_transformer": True},
    **{"transformer_depth": [0, 0, 1, 1, 1, 1, 0, 0]},
    **{"transformer_depth_output": [0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0]},
}
UPSCALER = UNET_UPSCALER | {
    **{"in_channels": 7, "num_classes": 1000, "num_heads": 8, "use_linear_in_transformer": True},
    **{"disable_self_attentions": [True, True, True, False], "transformer_depth": [0, 0, 1, 1, 1, 1, 1, 1]},
    **{"transformer_depth_output": [0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1]},
}
VIDEO = SVD | {
    **{"adm_in_channels": 768, "model_channels": 64, "transformer_depth": [0, 1, 1, 0]},
    **{"transformer_depth_output": [0, 0, 1, 1, 1, 1, 0, 0]},
}


def pictures(batch: int, height: int, width: int) -> tuple[int, ...]:
    """The latents of pictures with these sides in pixels."""
    return (batch, 4, height // 8, width // 8)


def unet(detected_as: str, config: Mapping[str, Any], latent: tuple[int, ...], **more: Any) -> StockCase:
    """more: fields of the case; or beside the text."""
    fields = {name: more.pop(name) for name in ("cfg", "dtype", "beside") if name in more}
    tokens, width = more.pop("tokens", 13), more.pop("width", 24)
    return StockCase(MODULE, config, latent, text(tokens, width, **more), detected_as=detected_as, **fields)


POOLED = {"pooled": normal(1, 1280)}
UNETS = {
    "sd15": unet("SD15", UNET_1, pictures(2, 168, 264)),
    "sd15-inpainting": unet("SD15", UNET_1 | {"in_channels": 9}, pictures(3, 136, 200)),
    "sd15-instructpix2pix": unet(
        "SD15_instructpix2pix",
        UNET_1 | {"in_channels": 8},
        pictures(1, 168, 256),
        concat_latent_image=normal(1, 4, 21, 32),
    ),
    "sd2": unet("SD20", SD2, pictures(2, 264, 168)),
    "sd2-unclip": unet(
        "SD21UnclipH",
        SD2 | {"num_classes": "sequential", "adm_in_channels": 2048},
        pictures(1, 200, 168),
        **{"unclip unclip_conditioning": normal(1, 1024)},
    ),
    "lotus": unet("LotusD", SD2 | {"num_classes": "sequential", "adm_in_channels": 4}, pictures(1, 168, 136)),
    "zero123": unet(
        "Stable_Zero123",
        UNET_1 | {"in_channels": 8},
        pictures(2, 136, 200),
        tokens=1,
        width=28,
        concat_latent_image=normal(1, 4, 17, 25),
        beside={"cc_projection.weight": (24, 28), "cc_projection.bias": (24,)},
    ),
    "x4-upscaler": unet(
        "SD_X4Upscaler",
        UPSCALER,
        (1, 4, 37, 50),
        concat_image=normal(1, 3, 37, 50),
        noise_augmentation=lambda _: torch.tensor(0.2),
    ),
    "sdxl": unet("SDXL", SDXL, pictures(1, 264, 200), **POOLED, cfg=1.0),
    "sdxl-inpainting": unet("SDXL", SDXL | {"in_channels": 9}, pictures(1, 200, 328), **POOLED),
    "sdxl-instructpix2pix": unet(
        "SDXL_instructpix2pix",
        SDXL | {"in_channels": 8},
        pictures(1, 264, 136),
        **POOLED,
        concat_latent_image=normal(1, 4, 33, 17),
    ),
    "koala": unet("KOALA_700M", KOALA, pictures(1, 136, 264), **POOLED),
    "sdxl-refiner": unet("SDXLRefiner", REFINER, pictures(1, 328, 200), **POOLED, dtype=torch.float16),
    "ssd-1b": unet("SSD1B", WITHOUT_MIDDLE, pictures(2, 136, 200), **POOLED, dtype=torch.float16),
    # Frames take the place of a batch.
    "svd": unet(
        "SVD_img2vid",
        VIDEO,
        pictures(3, 136, 168),
        tokens=1,
        concat_latent_image=normal(1, 4, 17, 21),
        dtype=torch.float16,
    ),
    "sv3d": unet(
        "SV3D_p",
        VIDEO | {"adm_in_channels": 1280},
        pictures(3, 168, 168),
        tokens=1,
        concat_latent_image=normal(1, 4, 21, 21),
        elevation=lambda _: torch.tensor(10.0),
        azimuth=lambda _: torch.tensor(120.0),
    ),
}
