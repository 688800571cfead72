"""Families of classes that make images."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import diffusers
import torch
import torch.nn.functional as F

from .family import (
    IMAGES,
    SQUARE,
    TEXT_TOKENS,
    TINY,
    UNEVEN,
    Family,
    Tensors,
    drawn,
    guidance,
    masked,
    text_mask,
)

# Of classes that are made like Flux.
FLUX = {
    "num_layers": 2,
    "num_single_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 4,
    "joint_attention_dim": 32,
    "axes_dims_rope": (4, 6, 6),
}
TEXT = {"encoder_hidden_states": (TEXT_TOKENS, 32)}


def dit_reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, conditions: Tensors):
    """Plain diffusers. The class puts together square images alone. For others, the head's tokens are filled up to a
    square, and put together here, patch by patch."""
    tokens = []

    def fill(_head: torch.nn.Module, _args: tuple, out: torch.Tensor) -> torch.Tensor:
        tokens.append(out)
        return F.pad(out, (0, 0, 0, (math.isqrt(out.shape[1] - 1) + 1) ** 2 - out.shape[1]))

    hook = model.proj_out_2.register_forward_hook(fill)
    try:
        sample = model(latents, timestep=timestep, **conditions).sample
    finally:
        hook.remove()
    channels, patch = model.config.in_channels, model.config.patch_size
    height, width = latents.shape[-2:]
    if height == width:
        return sample[:, :channels]
    image = latents.new_zeros(len(latents), model.out_channels, height, width)
    for index, patch_BK in enumerate(tokens[0].unbind(1)):
        row, column = divmod(index, width // patch)
        pixels = patch_BK.reshape(-1, patch, patch, model.out_channels).permute(0, 3, 1, 2)
        image[:, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = pixels
    return image[:, :channels]


def pixart_reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, conditions: Tensors):
    sizes = {name: conditions[name] for name in ("resolution", "aspect_ratio")}
    text = conditions["encoder_hidden_states"]
    sample = model(latents, encoder_hidden_states=text, timestep=timestep, added_cond_kwargs=sizes).sample
    return sample[:, : model.config.in_channels]


def pixart_conditions(batch: int, height: int, width: int) -> Tensors:
    return {
        "encoder_hidden_states": torch.randn(batch, 7, 32),
        "resolution": torch.tensor([[height * 8.0, width * 8.0]]).repeat(batch, 1),
        "aspect_ratio": torch.tensor([[height / width]]).repeat(batch, 1),
    }


def pixart() -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 24,
        "num_layers": 3,
        "cross_attention_dim": 96,
        "sample_size": 16,
        "caption_channels": 32,
        "in_channels": 4,
        "use_additional_conditions": True,
    }
    return Family("PixArtTransformer2DModel", config, pixart_conditions, pixart_reference)


def sd3(**config: object) -> Family:
    config = {
        **TINY,
        "sample_size": 16,
        "attention_head_dim": 8,
        "joint_attention_dim": 32,
        "caption_projection_dim": 32,
        "pooled_projection_dim": 16,
        "pos_embed_max_size": 12,
        **config,
    }
    return Family("SD3Transformer2DModel", config, drawn(**TEXT, pooled_projections=(16,)))


def by_packed_tokens(
    pipeline: Any,
    model: torch.nn.Module,
    latents: torch.Tensor,
    timestep: torch.Tensor,
    given: Tensors,
    **others: torch.Tensor | None,
) -> torch.Tensor:
    """Plain diffusers, of a class whose pipeline makes tokens of 2×2 latent pixels. others: arguments of its own."""
    batch, channels, height, width = latents.shape
    text = torch.zeros(given["encoder_hidden_states"].shape[1], 3)
    tokens = model(
        hidden_states=pipeline._pack_latents(latents, batch, channels, height, width),
        timestep=timestep,
        img_ids=pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, latents.device, torch.float32),
        **{"txt_ids": text, **given, **others},
    ).sample
    return pipeline._unpack_latents(tokens, height, width, vae_scale_factor=1)


def flux(guidance_embeds: bool) -> Family:
    config = {**FLUX, "in_channels": 16, "pooled_projection_dim": 16, "guidance_embeds": guidance_embeds}
    conditions = drawn(**TEXT, pooled_projections=(16,), **guidance(guidance_embeds))
    reference = partial(by_packed_tokens, diffusers.FluxPipeline)
    return Family("FluxTransformer2DModel", config, conditions, reference, channels=4, timesteps=(0, 0.5))


def bria() -> Family:
    """Its pipeline has tokens and their places as Flux's has them."""
    reference = partial(by_packed_tokens, diffusers.FluxPipeline)
    return Family("BriaTransformer2DModel", {**FLUX, "in_channels": 16}, drawn(**TEXT), reference, channels=4)


