"""Ovis-Image (https://huggingface.co/AIDC-AI/Ovis-Image-7B): Flux's blocks, whose text tokens are on a diagonal."""

from dataclasses import replace

from .adapter import JOINT, register_adapter, usual_spec

DOUBLE = replace(JOINT, sides={"image_rotary_emb": (0, "txt+img")})
register_adapter(usual_spec("OvisImageTransformer2DModel", DOUBLE, replace(DOUBLE, path="single_transformer_blocks")))
