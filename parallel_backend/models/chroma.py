"""Chroma (https://huggingface.co/lodestones/Chroma1-HD): Flux.1 without pooled text, its modulation distilled."""

import torch
import torch.nn.functional as F

from . import flux
from .overlap_rows import MLP_BESIDE
from .packing import unpack
from .spec import Config, ModelSpec, SideInput, Tensors, register


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Tokens as in Flux.1. T5 embeddings (B, tokens, width); their mask (B, tokens), which is added to scores."""
    text = {"encoder_hidden_states": conditions["encoder_hidden_states"]}
    keywords, mask_BS = flux.inputs(config, latents_BCHW, sigma_B, text), conditions.get("encoder_attention_mask")
    if mask_BS is not None:
        image_tokens = keywords["hidden_states"].shape[1]
        keywords["attention_mask"] = F.pad(mask_BS.to(latents_BCHW.dtype), (0, image_tokens), value=1.0)
    return keywords


register(
    ModelSpec(
        model_class="ChromaTransformer2DModel",
        blocks=("transformer_blocks", "single_transformer_blocks"),
        streams=("hidden_states", "encoder_hidden_states"),
        returned=("encoder_hidden_states", "hidden_states"),
        joined={"single_transformer_blocks": ("encoder_hidden_states", "hidden_states")},
        self_attention={"attn": ("encoder_hidden_states", "hidden_states")},
        beside=MLP_BESIDE,
        side_inputs=(SideInput("image_rotary_emb", 0, ("encoder_hidden_states", "hidden_states")),),
        conditions=("encoder_hidden_states", "encoder_attention_mask"),
        optional=("encoder_attention_mask",),
        head="proj_out",
        widths={"encoder_hidden_states": "joint_attention_dim"},
        geometry=lambda config: (flux.channels(config), (2, 2)),
        timestep_scale=1e-3,
        inputs=inputs,
        output=lambda config, tokens, latents: unpack(tokens, latents),
    )
)
