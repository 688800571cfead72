"""The model files that ComfyUI's own workflows name, and what ComfyUI detects in each, by published proportions.

A file's names and shapes are those of ComfyUI's own class, made by the class of `comfy.supported_models`. What is here
is only what those two do not say themselves. Blocks are fewer where nothing depends on their number. An older ComfyUI
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
    comfy.supported_models. sizes: on which names and shapes depend, beside what the classes say.

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


FLUX_LIKE = {
    **{"in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": 3072},
    **{"mlp_ratio": 4.0, "num_heads": 24, "depth": 2, "depth_single_blocks": 2, "axes_dim": [16, 56, 56]},
    "qkv_bias": True,
}


def flux(names: str, detected_as: str, **sizes: Any) -> ModelFile:
    own = {"theta": 10000, "patch_size": 2, "txt_ids_dims": []}
    return ModelFile(names, detected_as, {**FLUX_LIKE, **own, **sizes})


def flux_2(names: str, hidden: int, context: int, *, guidance: bool = False) -> ModelFile:
    sizes = {
        **{"in_channels": 128, "out_channels": 128, "vec_in_dim": None, "mlp_ratio": 3.0, "context_in_dim": context},
        **{"hidden_size": hidden, "num_heads": hidden // 128, "theta": 2000, "axes_dim": [32] * 4, "patch_size": 1},
        **{"qkv_bias": False, "txt_ids_dims": [3], "global_modulation": True, "mlp_silu_act": True},
        **{"ops_bias": False, "guidance_embed": guidance},
    }
    return flux(names, "Flux2", **sizes)


def chroma(names: str, detected_as: str, **sizes: Any) -> ModelFile:
    own = {"in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 3072, "hidden_dim": 5120, "n_layers": 5}
    return flux(names, detected_as, **{**own, "vec_in_dim": None, **sizes})


def wan(names: str, detected_as: str, dim: int = 5120, **sizes: Any) -> ModelFile:
    """dim: 1536 for those of 1.3 B parameters, 3072 for 5 B, 5120 for 14 B."""
    ffn = {1536: 8960, 3072: 14336, 5120: 13824}[dim]
    return ModelFile(names, detected_as, {"dim": dim, "ffn_dim": ffn, "num_layers": 4, **sizes})


def said_to_be(file: ModelFile, **sizes: Any) -> ModelFile:
    """A file whose metadata says what its weights do not show."""
    return replace(file, sizes={**file.sizes, **sizes}, metadata={"transformer": sizes})


def hunyuan_video(names: str, detected_as: str, **sizes: Any) -> ModelFile:
    own = {"theta": 256, "patch_size": [1, 2, 2], "guidance_embed": True, "byt5": False, "meanflow": False}
    own |= {"use_cond_type_embedding": False, "vision_in_dim": None, "meanflow_sum": False}
    return ModelFile(names, detected_as, {**FLUX_LIKE, **own, **sizes})


def hunyuan_video_15(names: str, detected_as: str = "HunyuanVideo15", **sizes: Any) -> ModelFile:
    own: dict[str, Any] = {"in_channels": 65, "out_channels": 32, "vec_in_dim": None, "context_in_dim": 3584}
    own |= {"hidden_size": 2048, "num_heads": 16, "depth_single_blocks": 0, "patch_size": [1, 1, 1]}
    own |= {"guidance_embed": False, "byt5": True, "use_cond_type_embedding": True, "vision_in_dim": 1152}
    return hunyuan_video(names, detected_as, **own | {"meanflow_sum": True} | sizes)


def unet(names: str, detected_as: str, prefix: str = CHECKPOINT, **sizes: Any) -> ModelFile:
    """Of Stable Diffusion's kin."""
    plain = {
        **{"image_size": 32, "in_channels": 4, "out_channels": 4, "num_res_blocks": [2] * 4},
        **{"channel_mult": [1, 2, 4, 4], "use_spatial_transformer": True, "transformer_depth_middle": 1},
        **{"transformer_depth": [1] * 6 + [0] * 2, "transformer_depth_output": [1] * 9 + [0] * 3},
    }
    return ModelFile(names, detected_as, plain | sizes, prefix)


