"""Families of classes that make videos."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import diffusers
import torch

from .family import SQUARE, TEXT_TOKENS, UNEVEN, VIDEOS, Family, Tensors, text_mask


def cogvideox(image: bool = False, **config: object) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 8 if image else 4,
        "out_channels": 4,
        "time_embed_dim": 8,
        "text_embed_dim": 16,
        "num_layers": 3,
        "sample_width": 10,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": TEXT_TOKENS,
        **config,
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 16)}
        return {**text, "image_latents": torch.randn(batch, 4, *sizes)} if image else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        latents = latents.permute(0, 2, 1, 3, 4)
        frames, _, height, width = latents.shape[1:]
        keywords = {}
        if config.get("use_rotary_positional_embeddings"):
            pipeline = SimpleNamespace(vae_scale_factor_spatial=1, transformer=model)
            make = diffusers.CogVideoXPipeline._prepare_rotary_positional_embeddings
            keywords["image_rotary_emb"] = make(pipeline, height, width, frames, latents.device)
        if image:
            latents = torch.cat([latents, given["image_latents"].permute(0, 2, 1, 3, 4)], dim=2)
        if config.get("ofs_embed_dim"):
            keywords["ofs"] = latents.new_full((1,), fill_value=2.0)
        return model(latents, given["encoder_hidden_states"], timestep, **keywords).sample.permute(0, 2, 1, 3, 4)

    shapes = {SQUARE: (2, 4, 8, 8), UNEVEN: (3, 2, 6, 10)} if config.get("patch_size_t") else VIDEOS
    return Family("CogVideoXTransformer3DModel", config, conditions, reference, shapes, channels=4)


def easyanimate(extra: int = 0, **config: object) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 4 + extra,
        "out_channels": 4,
        "patch_size": 2,
        "num_layers": 4,
        "mmdit_layers": 2,
        "time_embed_dim": 8,
        "text_embed_dim": 16,
        "add_norm_text_encoder": True,
        **config,
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 16)}
        return {**text, "image_latents": torch.randn(batch, extra, *sizes)} if extra else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text, images = given["encoder_hidden_states"], given.get("image_latents")
        return model(latents, timestep, encoder_hidden_states=text, inpaint_latents=images).sample

    return Family("EasyAnimateTransformer3DModel", config, conditions, reference, VIDEOS, channels=4)


def wan(
    text_tokens: int = TEXT_TOKENS, image_tokens: int = 0, images: int = 1, by_frame: bool = False, **config: object
) -> Family:
    config = {
        "num_attention_heads": 5,
        "attention_head_dim": 12,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 16,
        "freq_dim": 16,
        "ffn_dim": 32,
        "num_layers": 3,
        "rope_max_seq_len": 16,
        **config,
    }
    extra = config["in_channels"] - config["out_channels"]

    def conditions(batch: int, *sizes: int) -> Tensors:
        given = {"encoder_hidden_states": torch.randn(batch, text_tokens, 16)}
        if image_tokens:
            given["encoder_hidden_states_image"] = torch.randn(batch, images * image_tokens, 24)
        if extra:
            given["image_latents"] = torch.randn(batch, extra, *sizes)
        return given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        if extra:
            latents = torch.cat([latents, given["image_latents"]], dim=1)
        image = given["encoder_hidden_states_image"].view(-1, image_tokens, 24) if image_tokens else None
        if timestep.ndim == 2:  # one a token, of patches of 2×2
            timestep = timestep.repeat_interleave(math.prod(latents.shape[-2:]) // 4, 1)
        return model(latents, timestep, given["encoder_hidden_states"], image).sample

    return Family("WanTransformer3DModel", config, conditions, reference, VIDEOS, channels=4, by_frame=by_frame)


def skyreels(*sizes: int, **config: object) -> Family:
    """Takes what `wan` takes: a pipeline calls it alike."""
    return replace(wan(*sizes, **config), model_class="SkyReelsV2Transformer3DModel")


def hunyuanvideo(
    text_tokens: int = TEXT_TOKENS, guidance_embeds: bool = True, mask: bool = True, image: bool = False
) -> Family:
    config = {
        "in_channels": 9 if image else 4,
        "out_channels": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 12,
        "num_layers": 2,
        "num_single_layers": 2,
        "num_refiner_layers": 1,
        "guidance_embeds": guidance_embeds,
        "text_embed_dim": 24,
        "pooled_projection_dim": 16,
        "rope_axes_dim": (4, 4, 4),
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        given = {
            "encoder_hidden_states": torch.randn(batch, text_tokens, 24),
            "pooled_projections": torch.randn(batch, 16),
        }
        if mask:
            given["encoder_attention_mask"] = text_mask(batch)
        if image:
            given["image_latents"] = torch.randn(batch, 5, *sizes)
        return {**given, "guidance": torch.tensor([1.0, 2.0, 4.0])[:batch]} if guidance_embeds else given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text = given["encoder_hidden_states"]
        return model(
            hidden_states=torch.cat([latents, given["image_latents"]], dim=1) if image else latents,
            timestep=timestep,
            encoder_hidden_states=text,
            encoder_attention_mask=given["encoder_attention_mask"] if mask else torch.ones(text.shape[:2]),
            pooled_projections=given["pooled_projections"],
            guidance=given["guidance"] * 1000.0 if guidance_embeds else None,
        ).sample

    return Family("HunyuanVideoTransformer3DModel", config, conditions, reference, VIDEOS, channels=4)


def ltx(mask: bool = False, coords: bool = False) -> Family:
    config = {
        "in_channels": 4,
        "out_channels": 4,
        "num_attention_heads": 4,
        "attention_head_dim": 8,
        "cross_attention_dim": 32,
        "num_layers": 3,
        "caption_channels": 24,
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        given = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 24), "frame_rate": torch.full((batch,), 24.0)}
        if mask:
            given["encoder_attention_mask"] = text_mask(batch)
        if coords:
            pipeline = diffusers.LTXConditionPipeline
            given["video_coords"] = pipeline._scale_video_ids(pipeline._prepare_video_ids(batch, *sizes))
        return given

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        frames, height, width = latents.shape[2:]
        frame_rate = float(given["frame_rate"][0])
        if coords:
            positions = {"video_coords": given["video_coords"].float()}
            positions["video_coords"][:, 0] = positions["video_coords"][:, 0] * (1.0 / frame_rate)
        else:
            positions = {"num_frames": frames, "height": height, "width": width}
            positions["rope_interpolation_scale"] = (8 / frame_rate, 32, 32)
        tokens = model(
            hidden_states=diffusers.LTXPipeline._pack_latents(latents),
            encoder_hidden_states=given["encoder_hidden_states"],
            timestep=1000 * timestep,
            encoder_attention_mask=given.get("encoder_attention_mask"),
            **positions,
        ).sample
        return diffusers.LTXPipeline._unpack_latents(tokens, frames, height, width)

    return Family("LTXVideoTransformer3DModel", config, conditions, reference, VIDEOS, timesteps=(0, 0.5))


def allegro(mask: bool) -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 24,
        "in_channels": 4,
        "out_channels": 4,
        "num_layers": 3,
        "cross_attention_dim": 96,
        "caption_channels": 16,
    }

    def conditions(batch: int, *_sizes: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 16)}
        return {**text, "encoder_attention_mask": text_mask(batch)} if mask else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers import AllegroPipeline

        batch, _, frames, height, width = latents.shape
        pipeline = SimpleNamespace(vae_scale_factor_spatial=1, transformer=model)
        make = AllegroPipeline._prepare_rotary_positional_embeddings
        rotary = make(pipeline, batch, height, width, frames, latents.device)
        text, mask = given["encoder_hidden_states"], given.get("encoder_attention_mask")
        return model(latents, text, timestep, encoder_attention_mask=mask, image_rotary_emb=rotary).sample

    return Family("AllegroTransformer3DModel", config, conditions, reference, VIDEOS)


def consisid() -> Family:
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 8,
        "out_channels": 4,
        "time_embed_dim": 8,
        "text_embed_dim": 16,
        "num_layers": 4,
        "sample_width": 10,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": TEXT_TOKENS,
        "use_rotary_positional_embeddings": True,
        "is_train_face": True,
        "cross_attn_dim_head": 8,
        "cross_attn_num_heads": 2,
        "LFE_id_dim": 12,
        "LFE_vit_dim": 16,
        "LFE_depth": 2,
        "LFE_dim_head": 8,
        "LFE_num_heads": 2,
        "LFE_num_id_token": 2,
        "LFE_num_querie": 4,
        "LFE_output_dim": 42,
        "LFE_num_scale": 2,
    }

    def conditions(batch: int, *sizes: int) -> Tensors:
        return {
            "encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 16),
            "image_latents": torch.randn(batch, 4, *sizes),
            "id_cond": torch.randn(batch, 12),
            "id_vit_hidden": torch.randn(batch, 2, 3, 16),
        }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.consisid.pipeline_consisid import ConsisIDPipeline

        frames, height, width = latents.shape[2:]
        pipeline = SimpleNamespace(vae_scale_factor_spatial=1, transformer=model)
        make = ConsisIDPipeline._prepare_rotary_positional_embeddings
        return model(
            hidden_states=torch.cat([latents, given["image_latents"]], dim=1).permute(0, 2, 1, 3, 4),
            encoder_hidden_states=given["encoder_hidden_states"],
            timestep=timestep,
            image_rotary_emb=make(pipeline, height, width, frames, latents.device),
            id_cond=given["id_cond"],
            id_vit_hidden=[given["id_vit_hidden"][:, 0], given["id_vit_hidden"][:, 1]],
        ).sample.permute(0, 2, 1, 3, 4)

    return Family("ConsisIDTransformer3DModel", config, conditions, reference, VIDEOS, channels=4)


def mochi(mask: bool) -> Family:
    """Its text is narrower than its video."""
    config = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "num_layers": 3,
        "pooled_projection_dim": 24,
        "in_channels": 4,
        "text_embed_dim": 16,
        "time_embed_dim": 8,
        "max_sequence_length": TEXT_TOKENS,
    }

    def conditions(batch: int, *_sizes: int) -> Tensors:
        text = {"encoder_hidden_states": torch.randn(batch, TEXT_TOKENS, 16)}
        return {**text, "encoder_attention_mask": text_mask(batch)} if mask else text

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text = given["encoder_hidden_states"]
        mask = given.get("encoder_attention_mask", torch.ones(text.shape[:2], dtype=torch.bool))
        return model(latents, text, timestep, mask).sample

    return Family("MochiTransformer3DModel", config, conditions, reference, VIDEOS)
