"""Model files of the example workflows at the sizes at which they are published: all blocks, as they are stored.

`model_files` has what tells one model from another; what is here is how many blocks there are, and of what dtype. Of a
file that is larger than its matrices in fp8, some are in bf16; which is not known.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.support.templates.examples import TABLE
from tests.support.templates.model_files import ModelFile, model_file

# By the name of the file: what ComfyUI's class calls its numbers of blocks.
DEPTHS = {
    "flux-2-klein-base-9b-fp8.safetensors": {"depth": 8, "depth_single_blocks": 24},
    "flux1-dev.safetensors": {"depth": 19, "depth_single_blocks": 38},
    "flux2_dev_fp8mixed.safetensors": {"depth": 8, "depth_single_blocks": 48},
    "krea2_turbo_fp8_scaled.safetensors": {"layers": 28},
    "ltx-2-19b-distilled-fp8.safetensors": {"num_layers": 48},
    "minimax_h3_fl2va_pruned_int8_convrot.safetensors": {  # in fp8 here, which is as large
        **{"num_layers": 50, "token_refiner_num_layers": 2, "adaln_curve_grid": 1025, "time_embed_dim": 8}
    },
    "qwen_image_edit_2511_fp8mixed.safetensors": {"num_layers": 60},
    "qwen_image_fp8_e4m3fn.safetensors": {"num_layers": 60},
    "sd3.5_large_fp8_scaled.safetensors": {},
    "sd_xl_base_1.0.safetensors": {},
    "sdxl_lightning_4step.safetensors": {},
    "wan2.1_t2v_1.3B_fp16.safetensors": {"num_layers": 30},
    "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors": {"num_layers": 40},
    "z_image_turbo_bf16.safetensors": {"n_layers": 30},
}
# ComfyUI's own templates have none of it.
PIXART = ModelFile(
    "PixArt-Sigma-XL-2-1024-MS.safetensors", "PixArtSigma", {"model_max_length": 300, "micro_condition": False}
)
PUBLISHED = (PIXART.names, *DEPTHS)
MIXED = (
    *("flux2_dev_fp8mixed.safetensors", "flux-2-klein-base-9b-fp8.safetensors"),
    "minimax_h3_fl2va_pruned_int8_convrot.safetensors",
)


def published(name: str) -> ModelFile:
    """What is in the file of this name. Raises KeyError for one that no example workflow has."""
    if name == PIXART.names:
        return PIXART
    kind = model_file(name)
    assert kind, name
    stored = torch.float8_e4m3fn if "fp8" in name or "int8" in name else torch.bfloat16
    size = next(1e9 * example.model.gb for example in TABLE.values() if example.files and example.model.name == name)
    return replace(kind, sizes={**kind.sizes, **DEPTHS[name]}, stored=stored, size=size if name in MIXED else 0)
