"""Families of classes that make images."""

from __future__ import annotations

import math

import diffusers
import torch
import torch.nn.functional as F

from .family import IMAGES, SQUARE, TEXT_TOKENS, UNEVEN, Family, Tensors, text_mask


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


def pixart(use_additional_conditions: bool) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 24,
        "num_layers": 3,
        "cross_attention_dim": 96,
        "sample_size": 16,
        "caption_channels": 32,
        "in_channels": 4,
        "use_additional_conditions": use_additional_conditions,
    }
    return Family("PixArtTransformer2DModel", config, pixart_conditions, pixart_reference)


def sd3(dual_attention_layers: tuple[int, ...], qk_norm: str | None) -> Family:
    config = {
        "sample_size": 16,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 8,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "caption_projection_dim": 32,
        "pooled_projection_dim": 16,
        "pos_embed_max_size": 12,
        "dual_attention_layers": dual_attention_layers,
        "qk_norm": qk_norm,
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        return {
            "encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32),
            "pooled_projections": torch.randn(batch, 16),
        }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, given["encoder_hidden_states"], given["pooled_projections"], timestep).sample

    return Family("SD3Transformer2DModel", config, conditions, reference)


def flux(guidance_embeds: bool, image_channels: int = 0, references: tuple[tuple[int, int], ...] = ()) -> Family:
    config = {
        "in_channels": 16 + 4 * image_channels,
        "out_channels": 16 if image_channels else None,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "pooled_projection_dim": 16,
        "guidance_embeds": guidance_embeds,
        "axes_dims_rope": (4, 6, 6),
    }

    names = [f"reference_latents_{number}" for number in range(1, len(references) + 1)]

    def conditions(batch: int, height: int, width: int) -> Tensors:
        given = {
            "encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32),
            "pooled_projections": torch.randn(batch, 16),
        }
        given.update({name: torch.randn(batch, 4, *size) for name, size in zip(names, references, strict=True)})
        if image_channels:
            given["image_latents"] = torch.randn(batch, image_channels, height, width)
        return {**given, "guidance": torch.tensor([1.0, 2.0, 4.0])[:batch]} if guidance_embeds else given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.FluxPipeline
        batch, channels, height, width = latents.shape
        under = [given["image_latents"]] if image_channels else []
        seen = [pipeline._pack_latents(x, batch, x.shape[1], height, width) for x in (latents, *under)]
        packed, ids = [torch.cat(seen, dim=2)], []
        for number, image in enumerate([latents, *(given[name] for name in names)]):
            ids.append(
                pipeline._prepare_latent_image_ids(
                    batch, image.shape[-2] // 2, image.shape[-1] // 2, latents.device, torch.float32
                )
            )
            ids[-1][:, 0] = number
            if number:
                packed.append(pipeline._pack_latents(image, batch, channels, *image.shape[-2:]))
        tokens = model(
            hidden_states=torch.cat(packed, dim=1),
            timestep=timestep,
            guidance=given.get("guidance"),
            pooled_projections=given["pooled_projections"],
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=torch.zeros(given["encoder_hidden_states"].shape[1], 3),
            img_ids=torch.cat(ids),
        ).sample[:, : packed[0].shape[1]]
        return pipeline._unpack_latents(tokens, height, width, vae_scale_factor=1)

    return Family("FluxTransformer2DModel", config, conditions, reference, channels=4, timesteps=(0, 0.5))


