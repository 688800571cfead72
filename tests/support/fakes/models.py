"""Models at their published sizes, on both libraries: "diffusers", and "comfyui" for the classes that run files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Model:
    """A published model and a request as users make them.

    config: where it is not what the class takes by itself. depths: its kinds of blocks and how many there are, by
    their names in the config. billions: of parameters. hidden: the width of its tokens.
    channels, patch: of its latents, and what of them becomes a token. text: tokens of text that its blocks have beside
    the image's. conditions: shapes of what it takes beside latents and timesteps, without the batch.
    heads: of attention. rows: of a step: two where cond and uncond run. latents: sides of the request's.
    """

    library: str
    model_class: str
    config: Mapping[str, Any]
    depths: Mapping[str, int]
    billions: float
    hidden: int
    heads: int
    channels: int
    patch: tuple[int, ...]
    text: int
    conditions: Mapping[str, tuple[int, ...]]
    rows: int
    latents: tuple[int, ...]

    @property
    def blocks(self) -> int:
        return sum(self.depths.values())

    @property
    def image_tokens(self) -> int:
        return math.prod(length // side for length, side in zip(self.latents, self.patch, strict=True))

    def shortened(self, blocks: int) -> Model:
        """The same with so many blocks of each kind."""
        return replace(self, depths=dict.fromkeys(self.depths, blocks))

    def config_of(self) -> dict[str, Any]:
        return {**self.config, **self.depths}


FLUX = {
    "depths": {"num_layers": 19, "num_single_layers": 38},
    "billions": 11.90,
    "hidden": 3072,
    "heads": 24,
    "channels": 16,
    "patch": (2, 2),
    "text": 512,
    "rows": 1,
    "latents": (128, 128),  # 1024²
}
WAN = {
    "depths": {"num_layers": 40},
    "billions": 14.29,
    "hidden": 5120,
    "heads": 40,
    "channels": 16,
    "patch": (1, 2, 2),
    "text": 0,
    "rows": 2,
    "latents": (21, 60, 104),  # 81 frames of 832 × 480
}
QWEN = {
    "depths": {"num_layers": 60},
    "billions": 20.43,
    "hidden": 3072,
    "heads": 24,
    "channels": 16,
    "patch": (1, 2, 2),
    "text": 256,
    "rows": 2,
    "latents": (1, 166, 166),  # 1328²
}
DIFFUSERS = {
    "flux-dev": Model(
        "diffusers",
        "FluxTransformer2DModel",
        {"guidance_embeds": True},
        conditions={"encoder_hidden_states": (512, 4096), "pooled_projections": (768,), "guidance": ()},
        **FLUX,
    ),
    "wan-14b": Model(
        "diffusers",
        "WanTransformer3DModel",
        {},
        conditions={"encoder_hidden_states": (512, 4096)},
        **WAN,
    ),
    "qwen-image": Model(
        "diffusers",
        "QwenImageTransformer2DModel",
        {},
        conditions={"encoder_hidden_states": (256, 3584)},
        **QWEN,
    ),
}  # fmt: skip
COMFYUI = {
    "flux-dev": Model(
        "comfyui",
        "comfy.ldm.flux.model.Flux",
        {
            "image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096,
            "hidden_size": 3072, "mlp_ratio": 4.0, "num_heads": 24, "axes_dim": [16, 56, 56], "theta": 10000,
            "patch_size": 2, "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": [],
        },
        conditions={"context": (512, 4096), "y": (768,), "guidance": ()},
        **FLUX | {"depths": {"depth": 19, "depth_single_blocks": 38}},
    ),
    "wan-14b": Model(
        "comfyui",
        "comfy.ldm.wan.model.WanModel",
        {"dim": 5120, "ffn_dim": 13824, "num_heads": 40},
        conditions={"context": (512, 4096)},
        **WAN,
    ),
    "qwen-image": Model(
        "comfyui",
        "comfy.ldm.qwen_image.model.QwenImageTransformer2DModel",
        {},
        conditions={"context": (256, 3584)},
        **QWEN,
    ),
}  # fmt: skip
LIBRARIES = {"diffusers": DIFFUSERS, "comfyui": COMFYUI}
