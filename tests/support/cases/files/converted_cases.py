"""Tiny models of diffusers beside ComfyUI's class of the same sizes, and how the inputs of one are the other's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.support.cases import families
from tests.support.cases.families import FAMILIES, IMAGES, SQUARE, UNEVEN, VIDEOS, Family, Tensors

Call = Callable[[torch.Tensor, torch.Tensor, Tensors], tuple[tuple[torch.Tensor, ...], dict[str, Any]]]


@dataclass(frozen=True)
class ConvertedCase:
    """family: of diffusers. host_class, config: of ComfyUI, below comfy.ldm. call: latents, timestep and conditions of
    the family to the arguments of ComfyUI's class. absent: what a folder does not have of
    ComfyUI's, which computes nothing with it. size: batch and size of the latents where the libraries place tokens
    alike at some sizes only.
    """

    family: Family
    host_class: str
    config: Mapping[str, Any]
    call: Call
    absent: frozenset[str] = frozenset()
    size: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.size or self.family.shapes[UNEVEN]


def pass_conditions(**keywords: str) -> Call:
    """The text in its place, and conditions of the family by ComfyUI's names. Of the latents, those of an image come
    after them in their channels."""

    def call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
        seen = [latents, given["image_latents"]] if "image_latents" in given else [latents]
        named = {own: given[theirs] for own, theirs in keywords.items()}
        return (torch.cat(seen, dim=1), timestep, given["encoder_hidden_states"]), named

    return call


def resized(family: Family | str, **config: Any) -> Family:
    """The family's model with fields of its config exchanged."""
    found = FAMILIES[family] if isinstance(family, str) else family
    return replace(found, config={**found.config, **config})


