"""UNets as people have them, tiny: what each is called, and latents of sizes, aspects and batches in use."""

from __future__ import annotations

import torch

from tests.support.cases.host.image import STAGE_B, STAGE_C, SVD, UNET_1, UNET_UPSCALER, UNET_XL_BASE
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


UNETS = {
    "sd15": StockCase(MODULE, UNET_1, pictures(2, 168, 264), text(13, 24), detected_as="SD15"),
    "sd15-inpainting": StockCase(
        MODULE, UNET_1 | {"in_channels": 9}, pictures(3, 136, 200), text(13, 24), detected_as="SD15"
    ),
    "sd15-instructpix2pix": StockCase(
        MODULE,
        UNET_1 | {"in_channels": 8},
        pictures(1, 168, 256),
        text(13, 24, concat_latent_image=normal(1, 4, 21, 32)),
        detected_as="SD15_instructpix2pix",
    ),
    "sd2": StockCase(MODULE, SD2, pictures(2, 264, 168), text(13, 24), detected_as="SD20"),
    "sd2-unclip": StockCase(
        MODULE,
        SD2 | {"num_classes": "sequential", "adm_in_channels": 2048},
        pictures(1, 200, 168),
        text(13, 24, **{"unclip unclip_conditioning": normal(1, 1024)}),
        detected_as="SD21UnclipH",
    ),
    "lotus": StockCase(
        MODULE,
        SD2 | {"num_classes": "sequential", "adm_in_channels": 4},
        pictures(1, 168, 136),
        text(13, 24),
        detected_as="LotusD",
    ),
    "zero123": StockCase(
        MODULE,
        UNET_1 | {"in_channels": 8},
        pictures(2, 136, 200),
        text(1, 28, concat_latent_image=normal(1, 4, 17, 25)),
        beside={"cc_projection.weight": (24, 28), "cc_projection.bias": (24,)},
        detected_as="Stable_Zero123",
    ),
    "x4-upscaler": StockCase(
        MODULE,
        UPSCALER,
        (1, 4, 37, 50),
        text(13, 24, concat_image=normal(1, 3, 37, 50), noise_augmentation=lambda _: torch.tensor(0.2)),
        detected_as="SD_X4Upscaler",
    ),
    "sdxl": StockCase(
        MODULE, SDXL, pictures(1, 264, 200), text(13, 24, pooled=normal(1, 1280)), cfg=1.0, detected_as="SDXL"
    ),
    "sdxl-inpainting": StockCase(
        MODULE,
        SDXL | {"in_channels": 9},
        pictures(1, 200, 328),
        text(13, 24, pooled=normal(1, 1280)),
        detected_as="SDXL",
    ),
    "sdxl-instructpix2pix": StockCase(
        MODULE,
        SDXL | {"in_channels": 8},
        pictures(1, 264, 136),
        text(13, 24, pooled=normal(1, 1280), concat_latent_image=normal(1, 4, 33, 17)),
        detected_as="SDXL_instructpix2pix",
    ),
    "koala": StockCase(
        MODULE, KOALA, pictures(1, 136, 264), text(13, 24, pooled=normal(1, 1280)), detected_as="KOALA_700M"
    ),
    "sdxl-refiner": StockCase(
        MODULE,
        REFINER,
        pictures(1, 328, 200),
        text(13, 24, pooled=normal(1, 1280)),
        detected_as="SDXLRefiner",
        dtype=torch.float16,
    ),
    "ssd-1b": StockCase(
        MODULE,
        WITHOUT_MIDDLE,
        pictures(2, 136, 200),
        text(13, 24, pooled=normal(1, 1280)),
        detected_as="SSD1B",
        dtype=torch.float16,
    ),
    "cascade-c": StockCase(
        "cascade.stage_c.StageC",
        STAGE_C | {"c_clip_img": 768},
        (2, 16, 11, 14),
        text(13, 24, pooled=normal(1, 24)),
        detected_as="Stable_Cascade_C",
    ),
    "cascade-b": StockCase(
        "cascade.stage_b.StageB",
        STAGE_B,
        (1, 4, 80, 48),
        text(13, 24, pooled=normal(1, 24), stable_cascade_prior=normal(1, 16, 7, 5)),
        detected_as="Stable_Cascade_B",
    ),
    # Frames take the place of a batch.
    "svd": StockCase(
        MODULE,
        VIDEO,
        pictures(3, 136, 168),
        text(1, 24, concat_latent_image=normal(1, 4, 17, 21)),
        detected_as="SVD_img2vid",
        dtype=torch.float16,
    ),
    "sv3d": StockCase(
        MODULE,
        VIDEO | {"adm_in_channels": 1280},
        pictures(3, 168, 168),
        text(
            1,
            24,
            concat_latent_image=normal(1, 4, 21, 21),
            elevation=lambda _: torch.tensor(10.0),
            azimuth=lambda _: torch.tensor(120.0),
        ),
        detected_as="SV3D_p",
    ),
}
# Latents of pictures of 512 to 1536 pixels a side. Cascade's have 42 and 4 pixels for each of the latents', the
# upscaler's 4.
SIZES_IN_USE = {
    "sd15": pictures(2, 520, 648),
    "sd15-inpainting": pictures(1, 904, 512),
    "sd15-instructpix2pix": pictures(1, 512, 776),
    "sd2": pictures(3, 776, 600),
    "sd2-unclip": pictures(1, 1160, 768),
    "lotus": pictures(2, 768, 1032),
    "zero123": pictures(3, 520, 512),
    "x4-upscaler": (2, 4, 133, 301),
    "sdxl": pictures(1, 1536, 840),
    "sdxl-inpainting": pictures(2, 1000, 1160),
    "sdxl-instructpix2pix": pictures(1, 640, 1536),
    "koala": pictures(2, 1352, 768),
    "sdxl-refiner": pictures(1, 832, 1224),
    "ssd-1b": pictures(3, 888, 1152),
    "cascade-c": (3, 16, 36, 24),
    "cascade-b": (1, 4, 208, 320),
    "svd": pictures(3, 576, 1024),
    "sv3d": pictures(3, 584, 576),
}
