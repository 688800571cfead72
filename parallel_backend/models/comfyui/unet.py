"""The UNet of Stable Diffusion 1 and 2, SDXL, its refiner, Stable Video Diffusion, and what is made of them; and its
ControlNets."""

from dataclasses import replace

from ..bands import TORCH, Bands, Place
from ..spec import SKIPS, register_class

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
    attends_to_text="disable_self_attn",
    lists=("input_blocks.*", "middle_block", "output_blocks.*"),
    over_time=("time_stack",),
    rows={"control": 1},
    whole=(
        *("timesteps", "context", "y", "crossattn_controlnet", "transformer_options"),
        *("time_context", "num_video_frames", "image_only_indicator"),
    ),
    needed=("context",),
    places={
        "patches": {
            "attn1_output_patch": Place(1),
            "middle_patch": Place(1),
            "attn2_patch": Place(1),  # then keys and values of the text
            "attn2_output_patch": Place(1),
            "output_block_patch": Place(2, 2),
        },
        "patches_replace": {"attn1": Place(3), "attn2": Place(1)},
    },
    shapes=("original_shape", "activations_shape"),
)
register_class(
    "comfy.ldm.modules.diffusionmodules.openaimodel.UNetModel",
    coupled="they are the frames of one video",
    unstaged=SKIPS,
    bands=BANDS,
)
# A union of several has layers that are not known here. Each rank runs it whole.
register_class(
    "comfy.cldm.cldm.ControlNet",
    unstaged="it runs beside the model",
    bands=replace(
        BANDS,
        layers={**LAYERS, "comfy.cldm.cldm": ("ControlNet",)},
        rows={"hint": 8},
        whole=("timesteps", "context", "y", "control_type"),
    ),
)