def bria() -> Family:
    config = {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "axes_dims_rope": (4, 6, 6),
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        return {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.bria.pipeline_bria import BriaPipeline as pipeline

        batch, channels, height, width = latents.shape
        tokens = model(
            hidden_states=pipeline._pack_latents(latents, batch, channels, height, width),
            timestep=timestep,
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=torch.zeros(TEXT_TOKENS, 3),
            img_ids=pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, latents.device, torch.float32)[
                0
            ],
        ).sample
        return pipeline._unpack_latents(tokens, height // 2, width // 2, vae_scale_factor=1)

    return Family("BriaTransformer2DModel", config, conditions, reference, channels=4)


def hunyuandit(use_style_cond_and_image_meta_size: bool) -> Family:
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
        "use_style_cond_and_image_meta_size": use_style_cond_and_image_meta_size,
    }

    def conditions(batch: int, height: int, width: int) -> Tensors:
        text = {
            "encoder_hidden_states": torch.randn(batch, 5, 24),
            "text_embedding_mask": torch.tensor([[1, 1, 1, 0, 0]]).repeat(batch, 1),
            "encoder_hidden_states_t5": torch.randn(batch, TEXT_TOKENS, 16),
            "text_embedding_mask_t5": torch.tensor([[1, 1, 1, 1, 1, 1, 0]]).repeat(batch, 1),
        }
        size = torch.tensor([[8.0 * height, 8.0 * width, 8.0 * height, 8.0 * width, 0, 0]]).repeat(batch, 1)
        meta = {"image_meta_size": size, "style": torch.zeros(batch, dtype=torch.int64)}
        return {**text, **meta} if use_style_cond_and_image_meta_size else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.hunyuandit import pipeline_hunyuandit as pipeline

        grid = (latents.shape[-2] // 2, latents.shape[-1] // 2)
        crop = pipeline.get_resize_crop_region_for_grid(grid, 32)
        rotary = pipeline.get_2d_rotary_pos_embed(8, crop, grid, output_type="pt")
        timestep = timestep.to(latents.dtype)  # as its pipeline does
        return model(latents, timestep, image_rotary_emb=rotary, **given).sample.chunk(2, dim=1)[0]

    return Family("HunyuanDiT2DModel", config, conditions, reference)


def cogview4() -> Family:
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "text_embed_dim": 32,
        "time_embed_dim": 8,
        "condition_dim": 4,
        "rope_axes_dim": (16, 16),
    }

    def conditions(batch: int, height: int, width: int) -> Tensors:
        size = torch.tensor([[8.0 * height, 8.0 * width]]).repeat(batch, 1)
        text = torch.randn(batch, TEXT_TOKENS, 32)
        crop = torch.zeros(batch, 2)
        return {"encoder_hidden_states": text, "original_size": size, "target_size": size, "crop_coords": crop}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        sizes = (given[name] for name in ("original_size", "target_size", "crop_coords"))
        return model(latents, given["encoder_hidden_states"], timestep, *sizes).sample

    return Family("CogView4Transformer2DModel", config, conditions, reference)


def qwenimage(
    text_tokens: int = TEXT_TOKENS, mask: bool = False, references: tuple[tuple[int, int], ...] = (), **config: object
) -> Family:
    config = {
        "in_channels": 16,
        "out_channels": 4,
        "num_layers": 3,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "axes_dims_rope": (4, 6, 6),
        **config,
    }
    names = ("reference_latents_1", "reference_latents_2")[: len(references)]

    def conditions(batch: int, *_sizes: int) -> Tensors:
        given = {"encoder_hidden_states": torch.randn(batch, text_tokens, 32)}
        given.update({name: torch.randn(batch, 4, 1, *size) for name, size in zip(names, references, strict=True)})
        return {**given, "encoder_hidden_states_mask": text_mask(batch)} if mask else given

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


def chroma(masked: bool) -> Family:
    config = {
        "in_channels": 16,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "axes_dims_rope": (4, 6, 6),
        "approximator_num_channels": 16,
        "approximator_hidden_dim": 32,
        "approximator_layers": 2,
    }

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}
        return {**text, "encoder_attention_mask": text_mask(batch, TEXT_TOKENS).float()} if masked else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.ChromaPipeline
        batch, channels, height, width = latents.shape
        tokens = pipeline._pack_latents(latents, batch, channels, height, width)
        mask = given.get("encoder_attention_mask")
        tokens = model(
            hidden_states=tokens,
            timestep=timestep,
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=torch.zeros(given["encoder_hidden_states"].shape[1], 3),
            img_ids=pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, latents.device, torch.float32),
            attention_mask=pipeline._prepare_attention_mask(None, batch, tokens.shape[1], latents.dtype, mask),
        ).sample
        return pipeline._unpack_latents(tokens, height, width, vae_scale_factor=1)

    return Family("ChromaTransformer2DModel", config, conditions, reference, channels=4, timesteps=(0, 0.5))


def flux2(guidance_embeds: bool, references: tuple[tuple[int, int], ...] = ()) -> Family:
    config = {
        "in_channels": 8,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "joint_attention_dim": 32,
        "timestep_guidance_channels": 16,
        "axes_dims_rope": (4, 4, 4, 4),
        "guidance_embeds": guidance_embeds,
    }

    names = [f"reference_latents_{number}" for number in range(1, len(references) + 1)]

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        given = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}
        given.update({name: torch.randn(batch, 8, *size) for name, size in zip(names, references, strict=True)})
        return {**given, "guidance": torch.tensor([1.0, 2.0, 4.0])[:batch]} if guidance_embeds else given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        pipeline = diffusers.Flux2Pipeline
        ids, images = pipeline._prepare_latent_ids(latents), [latents, *(given[name] for name in names)]
        all_ids = [ids]
        if references:
            batchless = [image[:1] for image in images[1:]]
            all_ids.append(pipeline._prepare_image_ids(batchless).expand(len(latents), -1, -1))
        tokens = model(
            hidden_states=torch.cat([pipeline._pack_latents(image) for image in images], dim=1),
            timestep=timestep,
            guidance=given.get("guidance"),
            encoder_hidden_states=given["encoder_hidden_states"],
            txt_ids=pipeline._prepare_text_ids(given["encoder_hidden_states"]),
            img_ids=torch.cat(all_ids, dim=1),
        ).sample[:, : ids.shape[1]]
        return pipeline._unpack_latents_with_ids(tokens, ids)

    shapes = {SQUARE: (2, 8, 8), UNEVEN: (3, 5, 7)}
    return Family("Flux2Transformer2DModel", config, conditions, reference, shapes, timesteps=(0, 0.5))


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

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        return {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, encoder_hidden_states=given["encoder_hidden_states"], timestep=timestep).sample

    return Family("AuraFlowTransformer2DModel", config, conditions, reference, timesteps=(0, 0.5))


def zimage(text_tokens: int, masked: bool) -> Family:
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

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, text_tokens, 32)}
        return {**text, "encoder_attention_mask": text_mask(batch, text_tokens)} if masked else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        texts = list(given["encoder_hidden_states"])
        if masked:
            texts = [text[mask.bool()] for text, mask in zip(texts, given["encoder_attention_mask"], strict=True)]
        images = model(list(latents.unsqueeze(2).unbind(dim=0)), 1 - timestep, texts).sample
        return -torch.stack(images).squeeze(2)

    return Family("ZImageTransformer2DModel", config, conditions, reference, timesteps=(0, 0.5))


def lumina2(masked: bool) -> Family:
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

    def conditions(batch: int, _height: int, _width: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 32)}
        return {**text, "encoder_attention_mask": text_mask(batch, TEXT_TOKENS)} if masked else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text = given["encoder_hidden_states"]
        mask = given.get("encoder_attention_mask", torch.ones(text.shape[:2], dtype=torch.long))
        return -model(latents, 1 - timestep, text, mask).sample

    return Family("Lumina2Transformer2DModel", config, conditions, reference, timesteps=(0, 0.5))