FLUX_CONFIG = {
    "in_channels": 4, "out_channels": 4, "vec_in_dim": 16, "context_in_dim": 32, "hidden_size": 64, "mlp_ratio": 4.0,
    "num_heads": 4, "depth": 2, "depth_single_blocks": 2, "axes_dim": [4, 6, 6], "theta": 10000, "patch_size": 2,
    "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": [],
}  # fmt: skip
FLUX_2_CONFIG = FLUX_CONFIG | {
    "in_channels": 8, "out_channels": 8, "vec_in_dim": None, "mlp_ratio": 3.0, "axes_dim": [4] * 4, "theta": 2000,
    "patch_size": 1, "qkv_bias": False, "txt_ids_dims": [3], "global_modulation": True, "mlp_silu_act": True,
    "ops_bias": False,
}  # fmt: skip
CHROMA_CONFIG = {name: value for name, value in FLUX_CONFIG.items() if name != "guidance_embed"} | {
    "in_channels": 16, "out_channels": 16, "vec_in_dim": None, "depth": 28, "in_dim": 64, "out_dim": 64,
    "hidden_dim": 32, "n_layers": 2,
}  # fmt: skip
SD3_CONFIG = {
    "input_size": None, "patch_size": 2, "in_channels": 4, "out_channels": 4, "depth": 2, "num_blocks": 3,
    "adm_in_channels": 16, "num_patches": 144, "pos_embed_max_size": 12, "pos_embed_scaling_factor": None,
    "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": 32, "out_features": 128}},
}  # fmt: skip
LUMINA_CONFIG = {
    "patch_size": 2, "dim": 96, "in_channels": 4, "n_layers": 3, "n_refiner_layers": 1, "n_heads": 6, "n_kv_heads": 3,
    "multiple_of": 16, "ffn_dim_multiplier": 4.0, "norm_eps": 1e-5, "qk_norm": True, "cap_feat_dim": 32,
    "axes_dims": [4, 6, 6], "axes_lens": [32, 16, 16],
}  # fmt: skip
Z_IMAGE = {"dim": 1024, "n_layers": 2, "n_heads": 8, "n_kv_heads": 8, "axes_dims": [32, 48, 48]}
Z_IMAGE_CONFIG = LUMINA_CONFIG | Z_IMAGE | {
    "multiple_of": 2, "ffn_dim_multiplier": 8 / 3, "axes_lens": [1536, 512, 512], "rope_theta": 256.0,
    "z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32,
}  # fmt: skip
QWEN_CONFIG = {
    "patch_size": 2, "in_channels": 16, "out_channels": 4, "num_layers": 3, "attention_head_dim": 16,
    "num_attention_heads": 4, "joint_attention_dim": 32, "axes_dims_rope": (4, 6, 6),
}  # fmt: skip
AURA_CONFIG = {
    "in_channels": 4, "out_channels": 4, "dim": 32, "n_layers": 4, "n_double_layers": 2, "n_heads": 4,
    "global_conddim": 32, "cond_seq_dim": 32, "max_seq": 64,
}  # fmt: skip
PIXART_CONFIG = {
    "patch_size": 2, "in_channels": 4, "hidden_size": 96, "depth": 3, "num_heads": 4, "caption_channels": 32,
    "micro_condition": True, "pe_interpolation": None,
}  # fmt: skip
HUNYUAN_DIT_CONFIG = {
    "patch_size": 2, "in_channels": 4, "hidden_size": 32, "depth": 6, "num_heads": 4, "text_states_dim": 24,
    "text_states_dim_t5": 16,
}  # fmt: skip
WAN_CONFIG = {
    "model_type": "t2v", "patch_size": (1, 2, 2), "in_dim": 4, "dim": 60, "ffn_dim": 32, "freq_dim": 16,
    "text_dim": 16, "out_dim": 4, "num_heads": 5, "num_layers": 3, "text_len": 512,
}  # fmt: skip
HUNYUAN_VIDEO_CONFIG = {
    "image_model": "hunyuan_video", "in_channels": 4, "out_channels": 4, "vec_in_dim": 16, "context_in_dim": 24,
    "hidden_size": 48, "mlp_ratio": 4.0, "num_heads": 4, "depth": 2, "depth_single_blocks": 2, "axes_dim": [4, 4, 4],
    "theta": 256, "patch_size": [1, 2, 2], "qkv_bias": True, "guidance_embed": True, "byt5": False, "meanflow": False,
    "use_cond_type_embedding": False, "vision_in_dim": None, "meanflow_sum": False,
}  # fmt: skip
LTX_CONFIG = {
    "in_channels": 4, "cross_attention_dim": 32, "attention_head_dim": 8, "num_attention_heads": 4,
    "caption_channels": 24, "num_layers": 3,
}  # fmt: skip
COGVIDEOX_CONFIG = {
    "num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 4, "out_channels": 4, "time_embed_dim": 8,
    "text_embed_dim": 16, "num_layers": 3, "sample_width": 10, "sample_height": 8, "sample_frames": 9,
    "max_text_seq_length": 7, "spatial_interpolation_scale": 1.0,
}  # fmt: skip
FLUX_CALL = pass_conditions(y="pooled_projections", guidance="guidance")
IMAGE_WIDTHS = {"image_dim": 1280, "added_kv_proj_dim": 60}


def wan_with_image(name: str, images: int) -> Family:
    """ComfyUI's class takes the features of one vision model, which are as wide as 1280."""
    base = resized(name, **IMAGE_WIDTHS)

    def conditions(batch: int, *sizes: int) -> Tensors:
        given = FAMILIES[name].conditions(batch, *sizes)
        return {**given, "encoder_hidden_states_image": torch.randn(batch, 5 * images, 1280)}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        seen = torch.cat([latents, given["image_latents"]], dim=1)
        image = given["encoder_hidden_states_image"].reshape(-1, 5, 1280)
        return model(seen, timestep, given["encoder_hidden_states"], image).sample

    return replace(base, conditions=conditions, reference=reference)


def wan_vace() -> Family:
    config = {**FAMILIES["wan-t2v"].config, "num_layers": 4, "vace_layers": [0, 2], "vace_in_channels": 6}

    def conditions(batch: int, *sizes: int) -> Tensors:
        return {"encoder_hidden_states": torch.randn(batch, 7, 16), "control": torch.randn(batch, 6, *sizes)}

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, timestep, given["encoder_hidden_states"], control_hidden_states=given["control"]).sample

    return Family("WanVACETransformer3DModel", config, conditions, reference, VIDEOS)


