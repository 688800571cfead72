"""CogVideoX (https://arxiv.org/abs/2408.06072) 1.0 and 1.5, from text or from an image."""

from typing import Any

import torch

from .adapter import Adapter, Config, Tensors, needs, register_adapter, usual_spec
from .rotary import rotary_3d
from .spec import BlockList


def inputs(
    config: Config, latents_BCFHW: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors
) -> dict[str, Any]:
    """T5 embeddings (B, tokens, width); image_latents (B, C, F, H, W), which the model sees beside the latents."""
    seen = [latents_BCFHW, *(value for name, value in conditions.items() if name == "image_latents")]
    return {
        "hidden_states": torch.cat(seen, 1).transpose(1, 2),
        "timestep": timestep_B,
        "encoder_hidden_states": conditions["encoder_hidden_states"],
        "ofs": latents_BCFHW.new_full((1,), 2.0) if config["ofs_embed_dim"] else None,
        "image_rotary_emb": rotary_3d(config, latents_BCFHW) if config["use_rotary_positional_embeddings"] else None,
    }


BLOCKS = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn1": "txt+img"},
    sides={"image_rotary_emb": (0, "img")},
    whole=("temb", "attention_kwargs"),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec("CogVideoXTransformer3DModel", BLOCKS, head=None),
        conditions=("encoder_hidden_states", "image_latents"),
        optional=("image_latents",),
        frames_first=True,
        widths={"encoder_hidden_states": "text_embed_dim"},
        geometry=lambda config: (
            config["out_channels"],
            (config.get("patch_size_t") or 1, *[config["patch_size"]] * 2),
        ),
        check=needs(image_latents=lambda config: config["in_channels"] - config["out_channels"]),
        inputs=inputs,
        output=lambda config, sample_BFCHW, latents_BCFHW: sample_BFCHW.transpose(1, 2),
    )
)
