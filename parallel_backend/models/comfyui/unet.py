"""The UNet of Stable Diffusion 1 and 2, SDXL, its refiner, Stable Video Diffusion, and what is made of them; and its
ControlNets."""

from dataclasses import replace

from ..bands import TORCH, Bands
from ..spec import ModelSpec, register

LAYERS = {
    **TORCH,
    "comfy.ops": ("Conv2d", "Conv3d", "Embedding", "GroupNorm", "LayerNorm", "Linear"),
    "comfy.ldm.modules.attention": (
        *("BasicTransformerBlock", "CrossAttention", "FeedForward", "GEGLU", "SpatialTransformer"),
        "SpatialVideoTransformer",
    ),
    "comfy.ldm.modules.diffusionmodules.openaimodel": (
        *("Downsample", "ResBlock", "TimestepEmbedSequential", "UNetModel", "Upsample", "VideoResBlock"),
    ),
    "comfy.ldm.modules.diffusionmodules.util": ("AlphaBlender",),
}
BANDS = Bands(
    LAYERS,
    levels="channel_mult",
    attention={"BasicTransformerBlock": "attn1"},
    attends_to_pixels=("disable_self_attn", False),
    heads="heads",
    head_dim="dim_head",
    lists=("input_blocks.*", "middle_block", "output_blocks.*"),
    over_time=("time_stack",),
    rows=("control",),
    whole=(
        *("timesteps", "context", "y", "crossattn_controlnet", "transformer_options"),
        *("time_context", "num_video_frames", "image_only_indicator"),
    ),
    needed=("context",),
)
register(
    ModelSpec(
        "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel",
        coupled="they are the frames of one video",
        coupled_where="use_temporal_resblocks",
        unstaged="they skip from the first half to the second",
        bands=BANDS,
    )
)
# A union of several has layers that are not known here. Each rank runs it whole.
register(
    ModelSpec(
        "comfy.cldm.cldm.ControlNet",
        unstaged="it runs beside the model, which has the stages",
        bands=replace(
            BANDS,
            layers={**LAYERS, "comfy.cldm.cldm": ("ControlNet",)},
            rows=(),
            scaled={"hint": 8},
            whole=("timesteps", "context", "y", "control_type"),
        ),
    )
)
