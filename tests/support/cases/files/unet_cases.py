"""UNets as people have them, tiny: what each is called, and latents of sizes, aspects and batches in use."""

from __future__ import annotations

from tests.support.cases.host.image import STAGE_B, STAGE_C, SVD, UNET_1, UNET_XL_BASE
from tests.support.cases.stock_cases import StockCase, normal, text

MODULE = "modules.diffusionmodules.openaimodel.UNetModel"
# ComfyUI gives these heads of 64 channels, of which two ranks need two.
SDXL = UNET_XL_BASE | {"adm_in_channels": 2816, "model_channels": 64}
REFINER = SDXL | {
    **{"adm_in_channels": 2560, "num_res_blocks": [1, 1, 1, 1], "channel_mult": [1, 2, 4, 4]},
    **{"transformer_depth": [0, 2, 2, 0], "transformer_depth_output": [0, 0, 2, 2, 2, 2, 0, 0]},
}
WITHOUT_MIDDLE = SDXL | {"transformer_depth_middle": -1}  # as distilled ones are


def pictures(batch: int, height: int, width: int) -> tuple[int, ...]:
    """The latents of pictures with these sides in pixels."""
    return (batch, 4, height // 8, width // 8)


UNETS = {
    "sd15": StockCase(MODULE, UNET_1, pictures(2, 168, 264), text(13, 24), detected_as="SD15"),
    "sd15-inpainting": StockCase(
        MODULE, UNET_1 | {"in_channels": 9}, pictures(3, 264, 200), text(13, 24), detected_as="SD15"
    ),
    "sd15-instructpix2pix": StockCase(
        MODULE,
        UNET_1 | {"in_channels": 8},
        pictures(1, 168, 256),
        text(13, 24, concat_latent_image=normal(1, 4, 21, 32)),
        detected_as="SD15_instructpix2pix",
    ),
    "sdxl": StockCase(
        MODULE, SDXL, pictures(1, 424, 264), text(13, 24, pooled=normal(1, 1280)), cfg=1.0, detected_as="SDXL"
    ),
    "sdxl-large": StockCase(
        MODULE, SDXL, pictures(1, 1536, 840), text(13, 24, pooled=normal(1, 1280)), cfg=1.0, detected_as="SDXL"
    ),
    "sdxl-inpainting": StockCase(
        MODULE,
        SDXL | {"in_channels": 9},
        pictures(1, 200, 328),
        text(13, 24, pooled=normal(1, 1280)),
        detected_as="SDXL",
    ),
    "sdxl-refiner": StockCase(
        MODULE, REFINER, pictures(1, 328, 200), text(13, 24, pooled=normal(1, 1280)), detected_as="SDXLRefiner"
    ),
    "ssd-1b": StockCase(
        MODULE, WITHOUT_MIDDLE, pictures(2, 200, 264), text(13, 24, pooled=normal(1, 1280)), detected_as="SSD1B"
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
        SVD
        | {"adm_in_channels": 768, "model_channels": 64, "transformer_depth": [0, 1, 1, 0]}
        | {"transformer_depth_output": [0, 0, 1, 1, 1, 1, 0, 0]},
        pictures(3, 136, 168),
        text(1, 24, concat_latent_image=normal(1, 4, 17, 21)),
        detected_as="SVD_img2vid",
    ),
}