def vace_call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
    context = given["control"].unsqueeze(1)
    return (latents, timestep, given["encoder_hidden_states"]), {"vace_context": context, "vace_strength": [1.0]}


def wan_animate() -> Family:
    config = {
        **FAMILIES["wan-t2v"].config,
        **IMAGE_WIDTHS,
        "in_channels": 36,
        "out_channels": 16,
        "latent_channels": 16,
        "num_layers": 5,
        "face_encoder_num_heads": 4,
    }

    def conditions(batch: int, frames: int, height: int, width: int) -> Tensors:
        """Of every latent frame but the first: a pose, and four of the face, of which the first stands alone."""
        return {
            "encoder_hidden_states": torch.randn(batch, 512, 16),
            "encoder_hidden_states_image": torch.randn(batch, 257, 1280),
            "pose_hidden_states": torch.randn(batch, 16, frames - 1, height, width),
            "face_pixel_values": torch.rand(batch, 3, 4 * (frames - 2) + 1, 512, 512),
        }

    def reference(model: torch.nn.Module, latents: torch.Tensor, timestep: torch.Tensor, given: Tensors):
        return model(latents, timestep, **given).sample

    return Family("WanAnimateTransformer3DModel", config, conditions, reference, VIDEOS)


def hunyuan_dit(name: str) -> Family:
    """With as many tokens of text, and pooled ones as wide, as ComfyUI's class takes for granted."""
    base = resized(name, text_len=77, text_len_t5=256, pooled_projection_dim=1024)

    def conditions(batch: int, height: int, width: int) -> Tensors:
        return {
            **FAMILIES[name].conditions(batch, height, width),
            "encoder_hidden_states": torch.randn(batch, 77, 24),
            "text_embedding_mask": (torch.arange(77) < 20).long().repeat(batch, 1),
            "encoder_hidden_states_t5": torch.randn(batch, 256, 16),
            "text_embedding_mask_t5": (torch.arange(256) < 200).long().repeat(batch, 1),
        }

    return replace(base, conditions=conditions)


def lumina_call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
    text = given["encoder_hidden_states"]
    return (latents, timestep, text, text.shape[1]), {}


def pixart_call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
    sizes = {"c_size": given["resolution"], "c_ar": given["aspect_ratio"]}
    return (latents, timestep, given["encoder_hidden_states"]), sizes


def chroma_call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
    return (latents, timestep, given["encoder_hidden_states"], torch.zeros_like(timestep)), {}


def ltx_call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
    return (latents, timestep, given["encoder_hidden_states"]), {"attention_mask": None, "frame_rate": 24}


def ofs_call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
    seen = torch.cat([latents, given["image_latents"]], dim=1)
    return (seen, timestep, given["encoder_hidden_states"]), {"ofs": torch.full((1,), 2.0)}


def edit_call(latents: torch.Tensor, timestep: torch.Tensor, given: Tensors) -> tuple[tuple, dict[str, Any]]:
    return (latents, timestep, given["encoder_hidden_states"]), {"ref_latents": [given["reference_latents_1"]]}


FLUX, WAN, COGVIDEOX = "flux.model.Flux", "wan.model.WanModel", "cogvideo.model.CogVideoXTransformer3DModel"
MMDIT = "modules.diffusionmodules.mmdit.OpenAISignatureMMDITWrapper"
NEXT, QWEN = "lumina.model.NextDiT", "qwen_image.model.QwenImageTransformer2DModel"
PIXART, HYDIT = "pixart.pixartms.PixArtMS", "hydit.models.HunYuanDiT"
HUNYUAN_VIDEO = "hunyuan_video.model.HunyuanVideo"
NULL_TEXT = frozenset({"y_embedder.y_embedding"})
HYDIT_CALL = pass_conditions(
    **{name: name for name in ("text_embedding_mask", "encoder_hidden_states_t5", "text_embedding_mask_t5")}
)
HYDIT_1_CALL = pass_conditions(
    **{name: name for name in ("text_embedding_mask", "encoder_hidden_states_t5", "text_embedding_mask_t5")},
    image_meta_size="image_meta_size",
    style="style",
)
TEXT_ONLY = pass_conditions()
CLIP_CALL = pass_conditions(clip_fea="encoder_hidden_states_image")
COGVIDEOX_SIZE = (2, 2, 8, 10)  # for which the tiny model is made
ROTARY = {"use_rotary_positional_embeddings": True}
COGVIDEOX_I2V = ROTARY | {"in_channels": 8, "patch_size_t": 2, "ofs_embed_dim": 8, "patch_bias": False}
WAN_I2V = WAN_CONFIG | {"model_type": "i2v", "in_dim": 9}
VACE = {"num_layers": 4, "vace_layers": 2, "vace_in_dim": 6}

