"""LTX-Video (https://arxiv.org/abs/2501.00103) from text: 0.9.0 and 0.9.1, and later ones, which need video_coords."""

import torch

from .adapter import Adapter, Config, Tensors, register_adapter, usual_spec
from .spec import single_stream


def inputs(config: Config, latents: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """T5 embeddings (B, tokens, width), their mask (B, tokens), and frames per second (B). sigma: 0 to 1. video_coords:
    whole numbers (B, 3, tokens): the frame, row and column of the video where each token begins."""
    keywords = {"timestep": 1000 * sigma_B, "encoder_attention_mask": None, **conditions}
    seconds_B = 1 / keywords.pop("frame_rate").float()
    if "video_coords" in keywords:
        keywords["video_coords"] = coords_B3S = keywords["video_coords"].to(torch.float32, copy=True)
        coords_B3S[:, 0] *= seconds_B[:, None]
    else:
        keywords.update(zip(("num_frames", "height", "width"), latents.shape[2:], strict=True))
        keywords["rope_interpolation_scale"] = (8 * seconds_B[:, None, None, None, None], 32, 32)  # the VAE's
    return {"hidden_states": latents.flatten(2).transpose(1, 2), **keywords}


BLOCKS = single_stream(
    "transformer_blocks",
    "hidden_states",
    "attn1",
    stream="img",
    sides={"image_rotary_emb": (1, "img"), "temb": (1, "img")},
    whole=("encoder_hidden_states", "encoder_attention_mask"),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec("LTXVideoTransformer3DModel", BLOCKS),
        conditions=("encoder_hidden_states", "encoder_attention_mask", "frame_rate", "video_coords"),
        optional=("encoder_attention_mask", "video_coords"),
        exact=("frame_rate",),
        widths={"encoder_hidden_states": "caption_channels"},
        geometry=lambda config: (config["in_channels"], (1, 1, 1)),
        timestep_scale=1e-3,
        inputs=inputs,
        output=lambda config, tokens, latents: tokens.transpose(1, 2).reshape(latents.shape),
    )
)
