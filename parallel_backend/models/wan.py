"""Wan 2.1 and 2.2 (https://arxiv.org/abs/2503.20314), from text, from an image, or between two images."""

import math
from typing import Any

import torch

from .spec import Config, ModelSpec, SideInput, Tensors, needs, register


def inputs(config: Config, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """UMT5's and CLIP's embeddings (B, tokens, width), and image_latents (B, C, F, H, W): the mask, then the image."""
    if timestep_B.ndim == 2:  # one a frame, where some are kept; the class takes one a token
        frames, *sides = config["patch_size"]
        tokens = math.prod(size // side for size, side in zip(latents.shape[3:], sides, strict=True))
        timestep_B = timestep_B[:, ::frames].repeat_interleave(tokens, 1)
    keywords = {"timestep": timestep_B, **conditions}
    if "image_latents" in conditions:
        latents = torch.cat((latents, keywords.pop("image_latents")), 1)
    if config["pos_embed_seq_len"]:
        image_BSD = keywords["encoder_hidden_states_image"]
        keywords["encoder_hidden_states_image"] = image_BSD.unflatten(1, (2, -1)).flatten(0, 1)
    return {"hidden_states": latents, **keywords}


register(
    ModelSpec(
        model_class="WanTransformer3DModel",
        blocks=("blocks",),
        streams=("hidden_states",),
        self_attention={"attn1": ("hidden_states",)},
        side_inputs=(SideInput("rotary_emb", 1, ("hidden_states",)), SideInput("temb", 1, ("hidden_states",), ndim=4)),
        conditions=("encoder_hidden_states", "encoder_hidden_states_image", "image_latents"),
        optional=("encoder_hidden_states_image", "image_latents"),
        widths={"encoder_hidden_states": "text_dim"},
        geometry=lambda config: (config["out_channels"], tuple(config["patch_size"])),
        check=needs(
            encoder_hidden_states_image=lambda config: config["pos_embed_seq_len"] or bool(config["image_dim"]),
            image_latents=lambda config: config["in_channels"] - config["out_channels"],
        ),
        head="proj_out",
        head_unless="temb",
        timestep_by_frame=True,
        inputs=inputs,
        output=lambda config, sample, latents: sample,
    )
)