def hunyuandit() -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "in_channels": 4,
        "patch_size": 2,
        "sample_size": 16,
        "hidden_size": 32,
        "num_layers": 6,
        "cross_attention_dim": 24,
        "cross_attention_dim_t5": 16,
        "pooled_projection_dim": 16,
        "text_len": 5,
        "text_len_t5": TEXT_TOKENS,
    }

    def conditions(batch: int, height: int, width: int) -> Tensors:
        return {
            "encoder_hidden_states": torch.randn(batch, 5, 24),
            "text_embedding_mask": torch.tensor([[1, 1, 1, 0, 0]]).repeat(batch, 1),
            "encoder_hidden_states_t5": torch.randn(batch, TEXT_TOKENS, 16),
            "text_embedding_mask_t5": torch.tensor([[1, 1, 1, 1, 1, 1, 0]]).repeat(batch, 1),
            "image_meta_size": torch.tensor([[8.0 * height, 8.0 * width] * 2 + [0, 0]]).repeat(batch, 1),
            "style": torch.zeros(batch, dtype=torch.int64),
        }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.hunyuandit import pipeline_hunyuandit as pipeline

        grid = (latents.shape[-2] // 2, latents.shape[-1] // 2)
        crop = pipeline.get_resize_crop_region_for_grid(grid, 32)
        rotary = pipeline.get_2d_rotary_pos_embed(8, crop, grid, output_type="pt")
        timestep = timestep.to(latents.dtype)  # as its pipeline does
        return model(latents, timestep, image_rotary_emb=rotary, **given).sample.chunk(2, dim=1)[0]

    return Family("HunyuanDiT2DModel", config, conditions, reference)


def cogview4() -> Family:
    config = TINY | {"text_embed_dim": 32, "time_embed_dim": 8, "condition_dim": 4, "rope_axes_dim": (16, 16)}

    def size(batch: int, *sides: int) -> torch.Tensor:
        return torch.tensor([[8.0 * side for side in sides]]).repeat(batch, 1)

    sizes = {"original_size": size, "target_size": size, "crop_coords": lambda batch, *_: torch.zeros(batch, 2)}
    return Family("CogView4Transformer2DModel", config, drawn(**TEXT, **sizes))


def qwenimage(
    text_tokens: int = TEXT_TOKENS, mask: bool = False, references: tuple[tuple[int, int], ...] = (), **config: object
) -> Family:
    config = TINY | {"in_channels": 16, "joint_attention_dim": 32, "axes_dims_rope": (4, 6, 6)} | config
    names = {f"reference_latents_{number}": (4, 1, *size) for number, size in enumerate(references, 1)}
    masks = {"encoder_hidden_states_mask": lambda batch, *_: text_mask(batch)} if mask else {}

    conditions = drawn(encoder_hidden_states=(text_tokens, 32), **names, **masks)

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.QwenImagePipeline
        batch, channels, _, height, width = latents.shape
        images = [latents, *(given[name] for name in names)]
        packed = [pipeline._pack_latents(image, batch, channels, *image.shape[-2:]) for image in images]
        tokens = model(
            hidden_states=torch.cat(packed, dim=1),
            timestep=timestep,
            guidance=None,
            encoder_hidden_states_mask=given.get("encoder_hidden_states_mask"),
            encoder_hidden_states=given["encoder_hidden_states"],
            img_shapes=[[(1, image.shape[-2] // 2, image.shape[-1] // 2) for image in images]] * batch,
        ).sample[:, : packed[0].shape[1]]
        return pipeline._unpack_latents(tokens, height, width, vae_scale_factor=1)

    shapes = {name: (batch, 1, *size) for name, (batch, *size) in IMAGES.items()}
    timesteps = (0, 0.5)
    return Family("QwenImageTransformer2DModel", config, conditions, reference, shapes, channels=4, timesteps=timesteps)


def chroma(masks: bool) -> Family:
    config = {
        **FLUX,
        "in_channels": 16,
        "approximator_num_channels": 16,
        "approximator_hidden_dim": 32,
        "approximator_layers": 2,
    }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.ChromaPipeline
        batch, _, height, width = latents.shape
        mask = given["encoder_attention_mask"].float() if masks else None
        mask = pipeline._prepare_attention_mask(None, batch, height * width // 4, latents.dtype, mask)
        text = {"encoder_hidden_states": given["encoder_hidden_states"]}
        return by_packed_tokens(pipeline, model, latents, timestep, text, attention_mask=mask)

    conditions = drawn(**TEXT, **masked(masks))
    return Family("ChromaTransformer2DModel", config, conditions, reference, channels=4, timesteps=(0, 0.5))


def flux2() -> Family:
    config = {**FLUX, "in_channels": 8, "timestep_guidance_channels": 16, "axes_dims_rope": (4, 4, 4, 4)}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.Flux2Pipeline
        ids = pipeline._prepare_latent_ids(latents)
        tokens = model(
            hidden_states=pipeline._pack_latents(latents),
            timestep=timestep,
            **given,
            txt_ids=pipeline._prepare_text_ids(given["encoder_hidden_states"]),
            img_ids=ids,
        ).sample
        return pipeline._unpack_latents_with_ids(tokens, ids)

    shapes = {SQUARE: (2, 8, 8), UNEVEN: (3, 5, 7)}
    conditions = drawn(**TEXT, **guidance(True))
    return Family("Flux2Transformer2DModel", config, conditions, reference, shapes, timesteps=(0, 0.5), side=1)


def auraflow() -> Family:
    config = {
        "sample_size": 16,
        "num_mmdit_layers": 2,
        "num_single_dit_layers": 2,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "caption_projection_dim": 32,
        "pos_embed_max_size": 64,
        "in_channels": 4,
    }
    return Family("AuraFlowTransformer2DModel", config, drawn(**TEXT), timesteps=(0, 0.5))


def zimage(text_tokens: int, masks: bool) -> Family:
    config = {
        "in_channels": 4,
        "dim": 64,
        "n_layers": 3,
        "n_refiner_layers": 1,
        "n_heads": 4,
        "n_kv_heads": 4,
        "cap_feat_dim": 32,
        "axes_dims": (4, 6, 6),
        "axes_lens": (128, 16, 16),
    }

    conditions = drawn(encoder_hidden_states=(text_tokens, 32), **masked(masks, text_tokens))

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        texts = list(given["encoder_hidden_states"])
        if masks:
            texts = [text[mask.bool()] for text, mask in zip(texts, given["encoder_attention_mask"], strict=True)]
        images = model(list(latents.unsqueeze(2).unbind(dim=0)), 1 - timestep, texts).sample
        return -torch.stack(images).squeeze(2)

    return Family("ZImageTransformer2DModel", config, conditions, reference, timesteps=(0, 0.5))


def lumina2(masks: bool) -> Family:
    config = {
        "sample_size": 16,
        "in_channels": 4,
        "hidden_size": 96,
        "num_layers": 3,
        "num_refiner_layers": 1,
        "num_attention_heads": 6,
        "num_kv_heads": 3,
        "multiple_of": 16,
        "axes_dim_rope": (4, 6, 6),
        "axes_lens": (32, 16, 16),
        "cap_feat_dim": 32,
    }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text = given["encoder_hidden_states"]
        mask = given.get("encoder_attention_mask", torch.ones(text.shape[:2], dtype=torch.long))
        return -model(latents, 1 - timestep, text, mask).sample

    return Family("Lumina2Transformer2DModel", config, drawn(**TEXT, **masked(masks)), reference, timesteps=(0, 0.5))
