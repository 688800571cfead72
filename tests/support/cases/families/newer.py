"""Families of classes that came later, see `image.py` and `video.py`."""

from __future__ import annotations

from functools import partial

import torch

from .family import SQUARE, TEXT_TOKENS, TINY, UNEVEN, VIDEOS, Family, Tensors, by_names, drawn, masked
from .image import bria, by_packed_tokens

TEXT = {"encoder_hidden_states": (TEXT_TOKENS, 16)}


def kandinsky5() -> Family:
    config = {
        "in_text_dim": 16,
        "in_text_dim2": 12,
        "time_dim": 16,
        "model_dim": 64,
        "ff_dim": 96,
        "num_text_blocks": 1,
        "num_visual_blocks": 3,
        "axes_dims": (4, 6, 6),
    }

    conditions = drawn(
        **TEXT,
        pooled_projections=(12,),
        position_scale=lambda batch, *_: torch.tensor([[1.0, 2.0, 2.0]]).repeat(batch, 1),
    )

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        frames, height, width = latents.shape[2:]
        return model(
            hidden_states=latents.permute(0, 2, 3, 4, 1),
            encoder_hidden_states=given["encoder_hidden_states"],
            timestep=timestep,
            pooled_projections=given["pooled_projections"],
            visual_rope_pos=[torch.arange(frames), torch.arange(height // 2), torch.arange(width // 2)],
            text_rope_pos=torch.arange(TEXT_TOKENS),
            scale_factor=(1, 2, 2),
        ).sample.permute(0, 4, 1, 2, 3)

    return Family("Kandinsky5Transformer3DModel", config, conditions, reference, VIDEOS, channels=4)


def cosmos(mask: bool = False, fps: bool = False, by_frame: bool = False) -> Family:
    config = {
        **TINY,
        "in_channels": 5 if mask else 4,
        "attention_head_dim": 24,
        "mlp_ratio": 2,
        "text_embed_dim": 16,
        "adaln_lora_dim": 8,
        "max_size": (4, 32, 32),
        "extra_pos_embed_type": None,
    }

    frames = {"fps": lambda batch, *_: torch.full((batch,), 16.0)} if fps else {}
    masks = {"condition_mask": lambda batch, *sizes: (torch.rand(batch, 1, *sizes) > 0.5).float()} if mask else {}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        timestep = timestep[:, None, :, None, None] if timestep.ndim == 2 else timestep
        given = {**given, "fps": 16 if fps else None, "padding_mask": latents.new_zeros(1, 1, 64, 64)}
        return by_names(model, latents, timestep, given)

    times = {"timesteps": (0, 0.5), "by_frame": by_frame}
    conditions = drawn(**TEXT, **frames, **masks)
    return Family("CosmosTransformer3DModel", config, conditions, reference, VIDEOS, channels=4, **times)


def hidream() -> Family:
    config = {
        "patch_size": 2,
        "in_channels": 4,
        "num_layers": 2,
        "num_single_layers": 2,
        "attention_head_dim": 16,
        "num_attention_heads": 4,
        "caption_channels": [16, 20],
        "text_emb_dim": 12,
        "num_routed_experts": 2,
        "num_activated_experts": 1,
        "axes_dims_rope": (4, 6, 6),
        "max_resolution": (14, 14),
        "llama_layers": [0, 1, 1, 2],
    }

    conditions = drawn(
        encoder_hidden_states_t5=(TEXT_TOKENS, 16),
        encoder_hidden_states_llama3=(3, TEXT_TOKENS - 2, 20),
        pooled_embeds=(12,),
    )

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        layers = {"encoder_hidden_states_llama3": given["encoder_hidden_states_llama3"].transpose(0, 1)}
        return -model(hidden_states=latents, timesteps=timestep, **{**given, **layers}).sample

    return Family("HiDreamImageTransformer2DModel", config, conditions, reference)


def omnigen() -> Family:
    config = {
        "in_channels": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 96,
        "num_layers": 3,
        "pad_token_id": 0,
        "vocab_size": 40,
        "max_position_embeddings": 1024,
        "original_max_position_embeddings": 1024,
        "rope_scaling": {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8},
        "pos_embed_max_size": 16,
        "time_step_dim": 16,
    }

    def conditions(batch: int, height: int, width: int) -> Tensors:
        tokens = TEXT_TOKENS + 1 + height * width // 4
        text = torch.ones(batch, tokens, tokens, dtype=torch.long)
        text[:, : TEXT_TOKENS + 1] = torch.ones(tokens, tokens, dtype=torch.long).tril()[: TEXT_TOKENS + 1]
        return {
            "input_ids": torch.arange(batch * TEXT_TOKENS).reshape(batch, TEXT_TOKENS) % 39 + 1,
            "attention_mask": text,
            "position_ids": (torch.arange(tokens) - torch.arange(batch)[:, None]).clamp(min=0),
        }

    reference = partial(by_names, input_img_latents=[], input_image_sizes={})
    return Family("OmniGenTransformer2DModel", config, conditions, reference, timesteps=(0, 0.5))


def sana() -> Family:
    config = {
        **TINY,
        "attention_head_dim": 8,
        "num_cross_attention_heads": 2,
        "cross_attention_head_dim": 16,
        "cross_attention_dim": 32,
        "caption_channels": 16,
        "timestep_scale": 0.5,
    }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, timestep=timestep * config["timestep_scale"], **given).sample

    return Family("SanaTransformer2DModel", config, drawn(**TEXT, **masked(True)), reference)


def latte() -> Family:
    config = {
        **TINY,
        "attention_head_dim": 8,
        "out_channels": 8,
        "num_layers": 2,
        "cross_attention_dim": 32,
        "sample_size": 8,
        "patch_size": 2,
        "num_embeds_ada_norm": 1000,
        "norm_type": "ada_norm_single",
        "norm_elementwise_affine": False,
        "caption_channels": 16,
        "video_length": 3,
    }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, timestep, given["encoder_hidden_states"]).sample[:, :4]

    shapes = {SQUARE: (2, 3, 8, 8), UNEVEN: (3, 3, 8, 8)}
    return Family("LatteTransformer3DModel", config, drawn(**TEXT), reference, shapes)


def ovis() -> Family:
    alike = bria()

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        from diffusers.pipelines.ovis_image.pipeline_ovis_image import OvisImagePipeline

        diagonal = torch.arange(TEXT_TOKENS)[:, None] * torch.tensor([0.0, 1.0, 1.0])
        return by_packed_tokens(OvisImagePipeline, model, latents, timestep, given, txt_ids=diagonal)

    config = {**alike.config, "out_channels": 16}
    return Family("OvisImageTransformer2DModel", config, alike.conditions, reference, channels=4, timesteps=(0, 0.5))
