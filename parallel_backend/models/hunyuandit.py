"""HunyuanDiT 1.0 to 1.2 (https://arxiv.org/abs/2405.08748)."""

from typing import Any

import torch

from .adapter import Adapter, Config, Tensors, needs, register_adapter, usual_spec
from .rotary import rotary_2d
from .spec import BlockList

BASE_LATENT_SIZE = 64
TEXTS = {"encoder_hidden_states": "cross_attention_dim", "encoder_hidden_states_t5": "cross_attention_dim_t5"}
MASKS = ("text_embedding_mask", "text_embedding_mask_t5")
META = ("image_meta_size", "style")


def inputs(config: Config, latents_BCHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """CLIP and T5 embeddings (B, tokens, width), their masks (B, tokens); image sizes (B, 6), style (B,) up to 1.1."""
    rotary = rotary_2d(config, latents_BCHW, BASE_LATENT_SIZE // config["patch_size"])
    timestep_B = timestep_B.to(latents_BCHW.dtype)
    return {"hidden_states": latents_BCHW, "timestep": timestep_B, "image_rotary_emb": rotary, **conditions}


BLOCKS = BlockList(
    path="blocks",
    tokens={"hidden_states": "img", "skip": "img"},
    returns="img",
    attention={"attn1": "img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("encoder_hidden_states", "temb"),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec("HunyuanDiT2DModel", BLOCKS, skips=True),
        conditions=(*TEXTS, *MASKS, *META),
        optional=META,
        widths=TEXTS,
        check=needs(**dict.fromkeys(META, lambda config: config["use_style_cond_and_image_meta_size"])),
        inputs=inputs,
        output=lambda config, sample, latents: sample[:, : config["in_channels"]],
    )
)
