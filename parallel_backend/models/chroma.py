"""Chroma (https://huggingface.co/lodestones/Chroma1-HD): Flux.1 without pooled text, its modulation distilled."""

from dataclasses import replace

from . import flux
from .adapter import JOINED, JOINT, PROJ_OUT, register_adapter, usual_spec

SHARED = {
    "sides": {"image_rotary_emb": (0, "txt+img")},
    "whole": ("temb", "attention_mask", "joint_attention_kwargs"),
}
DOUBLE, SINGLE = replace(JOINT, **SHARED), replace(JOINED, **SHARED, parallel_mlp=flux.PARALLEL_MLP)
register_adapter(usual_spec("ChromaTransformer2DModel", DOUBLE, SINGLE, head=replace(PROJ_OUT, chained=False)))
