"""Wan 2.1 and 2.2 (https://arxiv.org/abs/2503.20314), from text, from an image, or between two images."""

import math
from typing import Any

import torch

from .adapter import Adapter, Config, Tensors, needs, register_adapter, usual_spec
from .spec import single_stream


def inputs(config: Config, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict[str, Any]:
    """UMT5's and CLIP's embeddings (B, tokens, width), and image_latents (B, C, F, H, W): the mask, then the image."""
    if timestep_B.ndim == 2:  # one per frame, if some frames are kept; the class takes one per token
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


BLOCKS = single_stream(
    "blocks",
    "hidden_states",
    "attn1",
    stream="img",
    sides={"rotary_emb": (1, "img")},
    frames={"temb": ("img", 4)},
    whole=("encoder_hidden_states",),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec("WanTransformer3DModel", BLOCKS),
        conditions=("encoder_hidden_states", "encoder_hidden_states_image", "image_latents"),
        optional=("encoder_hidden_states_image", "image_latents"),
        widths={"encoder_hidden_states": "text_dim"},
        geometry=lambda config: (config["out_channels"], tuple(config["patch_size"])),
        check=needs(
            encoder_hidden_states_image=lambda config: config["pos_embed_seq_len"] or bool(config["image_dim"]),
            image_latents=lambda config: config["in_channels"] - config["out_channels"],
        ),
        timestep_by_frame=True,
        inputs=inputs,
    )
)
