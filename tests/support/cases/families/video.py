"""Families of classes that make videos."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import diffusers
import torch

from .family import SQUARE, TEXT_TOKENS, TINY, UNEVEN, VIDEOS, Family, Tensors, by_names, drawn, guidance, masked

TEXT = {"encoder_hidden_states": (TEXT_TOKENS, 16)}


def rotary(pipeline_class: Any, model: torch.nn.Module, latents: torch.Tensor, *sizes: int) -> Any:
    """The position embeddings that a pipeline of the class makes."""
    pipeline = SimpleNamespace(vae_scale_factor_spatial=1, transformer=model)
    return pipeline_class._prepare_rotary_positional_embeddings(pipeline, *sizes, latents.device)


def cogvideox(**config: object) -> Family:
    config = {
        **TINY,
        "time_embed_dim": 8,
        "text_embed_dim": 16,
        "sample_width": 10,
        "sample_height": 8,
        "sample_frames": 9,
        "max_text_seq_length": TEXT_TOKENS,
        **config,
    }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        latents = latents.permute(0, 2, 1, 3, 4)
        frames, _, height, width = latents.shape[1:]
        keywords = {}
        if config.get("use_rotary_positional_embeddings"):
            keywords["image_rotary_emb"] = rotary(diffusers.CogVideoXPipeline, model, latents, height, width, frames)
        return model(latents, given["encoder_hidden_states"], timestep, **keywords).sample.permute(0, 2, 1, 3, 4)

    shapes = {SQUARE: (2, 4, 8, 8), UNEVEN: (3, 2, 6, 10)} if config.get("patch_size_t") else VIDEOS
    return Family("CogVideoXTransformer3DModel", config, drawn(**TEXT), reference, shapes)


def easyanimate() -> Family:
    config = {
        **TINY,
        "patch_size": 2,
        "num_layers": 4,
        "mmdit_layers": 2,
        "time_embed_dim": 8,
        "text_embed_dim": 16,
        "add_norm_text_encoder": True,
    }
    return Family("EasyAnimateTransformer3DModel", config, drawn(**TEXT), shapes=VIDEOS)


def wan(text_tokens: int = TEXT_TOKENS, image_tokens: int = 0, by_frame: bool = False, **config: object) -> Family:
    config = {
        **TINY,
        "num_attention_heads": 5,
        "attention_head_dim": 12,
        "text_dim": 16,
        "freq_dim": 16,
        "ffn_dim": 32,
        "rope_max_seq_len": 16,
        **config,
    }
    seen = {"encoder_hidden_states_image": (image_tokens, 24)} if image_tokens else {}
    conditions = drawn(encoder_hidden_states=(text_tokens, 16), **seen)

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        if timestep.ndim == 2:  # one a token, of patches of 2×2
            timestep = timestep.repeat_interleave(math.prod(latents.shape[-2:]) // 4, 1)
        return by_names(model, latents, timestep, given)

    return Family("WanTransformer3DModel", config, conditions, reference, VIDEOS, by_frame=by_frame)


def hunyuanvideo() -> Family:
    config = {
        **TINY,
        "attention_head_dim": 12,
        "num_layers": 2,
        "num_single_layers": 2,
        "num_refiner_layers": 1,
        "text_embed_dim": 24,
        "pooled_projection_dim": 16,
        "rope_axes_dim": (4, 4, 4),
    }

    text = {"encoder_hidden_states": (TEXT_TOKENS, 24), "pooled_projections": (16,)}
    conditions = drawn(**text, **masked(True), **guidance(True))

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, timestep, **{**given, "guidance": given["guidance"] * 1000.0}).sample

    return Family("HunyuanVideoTransformer3DModel", config, conditions, reference, VIDEOS)


def ltx(mask: bool = False) -> Family:
    config = TINY | {"attention_head_dim": 8, "cross_attention_dim": 32, "caption_channels": 24}

    conditions = drawn(encoder_hidden_states=(TEXT_TOKENS, 24), **masked(mask))

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        frames, height, width = latents.shape[2:]
        tokens = model(
            hidden_states=diffusers.LTXPipeline._pack_latents(latents),
            encoder_hidden_states=given["encoder_hidden_states"],
            timestep=1000 * timestep,
            encoder_attention_mask=given.get("encoder_attention_mask"),
            num_frames=frames,
            height=height,
            width=width,
            rope_interpolation_scale=(8 / 24, 32, 32),
        ).sample
        return diffusers.LTXPipeline._unpack_latents(tokens, frames, height, width)

    return Family("LTXVideoTransformer3DModel", config, conditions, reference, VIDEOS, timesteps=(0, 0.5), side=1)


def allegro() -> Family:
    config = TINY | {"attention_head_dim": 24, "cross_attention_dim": 96, "caption_channels": 16}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        batch, _, frames, height, width = latents.shape
        places = rotary(diffusers.AllegroPipeline, model, latents, batch, height, width, frames)
        return model(latents, timestep=timestep, image_rotary_emb=places, **given).sample

    return Family("AllegroTransformer3DModel", config, drawn(**TEXT, **masked(True)), reference, VIDEOS)


def consisid() -> Family:
    config = {
        **TINY,
        "in_channels": 8,
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

    latents = {"image_latents": lambda batch, *sizes: torch.randn(batch, 4, *sizes)}
    conditions = drawn(**TEXT, **latents, id_cond=(12,), id_vit_hidden=(2, 3, 16))

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.consisid.pipeline_consisid import ConsisIDPipeline

        frames, height, width = latents.shape[2:]
        return model(
            hidden_states=torch.cat([latents, given["image_latents"]], dim=1).permute(0, 2, 1, 3, 4),
            encoder_hidden_states=given["encoder_hidden_states"],
            timestep=timestep,
            image_rotary_emb=rotary(ConsisIDPipeline, model, latents, height, width, frames),
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

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        text = given["encoder_hidden_states"]
        mask = given.get("encoder_attention_mask", torch.ones(text.shape[:2], dtype=torch.bool))
        return model(latents, text, timestep, mask).sample

    return Family("MochiTransformer3DModel", config, drawn(**TEXT, **masked(mask)), reference, VIDEOS)
