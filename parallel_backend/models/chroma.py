"""Chroma (https://huggingface.co/lodestones/Chroma1-HD): Flux.1 without pooled text, its modulation distilled."""

from dataclasses import replace

import torch
import torch.nn.functional as F

from . import flux
from .adapter import JOINED, JOINT, PROJ_OUT, Adapter, Config, Tensors, register_adapter, usual_spec
from .packing import unpack


def inputs(config: Config, latents_BCHW: torch.Tensor, sigma_B: torch.Tensor, conditions: Tensors) -> dict:
    """Tokens as in Flux.1. T5 embeddings (B, tokens, width); their mask (B, tokens), which is added to scores."""
    text = {"encoder_hidden_states": conditions["encoder_hidden_states"]}
    keywords, mask_BS = flux.inputs(config, latents_BCHW, sigma_B, text), conditions.get("encoder_attention_mask")
    if mask_BS is not None:
        image_tokens = keywords["hidden_states"].shape[1]
        keywords["attention_mask"] = F.pad(mask_BS.to(latents_BCHW.dtype), (0, image_tokens), value=1.0)
    return keywords


SHARED = {
    "sides": {"image_rotary_emb": (0, "txt+img")},
    "whole": ("temb", "attention_mask", "joint_attention_kwargs"),
}
DOUBLE, SINGLE = replace(JOINT, **SHARED), replace(JOINED, **SHARED, parallel_mlp=flux.PARALLEL_MLP)
register_adapter(
    Adapter(
        usual_spec("ChromaTransformer2DModel", DOUBLE, SINGLE, head=replace(PROJ_OUT, chained=False)),
        conditions=("encoder_hidden_states", "encoder_attention_mask"),
        optional=("encoder_attention_mask",),
        widths={"encoder_hidden_states": "joint_attention_dim"},
        geometry=lambda config: (flux.channels(config), (2, 2)),
        timestep_scale=1e-3,
        inputs=inputs,
        output=lambda config, tokens, latents: unpack(tokens, latents),
    )
)
