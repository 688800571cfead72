"""diffusers' UNet of Stable Diffusion 1 and 2, and SDXL, and what is made of them."""

from __future__ import annotations

from .bands import TORCH, Bands
from .spec import SKIPS, ModelSpec, register

register(
    ModelSpec(
        "UNet2DConditionModel",
        unstaged=SKIPS,
        bands=Bands(
            {
                **TORCH,
                "peft.tuners.lora.layer": ("Conv2d", "Linear"),
                "diffusers.models.activations": ("GEGLU", "GELU"),
                "diffusers.models.attention": ("BasicTransformerBlock", "FeedForward"),
                "diffusers.models.attention_processor": ("Attention",),
                "diffusers.models.downsampling": ("Downsample2D",),
                "diffusers.models.embeddings": ("TimestepEmbedding", "Timesteps"),
                "diffusers.models.resnet": ("ResnetBlock2D",),
                "diffusers.models.transformers.transformer_2d": ("Transformer2DModel",),
                "diffusers.models.unets.unet_2d_blocks": (
                    *("CrossAttnDownBlock2D", "CrossAttnUpBlock2D", "DownBlock2D", "UNetMidBlock2DCrossAttn"),
                    "UpBlock2D",
                ),
                "diffusers.models.unets.unet_2d_condition": ("UNet2DConditionModel",),
                "diffusers.models.upsampling": ("Upsample2D",),
            },
            levels="config.block_out_channels",
            attention={"BasicTransformerBlock": "attn1"},
            attends_to_text="only_cross_attention",
            rows={
                "down_block_additional_residuals": 1,
                "mid_block_additional_residual": 1,
                "down_intrablock_additional_residuals": 1,
            },
            whole=(
                *("timestep", "encoder_hidden_states", "class_labels", "timestep_cond", "attention_mask"),
                *("cross_attention_kwargs", "added_cond_kwargs", "encoder_attention_mask", "return_dict"),
            ),
            needed=("encoder_hidden_states",),
        ),
    )
)
