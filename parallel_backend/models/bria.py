"""Bria 3 (https://huggingface.co/briaai/BRIA-3.2): Flux's blocks without pooled text and guidance."""

from dataclasses import replace

from .adapter import JOINT, register_adapter, usual_spec
from .flux import PARALLEL_MLP

DOUBLE = replace(JOINT, sides={"image_rotary_emb": (0, "txt+img")}, whole=("temb",), refused=("attention_kwargs",))
register_adapter(
    usual_spec(
        "BriaTransformer2DModel",
        DOUBLE,
        replace(DOUBLE, path="single_transformer_blocks", parallel_mlp=PARALLEL_MLP),
    )
)
