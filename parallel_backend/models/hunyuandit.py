"""HunyuanDiT 1.0 to 1.2 (https://arxiv.org/abs/2405.08748)."""

from typing import Any

import torch

from .rotary import rotary_2d
from .spec import Config, ModelSpec, SideInput, Tensors, needs, register

BASE_LATENT_SIZE = 64
TEXTS = {"encoder_hidden_states": "cross_attention_dim", "encoder_hidden_states_t5": "cross_attention_dim_t5"}
MASKS = ("text_embedding_mask", "text_embedding_mask_t5")
META = ("image_meta_size", "style")


def inputs(config: Config, latents_BCHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """CLIP and T5 embeddings (B, tokens, width), their masks (B, tokens); image sizes (B, 6), style (B,) up to 1.1."""
    rotary = rotary_2d(config, latents_BCHW, BASE_LATENT_SIZE // config["patch_size"])
    timestep_B = timestep_B.to(latents_BCHW.dtype)
    return {"hidden_states": latents_BCHW, "timestep": timestep_B, "image_rotary_emb": rotary, **conditions}


register(
    ModelSpec(
        model_class="HunyuanDiT2DModel",
        blocks=("blocks",),
        streams=("hidden_states",),
        self_attention={"attn1": ("hidden_states",)},
        side_inputs=(SideInput("image_rotary_emb", 0, ("hidden_states",)),),
        conditions=(*TEXTS, *MASKS, *META),
        optional=META,
        head="proj_out",
        widths=TEXTS,
        skips="skip",
        check=needs(**dict.fromkeys(META, lambda config: config["use_style_cond_and_image_meta_size"])),
        inputs=inputs,
        output=lambda config, sample, latents: sample[:, : config["in_channels"]],
    )
)