CONVERTED: dict[str, ConvertedCase] = {
    "auraflow": ConvertedCase(FAMILIES["auraflow"], "aura.mmdit.MMDiT", AURA_CONFIG, TEXT_ONLY, size=IMAGES[SQUARE]),
    "chroma": ConvertedCase(
        resized("chroma", num_layers=28, approximator_num_channels=64),
        "chroma.model.Chroma",
        CHROMA_CONFIG,
        chroma_call,
    ),
    "cogvideox-5b": ConvertedCase(
        FAMILIES["cogvideox-5b"], COGVIDEOX, COGVIDEOX_CONFIG | ROTARY, TEXT_ONLY, size=COGVIDEOX_SIZE
    ),
    "cogvideox-5b-i2v": ConvertedCase(
        families.cogvideox(
            image=True,
            use_rotary_positional_embeddings=True,
            use_learned_positional_embeddings=True,
            num_attention_heads=6,
        ),
        COGVIDEOX,
        COGVIDEOX_CONFIG
        | ROTARY
        | {"in_channels": 8, "num_attention_heads": 6, "use_learned_positional_embeddings": True},
        TEXT_ONLY,
        size=COGVIDEOX_SIZE,
    ),
    "cogvideox-1.5-i2v": ConvertedCase(
        FAMILIES["cogvideox-1.5-i2v"], COGVIDEOX, COGVIDEOX_CONFIG | COGVIDEOX_I2V, ofs_call
    ),
    "flux-dev": ConvertedCase(FAMILIES["flux-dev"], FLUX, FLUX_CONFIG, FLUX_CALL),
    "flux-schnell": ConvertedCase(
        FAMILIES["flux-schnell"],
        FLUX,
        FLUX_CONFIG | {"guidance_embed": False},
        pass_conditions(y="pooled_projections"),
    ),
    "flux-fill": ConvertedCase(FAMILIES["flux-fill"], FLUX, FLUX_CONFIG | {"in_channels": 9}, FLUX_CALL),
    "flux2-dev": ConvertedCase(
        resized("flux2-dev", timestep_guidance_channels=256), FLUX, FLUX_2_CONFIG, pass_conditions(guidance="guidance")
    ),
    "flux2-klein": ConvertedCase(
        resized("flux2-klein", timestep_guidance_channels=256),
        FLUX,
        FLUX_2_CONFIG | {"guidance_embed": False},
        TEXT_ONLY,
    ),
    "hunyuandit-1.1": ConvertedCase(
        hunyuan_dit("hunyuandit-1.1"),
        HYDIT,
        HUNYUAN_DIT_CONFIG | {"size_cond": True, "use_style_cond": True},
        HYDIT_1_CALL,
        size=IMAGES[SQUARE],
    ),
    "hunyuandit-1.2": ConvertedCase(
        hunyuan_dit("hunyuandit-1.2"), HYDIT, HUNYUAN_DIT_CONFIG, HYDIT_CALL, size=IMAGES[SQUARE]
    ),
    "hunyuanvideo": ConvertedCase(
        resized(families.hunyuanvideo(mask=False), num_refiner_layers=2),
        HUNYUAN_VIDEO,
        HUNYUAN_VIDEO_CONFIG,
        FLUX_CALL,
    ),
    "hunyuanvideo-i2v": ConvertedCase(
        resized(families.hunyuanvideo(guidance_embeds=False, mask=False, image=True), num_refiner_layers=2),
        HUNYUAN_VIDEO,
        HUNYUAN_VIDEO_CONFIG | {"in_channels": 9, "guidance_embed": False},
        pass_conditions(y="pooled_projections"),
    ),
    "ltx": ConvertedCase(FAMILIES["ltx"], "lightricks.model.LTXVModel", LTX_CONFIG, ltx_call),
    "ltx-0.9.5": ConvertedCase(
        families.ltx(coords=True),
        "lightricks.model.LTXVModel",
        LTX_CONFIG | {"causal_temporal_positioning": True},
        ltx_call,
    ),
    "lumina2": ConvertedCase(FAMILIES["lumina2"], NEXT, LUMINA_CONFIG, lumina_call),
    "pixart-alpha": ConvertedCase(
        resized("pixart-alpha", sample_size=64), PIXART, PIXART_CONFIG, pixart_call, NULL_TEXT, (2, 64, 64)
    ),
    "pixart-sigma": ConvertedCase(
        resized("pixart-sigma", sample_size=64),
        PIXART,
        PIXART_CONFIG | {"micro_condition": False},
        TEXT_ONLY,
        NULL_TEXT,
        (2, 64, 64),
    ),
    "qwenimage": ConvertedCase(FAMILIES["qwenimage"], QWEN, QWEN_CONFIG, TEXT_ONLY, size=(2, 1, 16, 16)),
    "qwenimage-edit": ConvertedCase(
        families.qwenimage(references=((8, 12),), zero_cond_t=True),
        QWEN,
        QWEN_CONFIG | {"default_ref_method": "index_timestep_zero"},
        edit_call,
        frozenset(),
        (2, 1, 16, 16),
    ),
    "sd3": ConvertedCase(
        resized("sd3", attention_head_dim=64, num_attention_heads=2, caption_projection_dim=128),
        MMDIT,
        SD3_CONFIG,
        pass_conditions(y="pooled_projections"),
    ),
    "sd3.5": ConvertedCase(
        resized("sd3.5", attention_head_dim=64, num_attention_heads=2, caption_projection_dim=128),
        MMDIT,
        SD3_CONFIG | {"qk_norm": "rms", "x_block_self_attn_layers": [0, 1]},
        pass_conditions(y="pooled_projections"),
    ),
    "wan-t2v": ConvertedCase(FAMILIES["wan-t2v"], WAN, WAN_CONFIG, TEXT_ONLY),
    "wan-2.1-i2v": ConvertedCase(wan_with_image("wan-2.1-i2v", 1), WAN, WAN_I2V, CLIP_CALL),
    "wan-2.1-flf2v": ConvertedCase(
        wan_with_image("wan-2.1-flf2v", 2), WAN, WAN_I2V | {"flf_pos_embed_token_number": 10}, CLIP_CALL
    ),
    "wan-2.2-i2v": ConvertedCase(FAMILIES["wan-2.2-i2v"], WAN, WAN_CONFIG | {"in_dim": 9}, TEXT_ONLY),
    "wan-2.2-ti2v": ConvertedCase(FAMILIES["wan-2.2-ti2v"], WAN, WAN_CONFIG, TEXT_ONLY),
    "wan-animate": ConvertedCase(
        wan_animate(),
        "wan.model_animate.AnimateWanModel",
        WAN_CONFIG | {"model_type": "animate", "in_dim": 36, "out_dim": 16, "num_layers": 5},
        pass_conditions(
            clip_fea="encoder_hidden_states_image",
            pose_latents="pose_hidden_states",
            face_pixel_values="face_pixel_values",
        ),
        size=(1, 2, 6, 10),
    ),
    "wan-vace": ConvertedCase(wan_vace(), "wan.model.VaceWanModel", WAN_CONFIG | VACE, vace_call),
    "z-image": ConvertedCase(
        resized("z-image", **Z_IMAGE, axes_lens=[1536, 512, 512]), NEXT, Z_IMAGE_CONFIG, lumina_call
    ),
}
