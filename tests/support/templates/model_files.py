"""The model files that ComfyUI's own workflows name, and what ComfyUI detects in each, by published proportions.

A file's names and shapes are those of ComfyUI's own class, made by the class of `comfy.supported_models` from what
ComfyUI's detection reads off such a file. Blocks are fewer where nothing depends on their number. An older ComfyUI
lacks some of these classes, and its workflows name no files of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

CHECKPOINT = "model.diffusion_model."


@dataclass(frozen=True)
class ModelFile:
    """names: a regular expression of the names of such files, in lower case. detected_as: the class of
    comfy.supported_models. sizes: what ComfyUI detects beside what that class says itself.

    prefix: of the names in a checkpoint. beside: what else it has that ComfyUI makes the model with, by name the shape.
    marks: names without a meaning but that they are there. metadata: what the file says of the model. stored: the dtype
    of matrices and kernels. size: in bytes, of a file in which so many matrices are as they were that it comes to that.
    """

    names: str
    detected_as: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    prefix: str = ""
    beside: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    stored: torch.dtype = torch.bfloat16
    size: float = 0


def flux(names: str, detected_as: str, **sizes: Any) -> ModelFile:
    plain = {
        **{"image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096},
        **{"hidden_size": 3072, "mlp_ratio": 4.0, "num_heads": 24, "depth": 2, "depth_single_blocks": 2},
        **{"axes_dim": [16, 56, 56], "theta": 10000, "patch_size": 2, "qkv_bias": True, "txt_ids_dims": []},
        "guidance_embed": True,
    }
    return ModelFile(names, detected_as, plain | sizes)


def flux_2(names: str, hidden: int, context: int, *, guidance: bool = False) -> ModelFile:
    sizes = {
        **{"image_model": "flux2", "in_channels": 128, "out_channels": 128, "vec_in_dim": None, "mlp_ratio": 3.0},
        **{"context_in_dim": context, "hidden_size": hidden, "num_heads": hidden // 128, "depth": 2, "theta": 2000},
        **{"depth_single_blocks": 2, "axes_dim": [32] * 4, "patch_size": 1, "qkv_bias": False, "txt_ids_dims": [3]},
        **{"global_modulation": True, "mlp_silu_act": True, "ops_bias": False, "guidance_embed": guidance},
    }
    return ModelFile(names, "Flux2", sizes)


def chroma(names: str, detected_as: str, **sizes: Any) -> ModelFile:
    own = {"in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 3072, "hidden_dim": 5120, "n_layers": 5}
    made = flux(names, detected_as, **{**own, "vec_in_dim": None, **sizes})
    return replace(made, sizes={name: size for name, size in made.sizes.items() if name != "guidance_embed"})


def wan(names: str, detected_as: str, dim: int = 5120, **sizes: Any) -> ModelFile:
    """dim: 1536 for those of 1.3 B parameters, 3072 for 5 B, 5120 for 14 B."""
    ffn = {1536: 8960, 3072: 14336, 5120: 13824}[dim]
    plain = {"image_model": "wan2.1", "dim": dim, "ffn_dim": ffn, "num_heads": dim // 128, "num_layers": 4}
    plain |= {"in_dim": 16, "out_dim": 16, "model_type": "t2v", "patch_size": (1, 2, 2), "freq_dim": 256}
    return ModelFile(names, detected_as, plain | sizes)


def said_to_be(file: ModelFile, **sizes: Any) -> ModelFile:
    """A file whose metadata says what its weights do not show."""
    return replace(file, sizes={**file.sizes, **sizes}, metadata={"transformer": sizes})


def hunyuan_video(names: str, detected_as: str, **sizes: Any) -> ModelFile:
    plain = {
        **{"image_model": "hunyuan_video", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "theta": 256},
        **{"context_in_dim": 4096, "hidden_size": 3072, "mlp_ratio": 4.0, "num_heads": 24, "depth": 2},
        **{"depth_single_blocks": 2, "axes_dim": [16, 56, 56], "patch_size": [1, 2, 2], "qkv_bias": True},
        **{"guidance_embed": True, "byt5": False, "meanflow": False, "use_cond_type_embedding": False},
        **{"vision_in_dim": None, "meanflow_sum": False},
    }
    return ModelFile(names, detected_as, plain | sizes)


def hunyuan_video_15(names: str, detected_as: str = "HunyuanVideo15", **sizes: Any) -> ModelFile:
    own: dict[str, Any] = {"in_channels": 65, "out_channels": 32, "vec_in_dim": None, "context_in_dim": 3584}
    own |= {"hidden_size": 2048, "num_heads": 16, "depth_single_blocks": 0, "patch_size": [1, 1, 1]}
    own |= {"guidance_embed": False, "byt5": True, "use_cond_type_embedding": True, "vision_in_dim": 1152}
    return hunyuan_video(names, detected_as, **own | {"meanflow_sum": True} | sizes)


def unet(names: str, detected_as: str, prefix: str = CHECKPOINT, **sizes: Any) -> ModelFile:
    """Of Stable Diffusion's kin."""
    plain = {
        **{"image_size": 32, "in_channels": 4, "out_channels": 4, "model_channels": 320, "adm_in_channels": None},
        **{"num_res_blocks": [2] * 4, "channel_mult": [1, 2, 4, 4], "use_spatial_transformer": True, "legacy": False},
        **{"transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0], "transformer_depth_middle": 1, "dims": 2},
        **{"transformer_depth_output": [1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0], "context_dim": 1024},
        **{"use_linear_in_transformer": True, "use_temporal_attention": False, "use_temporal_resblock": False},
    }
    return ModelFile(names, detected_as, plain | sizes, prefix)


def sdxl(names: str, **more: tuple[int, ...]) -> ModelFile:
    own = {"num_res_blocks": [2] * 3, "channel_mult": [1, 2, 4], "transformer_depth": [0, 0, 2, 2, 10, 10]}
    own |= {"transformer_depth_middle": 10, "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10]}
    made = unet(names, "SDXL", **own, context_dim=2048, adm_in_channels=2816, num_classes="sequential")
    return replace(made, beside=more)


def lumina(names: str, detected_as: str, prefix: str = "", **sizes: Any) -> ModelFile:
    plain = {"image_model": "lumina2", "patch_size": 2, "in_channels": 16, "n_layers": 2, "qk_norm": True}
    return ModelFile(names, detected_as, plain | sizes, prefix)


def lumina_2(names: str, prefix: str = "", **sizes: Any) -> ModelFile:
    own = {"dim": 2304, "n_heads": 24, "n_kv_heads": 8, "axes_dims": [32] * 3, "axes_lens": [300, 512, 512]}
    own |= {"rope_theta": 10000.0, "ffn_dim_multiplier": 4.0, "cap_feat_dim": 2304}
    return lumina(names, "Lumina2", prefix, **own | sizes)


def stable_audio(names: str, detected_as: str, beside: Mapping[str, tuple[int, ...]], **sizes: Any) -> ModelFile:
    plain = {"audio_model": "dit1.0", "io_channels": 64, "embed_dim": 1536, "depth": 2, "input_concat_dim": 0}
    plain |= {"global_cond_dim": 1536, "project_cond_tokens": False, "timestep_features_type": "learned"}
    return ModelFile(names, detected_as, plain | sizes, "model.model.", beside)


SECONDS = "conditioner.conditioners.seconds_{}.embedder.embedding.{}"
NUMBERS = {"0.weights": (128,), "1.weight": (768, 257), "1.bias": (768,)}
QWEN = {"image_model": "qwen_image", "in_channels": 64, "num_layers": 2}
LTX_2 = {"num_layers": 2, "attention_head_dim": 128}
LTX_23 = {"apply_gated_attention": True, "cross_attention_adaln": True}
KANDINSKY = {"image_model": "kandinsky5", "num_text_blocks": 2, "num_visual_blocks": 2}
FLUX_FILES = (
    flux(r"flux1-(dev|krea).*", "Flux"),
    flux(r"flux1-schnell.*", "FluxSchnell", guidance_embed=False),
    flux(r"flux1-fill.*|flux\.1-fill.*", "FluxInpaint", in_channels=96),
    flux(r"flux1-canny.*", "Flux", in_channels=32),
    flux(
        r"ovis_image.*", "FluxSchnell", guidance_embed=False, vec_in_dim=None, context_in_dim=2048, yak_mlp=True,
        txt_norm=True, txt_ids_dims=[1, 2],
    ),
    flux(
        r"longcat_image.*", "LongCatImage", guidance_embed=False, vec_in_dim=None, context_in_dim=3584,
        txt_ids_dims=[1, 2],
    ),
    flux_2(r"flux2_dev.*", 6144, 15360, guidance=True),
    flux_2(r"flux-2-klein-(base-)?4b.*", 3072, 7680),
    flux_2(r"flux-2-klein-(base-)?9b.*", 4096, 12288),
    chroma(r"chroma1-hd.*", "Chroma", image_model="chroma"),
    chroma(
        r"chroma-radiance.*", "ChromaRadiance", image_model="chroma_radiance", patch_size=16, nerf_hidden_size=64,
        nerf_mlp_ratio=4, nerf_depth=4, nerf_max_freqs=8, nerf_tile_size=512, nerf_final_head_type="conv",
        nerf_embedder_dtype=torch.float32, use_x0=True, use_sequential_txt_ids=False, in_channels=3,
        out_channels=3,
    ),
)  # fmt: skip
WAN_FILES = (
    wan(r"wan2\.1_t2v_1\.3b.*", "WAN21_T2V", 1536),
    wan(r"wan2\.[12]_t2v_.*", "WAN21_T2V"),
    wan(r"wan2\.2_bernini.*", "WAN21_T2V"),
    wan(r"wan2\.1_i2v.*|wan2_1-i2v.*|wan21-wanmove.*|chrono_edit.*", "WAN21_I2V", in_dim=36, model_type="i2v"),
    wan(r"wan2\.1_flf2v.*", "WAN21_I2V", in_dim=36, model_type="i2v", flf_pos_embed_token_number=514),
    wan(r"wan2\.2_i2v.*|wan2\.2_fun_inpaint_.*14b.*", "WAN21_T2V", in_dim=36),
    wan(r"wan2\.1_fun_inp_1\.3b.*", "WAN21_I2V", 1536, in_dim=36, model_type="i2v"),
    wan(r"wan2\.1_fun_control_1\.3b.*", "WAN21_FunControl2V", 1536, in_dim=48, model_type="i2v"),
    wan(r"wan2\.2_fun_control_.*14b.*", "WAN21_T2V", in_dim=52, in_dim_ref_conv=16),
    wan(r"wan2\.2_ti2v_5b.*", "WAN22_T2V", 3072, in_dim=48, out_dim=48),
    wan(r"wan2\.2_fun_control_5b.*", "WAN22_T2V", 3072, in_dim=148, out_dim=48, in_dim_ref_conv=48),
    wan(r"wan2\.2_fun_inpaint_5b.*", "WAN22_T2V", 3072, in_dim=100, out_dim=48),
    wan(r"wan2\.1_fun_camera_.*1\.3b.*", "WAN21_Camera", 1536, in_dim=32, model_type="camera"),
    wan(r"wan2\.1_fun_camera_.*14b.*", "WAN21_Camera", in_dim=32, model_type="camera"),
    wan(r"wan2\.2_fun_camera_.*", "WAN22_Camera", in_dim=36, model_type="camera_2.2"),
    wan(r"wan2\.1_vace_1\.3b.*", "WAN21_Vace", 1536, model_type="vace", vace_layers=2, vace_in_dim=96),
    wan(r"wan2\.1_vace_14b.*", "WAN21_Vace", model_type="vace", vace_layers=2, vace_in_dim=96),
    wan(r"wan2\.2_s2v.*", "WAN22_S2V", model_type="s2v"),
    wan(r"humo_17b.*", "WAN21_HuMo", in_dim=36, model_type="humo"),
    wan(r"wan2\.1_14b_scail_2.*", "WAN21_SCAIL2", in_dim=20, model_type="scail2"),
    wan(r"wan2\.2_dancer.*", "WAN22_WanDancer", in_dim=36, model_type="wandancer"),
    said_to_be(wan(r"causal_forcing.*", "WAN21_CausalAR_T2V", 1536), causal_ar=True),
    said_to_be(wan(r"wan_animate_2.*", "WAN_Animate2", in_dim=36), model_type="animate2"),
)
VIDEO_FILES = (
    hunyuan_video(r"hunyuan_video_t2v.*", "HunyuanVideo"),
    hunyuan_video_15(r"hunyuanvideo1\.5_720p.*|capybara.*"),
    hunyuan_video_15(r"hunyuanvideo1\.5_1080p_sr.*", "HunyuanVideo15_SR_Distilled", in_channels=98),
    ModelFile(r"ltx-video-2b.*", "LTXV", {"num_layers": 2, "attention_head_dim": 64}, CHECKPOINT),
    ModelFile(r"ltx-2-19b.*", "LTXAV", LTX_2, CHECKPOINT),
    said_to_be(ModelFile(r"ltx-2\.3-22b.*", "LTXAV", LTX_2, CHECKPOINT), **LTX_23),
    said_to_be(
        ModelFile(r"ltx-2\.5-22b.*", "LTXAV", {**LTX_2, "use_keyframes_abs_pos_embedding": True}),
        **LTX_23, ff_bias=False,
    ),
    ModelFile(
        r"minimax_h3.*", "MiniMaxH3",
        {"num_layers": 2, "token_refiner_num_layers": 1, "rope_inv_freq_len": 16},
    ),
    ModelFile(
        r"kandinsky5lite_(t2v|i2v).*", "Kandinsky5",
        {**KANDINSKY, "model_dim": 1792, "time_dim": 512, "ff_dim": 7168, "axes_dims": (16, 24, 24),
         "visual_embed_dim": 132},
    ),
    ModelFile(
        r"void_pass.*", "CogVideoX_Inpaint",
        {"num_attention_heads": 48, "attention_head_dim": 64, "time_embed_dim": 512, "num_layers": 2,
         "in_channels": 48, "patch_size": 2, "patch_size_t": 2, "text_embed_dim": 4096,
         "use_rotary_positional_embeddings": True, "use_learned_positional_embeddings": False},
    ),
    ModelFile(
        r"seedvr2_3b.*", "SeedVR2",
        {"vid_dim": 2560, "heads": 20, "num_layers": 32, "norm_eps": 1e-5, "mlp_type": "swiglu",
         "vid_out_norm": True},
    ),
    ModelFile(
        r"seedvr2_7b.*", "SeedVR2",
        {"vid_dim": 3072, "heads": 24, "num_layers": 36, "mm_layers": 36, "norm_eps": 1e-5, "rope_type": "rope3d",
         "rope_dim": 64, "mlp_type": "normal"},
    ),
)  # fmt: skip
IMAGE_FILES = (
    ModelFile(r"qwen_image_edit_2511.*", "QwenImage", QWEN, marks=("__index_timestep_zero__",)),
    ModelFile(r"qwen_image_layered.*", "QwenImage", {**QWEN, "use_additional_t_cond": True}),
    ModelFile(r"qwen_image.*|firered-image-edit.*", "QwenImage", QWEN),
    lumina(
        r"z_image.*", "ZImage", dim=3840, n_heads=30, n_kv_heads=30, cap_feat_dim=2560, axes_dims=[32, 48, 48],
        axes_lens=[1536, 512, 512], rope_theta=256.0, ffn_dim_multiplier=8 / 3, z_image_modulation=True,
        time_scale=1000.0, pad_tokens_multiple=32,
    ),
    lumina_2(r"netayume.*", CHECKPOINT),
    lumina_2(r"newbie-image.*", cap_feat_dim=2560, clip_text_dim=1024),
    ModelFile(
        r"sd3\.5_large.*", "SD3",
        {"in_channels": 16, "patch_size": 2, "out_channels": 16, "depth": 38, "input_size": None,
         "adm_in_channels": 2048, "num_patches": 36864, "pos_embed_max_size": 192, "qk_norm": "rms",
         "pos_embed_scaling_factor": None, "x_block_self_attn_layers": [],
         "context_embedder_config": {
             "target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 2432}}},
        CHECKPOINT,
    ),
    ModelFile(
        r"hidream_(i1|e1).*", "HiDream",
        {"attention_head_dim": 128, "axes_dims_rope": [64, 32, 32], "caption_channels": [4096, 4096],
         "max_resolution": [128, 128], "in_channels": 16, "llama_layers": [*range(32), *[31] * 16],
         "num_attention_heads": 20, "num_routed_experts": 4, "num_activated_experts": 2, "num_layers": 16,
         "num_single_layers": 32, "out_channels": 16, "patch_size": 2, "text_emb_dim": 2048},
    ),
    ModelFile(r"hidream_o1.*", "HiDreamO1", prefix="model."),
    ModelFile(
        r"omnigen2.*", "Omnigen2",
        {"axes_dim_rope": [40, 40, 40], "axes_lens": [1024, 1664, 1664], "hidden_size": 2520, "in_channels": 16,
         "num_attention_heads": 21, "num_kv_heads": 7, "num_layers": 32, "num_refiner_layers": 2,
         "patch_size": 2, "text_feat_dim": 2048, "timestep_scale": 1000.0, "multiple_of": 256, "norm_eps": 1e-5,
         "ffn_dim_multiplier": None, "out_channels": None},
    ),
    ModelFile(r"boogu_image.*", "Boogu", {"num_layers": 2, "num_double_stream_layers": 2, "num_refiner_layers": 2}),
    ModelFile(r"ernie-image.*", "ErnieImage"),
    ModelFile(r"ideogram4.*", "Ideogram4", {"num_layers": 2}),
    ModelFile(r"joyai_image.*", "JoyImage", {"num_layers": 2, "text_dim": 4096}),
    ModelFile(
        r"kandinsky5lite_t2i.*", "Kandinsky5Image",
        {**KANDINSKY, "model_dim": 2560, "time_dim": 512, "ff_dim": 10240, "axes_dims": (32, 48, 48),
         "rope_scale_factor": (1.0, 1.0, 1.0), "visual_embed_dim": 64},
    ),
    ModelFile(
        r"krea2_.*", "Krea2",
        {"features": 6144, "channels": 16, "patch": 2, "layers": 2, "heads": 48, "kvheads": 12, "txtlayers": 12,
         "txtdim": 2560},
    ),
    ModelFile(r"lens_.*", "Lens", {"num_layers": 2, "multi_layer_encoder_feature": True}),
    ModelFile(r"mage_flow.*", "MageFlow", {"in_channels": 128, "num_layers": 2}),
    ModelFile(r"pid_flux1.*", "PiD", {"lq_hidden_dim": 512, "lq_latent_channels": 16, "lq_interval": 2}),
    ModelFile(r"pixeldit.*", "PixelDiTT2I", prefix="core."),
    ModelFile(r"anima-.*", "Anima", {
        "max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16, "out_channels": 16,
        "patch_spatial": 2, "patch_temporal": 1, "model_channels": 2048, "concat_padding_mask": True,
        "crossattn_emb_channels": 1024, "pos_emb_cls": "rope3d", "use_adaln_lora": True, "adaln_lora_dim": 256,
        "num_blocks": 28, "num_heads": 16, "extra_per_block_abs_pos_emb": False}),
    unet(r"v1-5-pruned.*|dreamshaper_8.*", "SD15", context_dim=768, use_linear_in_transformer=False),
    sdxl(r"sd_xl_(base|turbo).*|sdxl_lightning.*"),
    sdxl(r"noobai-xl-vpred.*", v_pred=(0,)),
    unet(
        r"sd_xl_refiner.*", "SDXLRefiner", model_channels=384, context_dim=1280, adm_in_channels=2560,
        num_classes="sequential", channel_mult=[1, 2, 4, 4], transformer_depth=[0, 0, 4, 4, 4, 4, 0, 0],
        transformer_depth_middle=4, transformer_depth_output=[0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0],
    ),
    unet(r"lotus-depth-d.*", "LotusD", "", adm_in_channels=4, num_classes="sequential"),
    unet(
        r"svd_xt.*", "SVD_img2vid", in_channels=8, adm_in_channels=768, num_classes="sequential",
        extra_ff_mix_layer=True, use_spatial_context=True, merge_strategy="learned_with_images", merge_factor=0.0,
        video_kernel_size=[3, 1, 1], use_temporal_resblock=True, use_temporal_attention=True,
        disable_temporal_crossattention=False,
    ),
)  # fmt: skip
OTHER_FILES = (
    ModelFile(
        r"ace_step_v1_3\.5b.*", "ACEStep",
        {"attention_head_dim": 128, "in_channels": 8, "inner_dim": 2560, "max_height": 16, "max_position": 32768,
         "max_width": 32768, "mlp_ratio": 2.5, "num_attention_heads": 20, "num_layers": 24, "out_channels": 8,
         "patch_size": [16, 1], "rope_theta": 1000000.0, "speaker_embedding_dim": 512, "text_embedding_dim": 768,
         "ssl_encoder_depths": [8, 8], "ssl_latent_dims": [1024, 768], "ssl_names": ["mert", "m-hubert"],
         "lyric_encoder_vocab_size": 6693, "lyric_hidden_size": 1024},
        CHECKPOINT,
    ),
    ModelFile(r"ace_step_1\.5_turbo_aio.*", "ACEStep15", {"num_dit_layers": 2}, CHECKPOINT),
    ModelFile(r"acestep_v1\.5.*", "ACEStep15", {"num_dit_layers": 2}),
    stable_audio(
        r"stable-audio-open.*", "StableAudio",
        {SECONDS.format(end, name): shape for end in ("start", "total") for name, shape in NUMBERS.items()},
    ),
    stable_audio(
        r"stable_audio_3.*", "StableAudio3",
        {SECONDS.format("total", "1.weight"): (768, 256), SECONDS.format("total", "1.bias"): (768,),
         "conditioner.conditioners.prompt.padding_embedding": (768,)},
        global_cond_shared_embed=True, global_cond_type="adaLN", global_cond_dim=768, timestep_features_type="expo",
    ),
    ModelFile(
        r"hunyuan3d-dit-v2-mv.*|hunyuan3d-dit-v2_.*", "Hunyuan3Dv2",
        {"in_channels": 64, "context_in_dim": 1536, "hidden_size": 1024, "mlp_ratio": 4.0, "num_heads": 16,
         "depth": 16, "depth_single_blocks": 2, "qkv_bias": True, "guidance_embed": False},
        "model.",
    ),
    ModelFile(
        r"hunyuan_3d_v2\.1.*", "Hunyuan3Dv2_1",
        {"in_channels": 64, "context_dim": 1024, "hidden_size": 2048, "mlp_ratio": 4.0, "num_heads": 16, "depth": 21,
         "qkv_bias": False, "guidance_cond_proj_dim": None},
        "model.",
    ),
    ModelFile(r"triposplat.*", "TripoSplat"),
    ModelFile(r"minimax_music3_dit.*", "MiniMaxMusic3"),
)  # fmt: skip
MODEL_FILES = FLUX_FILES + WAN_FILES + VIDEO_FILES + IMAGE_FILES + OTHER_FILES
# Models that make no image, sound or shape out of noise, and what they are.
NOT_DIFFUSION = {
    r"sam3.*": "it finds objects (SAM 3)",
    r"rt_detr.*": "it finds objects (RT-DETR)",
    r"sdpose_.*": "it finds poses (SDPose)",
}


def model_file(name: str) -> ModelFile | None:
    """What is known of a file by its name."""
    return next((each for each in MODEL_FILES if re.fullmatch(each.names, name.lower())), None)


def other_use(name: str) -> str:
    """What a model that is no diffusion model is for; empty for one that is."""
    return next((use for names, use in NOT_DIFFUSION.items() if re.fullmatch(names, name.lower())), "")
