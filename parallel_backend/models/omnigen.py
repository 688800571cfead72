"""OmniGen 1 (https://arxiv.org/abs/2409.11340) from text. Text, time and image are one sequence."""

import torch

from .adapter import Adapter, Config, Tensors, register_adapter, usual_spec
from .spec import single_stream


def inputs(_config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Of the text: input_ids (B, tokens). Of text, time and image: attention_mask (B, all, all), and position_ids (B,
    all), of which the class takes the first row for all."""
    return {
        "hidden_states": latents_BCHW,
        "timestep": sigma_B,
        "input_img_latents": [],
        "input_image_sizes": {},
        **conditions,
    }


BLOCKS = single_stream(
    "layers",
    "hidden_states",
    "self_attn",
    sides={"image_rotary_emb": (0, "x")},
    whole=("attention_mask",),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec(
            "OmniGenTransformer2DModel",
            BLOCKS,
            head=None,
            image="",
            head_dim="",
            width="config.hidden_size",
            first_rows=("position_ids",),
        ),
        conditions=("input_ids", "attention_mask", "position_ids"),
        inputs=inputs,
    )
)
