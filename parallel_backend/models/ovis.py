"""Ovis-Image (https://huggingface.co/AIDC-AI/Ovis-Image-7B): Flux's blocks, whose text tokens are on a diagonal."""

from dataclasses import replace

import torch

from .adapter import JOINT, Adapter, Config, Tensors, register_adapter, usual_spec
from .flux import ids
from .packing import pack, unpack


def inputs(_config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Patches of 2×2 become tokens. The text token number n is at (0, n, n). sigma: 0 to 1."""
    tokens_BSD, grids = pack(latents_BCHW, {})
    image_ids = ids(grids, latents_BCHW.device)
    places = torch.arange(conditions["encoder_hidden_states"].shape[1], device=image_ids.device)
    txt_ids = torch.stack([torch.zeros_like(places), places, places], 1)
    return {"hidden_states": tokens_BSD, "img_ids": image_ids, "txt_ids": txt_ids, "timestep": sigma_B, **conditions}


DOUBLE = replace(JOINT, sides={"image_rotary_emb": (0, "txt+img")})
register_adapter(
    Adapter(
        usual_spec("OvisImageTransformer2DModel", DOUBLE, replace(DOUBLE, path="single_transformer_blocks")),
        conditions=("encoder_hidden_states",),
        widths={"encoder_hidden_states": "joint_attention_dim"},
        geometry=lambda config: (config["in_channels"] // 4, (2, 2)),
        timestep_scale=1e-3,
        inputs=inputs,
        output=lambda _config, tokens, latents: unpack(tokens, latents),
    )
)
