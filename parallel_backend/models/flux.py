"""Flux.1 (https://github.com/black-forest-labs/flux): dev and schnell, Fill, Canny and Depth, Kontext."""

from dataclasses import replace

from .adapter import JOINT, register_adapter, usual_spec
from .spec import OTHER

# The MLP that runs parallel to attention in single blocks.
PARALLEL_MLP = {"proj_mlp": OTHER, "act_mlp": OTHER}
DOUBLE = replace(JOINT, sides={"image_rotary_emb": (0, "txt+img")})
register_adapter(
    usual_spec(
        "FluxTransformer2DModel",
        DOUBLE,
        replace(DOUBLE, path="single_transformer_blocks", parallel_mlp=PARALLEL_MLP),
    )
)
