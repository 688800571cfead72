"""HunyuanVideo (https://arxiv.org/abs/2412.03603), from text, or from an image in channels of its own."""

from dataclasses import replace

import torch

from .adapter import Adapter, Config, Tensors, needs, register_adapter, usual_spec
from .flux import PARALLEL_MLP
from .packing import pad_text
from .spec import BlockList


def inputs(config: Config, latents: torch.Tensor, timestep_B: torch.Tensor, conditions: Tensors) -> dict:
    """LLaMA's embeddings (B, tokens, width), their mask (B, tokens), CLIP's (B, width), and the guidance scale (B)."""
    text = pad_text(conditions, "encoder_attention_mask", least=64, needs_mask=True)
    keywords = {"hidden_states": latents, "timestep": timestep_B, **text}
    if "image_latents" in keywords:
        keywords["hidden_states"] = torch.cat((latents, keywords.pop("image_latents")), 1)
    return {**keywords, "guidance": 1000 * conditions["guidance"]} if "guidance" in conditions else keywords


DOUBLE = BlockList(
    path="transformer_blocks",
    tokens={"hidden_states": "img", "encoder_hidden_states": "txt"},
    returns=("img", "txt"),
    attention={"attn": "img+txt"},
    sides={"freqs_cis": (0, "img")},
    whole=("temb", "attention_mask", "1"),  # the first frame's tokens; only used with "0"
    refused=("0",),
    chained=True,
)
SINGLE = replace(
    DOUBLE,
    path="single_transformer_blocks",
    parallel_mlp=PARALLEL_MLP,
    sides={"image_rotary_emb": (0, "img")},
)
register_adapter(
    Adapter(
        usual_spec("HunyuanVideoTransformer3DModel", DOUBLE, SINGLE, image=""),
        conditions=(
            "encoder_hidden_states", "encoder_attention_mask", "pooled_projections", "guidance", "image_latents",
        ),
        optional=("encoder_attention_mask", "guidance", "image_latents"),
        widths={"encoder_hidden_states": "text_embed_dim", "pooled_projections": "pooled_projection_dim"},
        geometry=lambda config: (config["out_channels"], (config["patch_size_t"], *[config["patch_size"]] * 2)),
        check=needs(
            guidance=lambda config: config["guidance_embeds"],
            image_latents=lambda config: config["in_channels"] - config["out_channels"],
            first_frame=lambda config: config["image_condition_type"] == "token_replace",  # which none can bring
        ),
        inputs=inputs,
    )
)  # fmt: skip
