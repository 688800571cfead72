"""Sana (https://arxiv.org/abs/2410.10629). Its attention is linear, and it convolves over the image in every block:
only rows of the batch, and blocks, can be shared exactly."""

from typing import Any

from .adapter import Adapter, Config, Tensors, needs, register_adapter, usual_spec
from .spec import single_stream


def inputs(config: Config, latents: Any, timestep_B: Any, conditions: Tensors) -> dict[str, Any]:
    """Gemma's embeddings (B, tokens, width), and a mask (B, tokens) if not all count."""
    scaled_B = timestep_B * config["timestep_scale"]
    return {"hidden_states": latents, "timestep": scaled_B, "encoder_attention_mask": None, **conditions}


BLOCKS = single_stream(
    "transformer_blocks",
    "hidden_states",
    "attn1",
    stream="img",
    whole=("encoder_hidden_states", "encoder_attention_mask", "timestep", "height", "width"),
    refused=("attention_mask",),
    chained=True,
)
register_adapter(
    Adapter(
        usual_spec(
            "SanaTransformer2DModel",
            BLOCKS,
            head=None,
            image="",
            unshared="its attention is linear, and it convolves over the image in every block",
        ),
        conditions=("encoder_hidden_states", "encoder_attention_mask", "guidance"),
        optional=("encoder_attention_mask", "guidance"),
        widths={"encoder_hidden_states": "caption_channels"},
        check=needs(guidance=lambda config: config["guidance_embeds"]),
        inputs=inputs,
        output=lambda config, sample, latents: sample[:, : latents.shape[1]],
    )
)