def sdxl(names: str, **more: tuple[int, ...]) -> ModelFile:
    own = {"num_res_blocks": [2] * 3, "channel_mult": [1, 2, 4], "transformer_depth": [0, 0, 2, 2, 10, 10]}
    own |= {"transformer_depth_middle": 10, "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10]}
    return replace(unet(names, "SDXL", **own, num_classes="sequential"), beside=more)


def lumina_2(names: str, prefix: str = "", **sizes: Any) -> ModelFile:
    own = {"in_channels": 16, "n_layers": 2, "qk_norm": True, "dim": 2304, "n_heads": 24, "n_kv_heads": 8}
    return ModelFile(names, "Lumina2", {**own, "axes_dims": [32] * 3, "cap_feat_dim": 2304, **sizes}, prefix)


def stable_audio(names: str, detected_as: str, beside: Mapping[str, tuple[int, ...]], **sizes: Any) -> ModelFile:
    return ModelFile(names, detected_as, {"depth": 2, **sizes}, "model.model.", beside)


SECONDS = "conditioner.conditioners.seconds_{}.embedder.embedding.{}"
NUMBERS = {"0.weights": (128,), "1.weight": (768, 257), "1.bias": (768,)}
LTX_23 = {"apply_gated_attention": True, "cross_attention_adaln": True}
FLUX_FILES = (
    flux(r"flux1-(dev|krea).*", "Flux"),
    flux(r"flux1-schnell.*", "FluxSchnell"),
    flux(r"flux1-fill.*|flux\.1-fill.*", "FluxInpaint", in_channels=96),
    flux(r"flux1-canny.*", "Flux", in_channels=32),
    flux(
        r"ovis_image.*", "FluxSchnell", vec_in_dim=None, context_in_dim=2048, yak_mlp=True, txt_norm=True,
        txt_ids_dims=[1, 2],
    ),
    flux(r"longcat_image.*", "LongCatImage", vec_in_dim=None, context_in_dim=3584, txt_ids_dims=[1, 2]),
    flux_2(r"flux2_dev.*", 6144, 15360, guidance=True),
    flux_2(r"flux-2-klein-(base-)?4b.*", 3072, 7680),
    flux_2(r"flux-2-klein-(base-)?9b.*", 4096, 12288),
    chroma(r"chroma1-hd.*", "Chroma"),
    chroma(
        r"chroma-radiance.*", "ChromaRadiance", patch_size=16, nerf_hidden_size=64, nerf_mlp_ratio=4, nerf_depth=4,
        nerf_max_freqs=8, nerf_tile_size=512, nerf_final_head_type="conv", nerf_embedder_dtype=torch.float32,
        use_x0=True, use_sequential_txt_ids=False, in_channels=3, out_channels=3,
    ),
)  # fmt: skip
WAN_FILES = (
    wan(r"wan2\.1_t2v_1\.3b.*", "WAN21_T2V", 1536),
    wan(r"wan2\.[12]_t2v_.*|wan2\.2_bernini.*", "WAN21_T2V"),
    wan(r"wan2\.1_i2v.*|wan2_1-i2v.*|wan21-wanmove.*|chrono_edit.*", "WAN21_I2V"),
    wan(r"wan2\.1_flf2v.*", "WAN21_I2V", flf_pos_embed_token_number=514),
    wan(r"wan2\.2_i2v.*|wan2\.2_fun_inpaint_.*14b.*", "WAN21_T2V", in_dim=36),
    wan(r"wan2\.1_fun_inp_1\.3b.*", "WAN21_I2V", 1536),
    wan(r"wan2\.1_fun_control_1\.3b.*", "WAN21_FunControl2V", 1536),
    wan(r"wan2\.2_fun_control_.*14b.*", "WAN21_T2V", in_dim=52, in_dim_ref_conv=16),
    wan(r"wan2\.2_ti2v_5b.*", "WAN22_T2V", 3072, in_dim=48),
    wan(r"wan2\.2_fun_control_5b.*", "WAN22_T2V", 3072, in_dim=148, in_dim_ref_conv=48),
    wan(r"wan2\.2_fun_inpaint_5b.*", "WAN22_T2V", 3072, in_dim=100),
    wan(r"wan2\.1_fun_camera_.*1\.3b.*", "WAN21_Camera", 1536),
    wan(r"wan2\.1_fun_camera_.*14b.*", "WAN21_Camera"),
    wan(r"wan2\.2_fun_camera_.*", "WAN22_Camera"),
    wan(r"wan2\.1_vace_1\.3b.*", "WAN21_Vace", 1536, vace_layers=2, vace_in_dim=96),
    wan(r"wan2\.1_vace_14b.*", "WAN21_Vace", vace_layers=2, vace_in_dim=96),
    wan(r"wan2\.2_s2v.*", "WAN22_S2V"),
    wan(r"humo_17b.*", "WAN21_HuMo", in_dim=36),
    wan(r"wan2\.1_14b_scail_2.*", "WAN21_SCAIL2"),
    wan(r"wan2\.2_dancer.*", "WAN22_WanDancer"),
    said_to_be(wan(r"causal_forcing.*", "WAN21_CausalAR_T2V", 1536), causal_ar=True),
    said_to_be(wan(r"wan_animate_2.*", "WAN_Animate2", in_dim=36), model_type="animate2"),
)
VIDEO_FILES = (
    hunyuan_video(r"hunyuan_video_t2v.*", "HunyuanVideo"),
    hunyuan_video_15(r"hunyuanvideo1\.5_720p.*|capybara.*"),
    hunyuan_video_15(r"hunyuanvideo1\.5_1080p_sr.*", "HunyuanVideo15_SR_Distilled", in_channels=98),
    ModelFile(r"ltx-video-2b.*", "LTXV", {"num_layers": 2}, CHECKPOINT),
    ModelFile(r"ltx-2-19b.*", "LTXAV", {"num_layers": 2}, CHECKPOINT),
    said_to_be(ModelFile(r"ltx-2\.3-22b.*", "LTXAV", {"num_layers": 2}, CHECKPOINT), **LTX_23),
    said_to_be(
        ModelFile(r"ltx-2\.5-22b.*", "LTXAV", {"num_layers": 2, "use_keyframes_abs_pos_embedding": True}),
        **LTX_23, ff_bias=False,
    ),
    ModelFile(r"minimax_h3.*", "MiniMaxH3", {"num_layers": 2, "token_refiner_num_layers": 1}),
    ModelFile(r"kandinsky5lite_(t2v|i2v).*", "Kandinsky5", {"num_visual_blocks": 2}),
    ModelFile(r"void_pass.*", "CogVideoX_Inpaint", {"num_attention_heads": 48, "num_layers": 2, "patch_size_t": 2}),
    ModelFile(
        r"seedvr2_3b.*", "SeedVR2", {"num_layers": 32, "norm_eps": 1e-5, "mlp_type": "swiglu", "vid_out_norm": True}
    ),
    ModelFile(
        r"seedvr2_7b.*", "SeedVR2",
        {"vid_dim": 3072, "heads": 24, "num_layers": 36, "mm_layers": 36, "norm_eps": 1e-5, "rope_dim": 64,
         "mlp_type": "normal"},
    ),
)  # fmt: skip
IMAGE_FILES = (
    ModelFile(r"qwen_image_edit_2511.*", "QwenImage", {"num_layers": 2}, marks=("__index_timestep_zero__",)),
    ModelFile(r"qwen_image_layered.*", "QwenImage", {"num_layers": 2, "use_additional_t_cond": True}),
    ModelFile(r"qwen_image.*|firered-image-edit.*", "QwenImage", {"num_layers": 2}),
    ModelFile(
        r"z_image.*", "ZImage",
        {"in_channels": 16, "n_layers": 2, "qk_norm": True, "n_heads": 30, "cap_feat_dim": 2560,
         "ffn_dim_multiplier": 8 / 3, "z_image_modulation": True, "pad_tokens_multiple": 32},
    ),
    lumina_2(r"netayume.*", CHECKPOINT),
    lumina_2(r"newbie-image.*", cap_feat_dim=2560, clip_text_dim=1024),
    ModelFile(
        r"sd3\.5_large.*", "SD3",
        {"depth": 38, "adm_in_channels": 2048, "num_patches": 36864, "qk_norm": "rms",
         "context_embedder_config": {
             "target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 2432}}},
        CHECKPOINT,
    ),
    ModelFile(
        r"hidream_(i1|e1).*", "HiDream", {"caption_channels": [4096, 4096], "in_channels": 16, "patch_size": 2}
    ),
    ModelFile(r"hidream_o1.*", "HiDreamO1", prefix="model."),
    ModelFile(
        r"omnigen2.*", "Omnigen2",
        {"hidden_size": 2520, "num_attention_heads": 21, "num_kv_heads": 7, "num_layers": 32, "text_feat_dim": 2048},
    ),
    ModelFile(r"boogu_image.*", "Boogu", {"num_layers": 2, "num_double_stream_layers": 2}),
    ModelFile(r"ernie-image.*", "ErnieImage"),
    ModelFile(r"ideogram4.*", "Ideogram4", {"num_layers": 2}),
    ModelFile(r"joyai_image.*", "JoyImage", {"num_layers": 2}),
    ModelFile(
        r"kandinsky5lite_t2i.*", "Kandinsky5Image",
        {"num_visual_blocks": 2, "ff_dim": 10240, "axes_dims": (32, 48, 48)},
    ),
    ModelFile(r"krea2_.*", "Krea2", {"layers": 2}),
    ModelFile(r"lens_.*", "Lens", {"num_layers": 2}),
    ModelFile(r"mage_flow.*", "MageFlow", {"num_layers": 2}),
    ModelFile(r"pid_flux1.*", "PiD"),
    ModelFile(r"pixeldit.*", "PixelDiTT2I", prefix="core."),
    ModelFile(
        r"anima-.*", "Anima",
        {"max_img_h": 240, "max_img_w": 240, "max_frames": 128, "in_channels": 16, "out_channels": 16,
         "patch_spatial": 2, "patch_temporal": 1, "model_channels": 2048, "pos_emb_cls": "rope3d",
         "use_adaln_lora": True, "num_blocks": 28},
    ),
    unet(r"v1-5-pruned.*|dreamshaper_8.*", "SD15"),
    sdxl(r"sd_xl_(base|turbo).*|sdxl_lightning.*"),
    sdxl(r"noobai-xl-vpred.*", v_pred=(0,)),
    unet(
        r"sd_xl_refiner.*", "SDXLRefiner", num_classes="sequential", transformer_depth=[0, 0, 4, 4, 4, 4, 0, 0],
        transformer_depth_middle=4, transformer_depth_output=[0, 0, 0, 4, 4, 4, 4, 4, 4, 0, 0, 0],
    ),
    unet(r"lotus-depth-d.*", "LotusD", "", context_dim=1024),
    unet(
        r"svd_xt.*", "SVD_img2vid", in_channels=8, num_classes="sequential", use_spatial_context=True,
        merge_strategy="learned_with_images", video_kernel_size=[3, 1, 1],
    ),
)  # fmt: skip
OTHER_FILES = (
    ModelFile(
        r"ace_step_v1_3\.5b.*", "ACEStep",
        {"attention_head_dim": 128, "mlp_ratio": 2.5, "num_attention_heads": 20, "num_layers": 24,
         "lyric_encoder_vocab_size": 6693},
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
        global_cond_type="adaLN", global_cond_dim=768, timestep_features_type="expo",
    ),
    ModelFile(r"hunyuan3d-dit-v2-mv.*|hunyuan3d-dit-v2_.*", "Hunyuan3Dv2", {"depth_single_blocks": 2}, "model."),
    ModelFile(r"hunyuan_3d_v2\.1.*", "Hunyuan3Dv2_1", {"guidance_cond_proj_dim": None}, "model."),
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
